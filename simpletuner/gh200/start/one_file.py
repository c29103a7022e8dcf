"""One file of a scan: upstream's own function decides about it; about the next of its size, what it decided then."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from simpletuner.helpers.image_manipulation.cropping import CenterCropping, CornerCropping
from simpletuner.helpers.image_manipulation.training_sample import TrainingSample
from simpletuner.helpers.training.state_tracker import StateTracker

from ..headers import Header
from .pool import DIED

logger = logging.getLogger("gh200.start")

DEBUG_LEVEL = 4


class Reason(NamedTuple):
    """Why a file is in no bucket: upstream's own counter, and the words for the summary."""

    counted: str | None
    words: str | None
    processed: bool = True


class Outcome(NamedTuple):
    path: str
    bucket: str | None
    metadata: dict[str, Any] | None
    reason: Reason | None


_KNOWN = Reason("already_exists", None, processed=False)


def process(backend: Any, path: str, known: set[str], problem: str | None = None) -> Outcome:
    """What upstream's own function makes of one file."""
    if path in known:
        return Outcome(path, None, None, _KNOWN)
    buckets: dict[str, list[str]] = {}
    metadata: dict[str, dict[str, Any]] = {}
    statistics: dict[str, Any] = {"total_processed": 0, "skipped": {}}
    try:
        buckets = backend._process_for_bucket(
            path,
            buckets,
            metadata_updates=metadata,
            delete_problematic_images=backend.delete_problematic_images,
            statistics=statistics,
        )
    except Exception as error:
        return Outcome(path, None, None, Reason("error", f"error: {error}"))
    if buckets:
        return Outcome(path, next(iter(buckets)), metadata.get(path), None)
    counted = next((name for name, count in statistics["skipped"].items() if count), None)
    return Outcome(path, None, None, Reason(counted, counted or problem or "unreadable (see the error above)"))


@dataclass(frozen=True)
class Plan:
    """What every further file of one size gets; `cropper` where the crop is drawn anew for each."""

    bucket: str
    metadata: dict[str, Any]
    cropper: Any

    def outcome(self, path: str) -> Outcome:
        metadata = self.metadata.copy()
        if self.cropper is not None:
            metadata["crop_coordinates"] = self.cropper.crop(*metadata["target_size"])[1]
        return Outcome(path, self.bucket, metadata, None)


class SizePlans:
    def __init__(self, backend: Any, known: set[str]) -> None:
        self._backend, self._known = backend, known
        self._boxes = _SideFiles(".bbox") if hasattr(backend, "_discover_bbox_metadata") else None
        self._first: dict[tuple[int, int], Outcome] = {}
        self._plans: dict[tuple[int, int], Plan] = {}
        config = StateTracker.get_data_backend_config(backend.id)
        draws_aspects = config.get("crop", False) and config.get("crop_aspect", "square") == "random"
        self._use_plans = not draws_aspects and not _told_of_each_file()

    def outcomes(self, paths: Sequence[str], found: Sequence[Header]) -> list[Outcome]:
        """In the order of the paths. Sizes arrive as tuples, and upstream's metadata has tuples."""
        alone = self._known.intersection(paths)
        if self._boxes is not None:
            alone |= self._boxes.beside(paths)
        made = []
        with _sizes_given(self._backend) as sizes:
            for path, header in zip(paths, found, strict=True):
                size = header.size
                if size is None:
                    made.append(self._unreadable(path, header.problem))
                elif path in alone:
                    made.append(self._by_upstream(path, size, sizes))
                elif (plan := self._plans.get(size)) is not None:
                    made.append(plan.outcome(path))
                elif (first := self._first.get(size)) is not None:
                    made.append(self._second(path, size, first))
                else:
                    made.append(self._by_upstream(path, size, sizes))
        return made

    def _unreadable(self, path: str, problem: str | None) -> Outcome:
        if problem == DIED:
            return Outcome(path, None, None, Reason(None, DIED))
        return process(self._backend, path, self._known, problem)

    def _by_upstream(self, path: str, size: tuple[int, int], sizes: dict[str, Any]) -> Outcome:
        sizes[path] = {"original_size": size}
        outcome = process(self._backend, path, self._known)
        if self._use_plans and outcome.metadata is not None and "bbox_entities" not in outcome.metadata:
            self._first.setdefault(size, outcome)
        return outcome

    def _second(self, path: str, size: tuple[int, int], first: Outcome) -> Outcome:
        """The second file of a size shows how its crop comes about; it must be what the first one got."""
        sample = TrainingSample(
            image=None,
            data_backend_id=self._backend.id,
            image_metadata={"original_size": size},
            image_path=path,
            model=StateTracker.get_model(),
        )
        prepared = sample.prepare()
        cropper = sample.cropper
        assert first.bucket is not None and first.metadata is not None
        metadata = first.metadata | {"crop_coordinates": prepared.crop_coordinates}
        again = {name: getattr(prepared, name) for name in ("target_size", "intermediary_size", "aspect_ratio")}
        if any(metadata.get(name) != value for name, value in again.items()) or len(metadata) != 5:
            logger.warning("(id=%s) Files of one size are not treated alike: each is looked at.", self._backend.id)
            self._use_plans = False
            self._first.clear()
            self._plans.clear()
        else:
            self._plans[size] = Plan(first.bucket, first.metadata, cropper if _draws(cropper, prepared) else None)
        return Outcome(path, first.bucket, metadata, None)


def _draws(cropper: Any, prepared: Any) -> bool:
    if cropper.intermediary_width is None or type(cropper) in (CornerCropping, CenterCropping):
        return False
    width, height = prepared.target_size
    return bool(cropper.intermediary_width > width or cropper.intermediary_height > height)


def _told_of_each_file() -> bool:
    """A webhook at debug level gets a message for every file that upstream prepares."""
    handler = StateTracker.get_webhook_handler()
    if handler is None:
        return False
    ends = getattr(handler, "backends", None) or [{}]
    levels = [end.get("log_level", DEBUG_LEVEL) if isinstance(end, dict) else DEBUG_LEVEL for end in ends]
    return bool(max(levels) >= DEBUG_LEVEL)


@contextmanager
def _sizes_given(backend: Any) -> Iterator[dict[str, Any]]:
    """Upstream's function asks its own method for a picture's size; while this lasts, it gets what is known already."""
    sizes: dict[str, Any] = {}
    probe = backend._probe_image_dimensions

    def given(path: str) -> Any:
        return sizes.pop(path, None) or probe(path)

    backend._probe_image_dimensions = given
    try:
        yield sizes
    finally:
        del backend._probe_image_dimensions


class _SideFiles:
    """Which files of one suffix stand in a folder, listed once."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._names: dict[str, frozenset[str]] = {}

    def beside(self, paths: Sequence[str]) -> set[str]:
        """Those of the paths that have one."""
        folders = {path.rpartition("/")[0] for path in paths}
        for folder in folders:
            if folder not in self._names:
                self._names[folder] = self._list(folder)
        if not any(self._names[folder] for folder in folders):
            return set()
        return {path for path in paths if self._has(*path.rpartition("/")[::2])}

    def _has(self, folder: str, name: str) -> bool:
        return os.path.splitext(name)[0] in self._names[folder]

    def _list(self, folder: str) -> frozenset[str]:
        try:
            with os.scandir(folder or ".") as entries:
                found = [os.path.splitext(entry.name) for entry in entries if entry.name.endswith(self._suffix)]
        except OSError:
            return frozenset()
        return frozenset(stem for stem, _ in found)
