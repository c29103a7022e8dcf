"""The scan of a dataset: headers by worker processes, upstream's own bucketing once per size, every file accounted for."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tqdm import tqdm

from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend
from simpletuner.helpers.training import video_file_extensions
from simpletuner.helpers.training.state_tracker import StateTracker

from ..headers import Header, header, header_of_bytes
from .left_out import LeftOut
from .one_file import Outcome, SizePlans, process
from .pool import BATCH, read_headers

logger = logging.getLogger("gh200.start")

Progress = Callable[[int, int], object]
_NO_HEADER = Header(None, None, None)


def scan(
    backend: Any, files: Sequence[str], known: set[str], statistics: dict[str, Any] | None, progress: Progress | None
) -> bool:
    """Files into buckets and metadata, as upstream's workers do it; `statistics` None: metadata alone. False: not ours."""
    arguments = StateTracker.get_args()
    by_header = _has_headers(backend)
    if type(backend) is not DiscoveryMetadataBackend or (not by_header and _left_to_processes(arguments, statistics)):
        return False
    state = random.getstate() if arguments.enable_multiprocessing else None
    try:
        _Scan(backend, known, statistics).run(files, progress, by_header)
    finally:
        # Upstream's child processes would have drawn from copies of it.
        if state is not None:
            random.setstate(state)
    return True


def _left_to_processes(arguments: Any, statistics: dict[str, Any] | None) -> bool:
    """Processes end when their queues are flushed, so nothing is lost; the scan for metadata alone dies in them."""
    return bool(arguments.enable_multiprocessing) and statistics is not None


def _has_headers(backend: Any) -> bool:
    """Whether upstream too would look at this dataset's pictures no further than their headers."""
    return hasattr(backend, "_probe_image_dimensions") and bool(backend._should_use_metadata_only(False))


class _Scan:
    def __init__(self, backend: Any, known: set[str], statistics: dict[str, Any] | None) -> None:
        self.backend, self.known = backend, known
        self.buckets = backend.aspect_ratio_bucket_indices if statistics is not None else None
        self.statistics: dict[str, Any] = (
            statistics if statistics is not None else {"total_processed": 0, "skipped": {}}
        )
        self.left_out = LeftOut(backend)
        self.saved = time.time()

    def run(self, files: Sequence[str], progress: Progress | None, by_header: bool) -> None:
        outcomes = self._by_header(files) if by_header else self._by_upstream(files)
        done = 0
        title = f"({self.backend.id}) Scanning pictures"
        with tqdm(desc=title, total=len(files), leave=False, ncols=125, miniters=len(files) // 100) as bar:
            for batch in outcomes:
                self._take(batch)
                bar.update(len(batch))
                done += len(batch)
                if progress is not None:
                    progress(done, len(files))
                if self.backend.should_abort:
                    return
                self._save_at_times()
        self.left_out.report(len(files))

    def _take(self, batch: list[Outcome]) -> None:
        metadata, skipped = self.backend.image_metadata, self.statistics["skipped"]
        for path, bucket, found, reason in batch:
            if bucket is not None:
                metadata[path] = found
                if self.buckets is not None:
                    self.buckets.setdefault(bucket, []).append(path)
            elif reason is not None:
                if reason.counted is not None:
                    skipped[reason.counted] = skipped.get(reason.counted, 0) + 1
                if reason.words is not None:
                    self.left_out.add(path, reason.words)
            if reason is None or reason.processed:
                self.statistics["total_processed"] += 1

    def _by_header(self, files: Sequence[str]) -> Iterator[list[Outcome]]:
        plans = SizePlans(self.backend, self.known)
        start = 0
        for found in self._headers(files):
            yield plans.outcomes(files[start : start + len(found)], found)
            start += len(found)

    def _headers(self, files: Sequence[str]) -> Iterator[list[Header]]:
        staged = self.backend.data_backend
        if hasattr(staged, "view"):
            for start in range(0, len(files), BATCH):
                yield [_staged_header(staged, path) for path in files[start : start + BATCH]]
            return
        # What upstream hands to other readers is not opened here.
        suffixes = {path.rpartition(".")[2] for path in files}
        if any(map(_is_video, suffixes)):
            pictures = iter(read_headers([path for path in files if not _is_video(path)], self._workers()))
            yield from _with_gaps(files, pictures)
            return
        yield from read_headers(files, self._workers())

    def _by_upstream(self, files: Sequence[str]) -> Iterator[list[Outcome]]:
        """No headers to read: each file through upstream's own function, in threads as there, but nothing is lost."""
        with ThreadPoolExecutor(max_workers=self._workers()) as threads:
            for start in range(0, len(files), BATCH):
                yield list(
                    threads.map(lambda path: process(self.backend, path, self.known), files[start : start + BATCH])
                )

    def _workers(self) -> int:
        return max(1, int(StateTracker.get_args().aspect_bucket_worker_count or 1))

    def _save_at_times(self) -> None:
        """As upstream does during a long scan, so that a killed one goes on from there."""
        if self.buckets is not None and time.time() - self.saved >= self.backend.metadata_update_interval:
            self.backend.save_cache(enforce_constraints=False)
            self.backend.save_image_metadata()
            self.saved = time.time()


def _is_video(path: str) -> bool:
    """By its suffix, which may also stand alone."""
    return path.rpartition(".")[2].lower() in video_file_extensions


def _with_gaps(files: Sequence[str], pictures: Iterator[list[Header]]) -> Iterator[list[Header]]:
    waiting: list[Header] = []
    for start in range(0, len(files), BATCH):
        batch = []
        for path in files[start : start + BATCH]:
            if _is_video(path):
                batch.append(_NO_HEADER)
                continue
            if not waiting:
                waiting = next(pictures)[::-1]
            batch.append(waiting.pop())
        yield batch


def _staged_header(staged: Any, path: str) -> Header:
    if _is_video(path):
        return _NO_HEADER
    data = staged.view(path)
    if data is None and getattr(staged.options, "compression", None):
        data = staged.read(path)
    return header(path) if data is None else header_of_bytes(data)
