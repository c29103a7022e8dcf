"""The scan of a dataset: headers read by worker processes, SimpleTuner's own bucketing once per size, every file accounted for."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend
from simpletuner.helpers.training import video_file_extensions
from simpletuner.helpers.training.state_tracker import StateTracker

from ...image_headers import Header, header, header_of_bytes
from ...overrides import Overrides, override, override_if_present
from ...runtime import current
from .buckets import BoxFiles, BucketOutcome, SizePlans, bucket_of, without_size
from .skipped_files import SkippedFiles
from .worker_pool import HeaderPool

BATCH = 512
WAIT_SECONDS = 0.005
_NO_HEADER = Header(None, None, None)


def metadata_backend(backend: Any) -> Any:
    """A dataset's metadata backend; the kind that discovers files in directories gets our scan."""
    run = current()
    if run is not None and run.settings.fast_start and type(backend) is DiscoveryMetadataBackend:
        DatasetScan(backend)
    return backend


class ScanState:
    """What the threads of one scan share."""

    def __init__(self, backend: Any) -> None:
        workers = max(1, int(StateTracker.get_args().aspect_bucket_worker_count or 1))
        self.pool = HeaderPool(min(workers, len(os.sched_getaffinity(0))))
        # SimpleTuner too must look at this dataset's images no further than their headers.
        headers = hasattr(backend, "_probe_image_dimensions") and backend._should_use_metadata_only(False)
        self.plans = SizePlans(backend) if headers else None
        self.boxes = BoxFiles()
        self.left_out = SkippedFiles(backend)
        self.lock = threading.Lock()
        self.process = os.getpid()
        self.scanned = 0
        self.over = False
        self.error: Exception | None = None


class DatasetScan(Overrides):
    """Overrides of one metadata backend: SimpleTuner discovers the files, starts threads, collects and saves."""

    upstream_class = "DiscoveryMetadataBackend"
    feature = "gh200_optimizations.fast_start"

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend
        self._state: ScanState | None = None
        self.install(backend)

    @override
    def compute_aspect_ratio_bucket_indices(self, *given: Any, **named: Any) -> Any:
        """Scans with our workers."""
        with self._scanning():
            return self.upstream.compute_aspect_ratio_bucket_indices(*given, **named)

    @override
    def scan_for_metadata(self) -> Any:
        """Scans with our workers."""
        with self._scanning():
            return self.upstream.scan_for_metadata()

    @override_if_present
    def _probe_image_dimensions(self, image_path_str: str) -> Any:
        plans = self._state.plans if self._state is not None else None
        size = plans.sizes.pop(image_path_str, None) if plans is not None else None
        return {"original_size": size} if size is not None else self.upstream._probe_image_dimensions(image_path_str)

    @override
    def _bucket_worker(
        self, tqdm_queue: Any, files: Any, buckets_queue: Any, metadata_queue: Any, written_queue: Any, *rest: Any
    ) -> None:
        """Of what is left the last is the set of known files. `scan_for_metadata` leaves out the queue before it, since 4.3.0."""
        state = self._state
        if state is None or state.process != os.getpid():
            # `enable_multiprocessing`: a process loses nothing, it ends when its queues are flushed.
            worker = self.upstream._bucket_worker
            given = [tqdm_queue, files, buckets_queue, metadata_queue, written_queue, *rest]
            if len(given) < len(inspect.signature(worker).parameters):
                given.insert(-1, None)
            worker(*given)
            return
        try:
            self._scan(state, [str(file) for file in files], rest[-1], (buckets_queue, metadata_queue, tqdm_queue))
            # SimpleTuner stops collecting when its last thread has ended, whatever is still in the queues.
            queues = [one for one in (buckets_queue, metadata_queue, tqdm_queue) if one is not None]
            while not state.over and any(one.qsize() for one in queues):
                time.sleep(WAIT_SECONDS)
        except Exception as error:  # raised again where the scan was asked for
            state.error = error

    @contextmanager
    def _scanning(self) -> Iterator[None]:
        before, state = self._state, ScanState(self._backend)
        self._state = state
        try:
            yield
        finally:
            state.over = True
            state.pool.close()
            self._state = before
        if state.error is not None:
            raise state.error
        state.left_out.report(state.scanned)

    def _scan(self, state: ScanState, files: list[str], known: set[str], queues: tuple[Any, Any, Any]) -> None:
        buckets_queue, metadata_queue, tqdm_queue = queues
        new = [path for path in files if path not in known]
        skipped = {"already_exists": len(files) - len(new)}
        for start in range(0, len(new), BATCH):
            if state.over or state.error is not None or self._backend.should_abort:
                return
            buckets: dict[str, list[str]] = {}
            metadata: dict[str, Any] = {}
            outcomes = self._outcomes(state, new[start : start + BATCH])
            for path, bucket, found, reason, counter in outcomes:
                if bucket is not None:
                    buckets.setdefault(bucket, []).append(path)
                    metadata[path] = found
                    continue
                state.left_out.add(path, reason)
                if counter is not None:
                    skipped[counter] = skipped.get(counter, 0) + 1
            # Not through the queue: SimpleTuner's reader of it takes as long over an entry as all of the above.
            self._backend.image_metadata.update(metadata)
            if buckets_queue is not None:
                buckets_queue.put(buckets)
            tqdm_queue.put(len(outcomes))
            with state.lock:
                state.scanned += len(outcomes)
        metadata_queue.put(("statistics", {"total_processed": len(new), "skipped": skipped}))

    def _outcomes(self, state: ScanState, paths: Sequence[str]) -> list[BucketOutcome]:
        """In the order of the paths. What SimpleTuner decodes, it decodes in all threads at once."""
        plans = state.plans
        if plans is None:
            return [bucket_of(self._backend, path) for path in paths]
        found, boxes = self._headers(state, paths), state.boxes.beside(paths)
        made: list[BucketOutcome] = []
        for sized, some in groupby(zip(paths, found, strict=True), lambda one: one[1].size is not None):
            if not sized:
                made += [without_size(self._backend, path, header.problem) for path, header in some]
                continue
            with state.lock:
                made += [plans.outcome(path, header.size, path in boxes) for path, header in some if header.size]
        return made

    def _headers(self, state: ScanState, paths: Sequence[str]) -> list[Header]:
        staged = self._backend.data_backend
        images = [path for path in paths if not _is_video(path)]
        # A dataset in RAM is measured from the bytes that were staged.
        in_ram = getattr(staged, "staged_files", 0)
        found = [_staged_header(staged, path) for path in images] if in_ram else state.pool.read(images)
        by_path = dict(zip(images, found, strict=True))
        return [by_path.get(path, _NO_HEADER) for path in paths]


def _is_video(path: str) -> bool:
    return path.rpartition(".")[2].lower() in video_file_extensions


def _staged_header(staged: Any, path: str) -> Header:
    return header_of_bytes(staged.read(path)) if staged.is_staged(path) else header(path)
