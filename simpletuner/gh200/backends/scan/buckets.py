"""The bucket of one file: SimpleTuner's own function decides; about the next file of the same size, what it decided then."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simpletuner.helpers.image_manipulation.cropping import CenterCropping, CornerCropping
from simpletuner.helpers.image_manipulation.training_sample import TrainingSample
from simpletuner.helpers.training.state_tracker import StateTracker

from ...image_headers import NOT_REGULAR, Size
from .worker_pool import DIED

logger = logging.getLogger("gh200.start")

DEBUG_LEVEL = 4


class BucketOutcome(NamedTuple):
    """Without a bucket, `reason` says why; `counter` is the name of SimpleTuner's own count of it."""

    path: str
    bucket: str | None
    metadata: dict[str, Any] | None
    reason: str = ""
    counter: str | None = None


def bucket_of(backend: Any, path: str, problem: str | None = None) -> BucketOutcome:
    """What SimpleTuner's own function makes of one file."""
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
        return BucketOutcome(path, None, None, f"error: {error}", "error")
    if buckets:
        return BucketOutcome(path, next(iter(buckets)), metadata.get(path))
    counter = next((name for name, count in statistics["skipped"].items() if count), None)
    return BucketOutcome(path, None, None, counter or problem or "unreadable (see the error above)", counter)


def without_size(backend: Any, path: str, problem: str | None) -> BucketOutcome:
    """A video, or an image whose header could not be read. SimpleTuner opens it once more."""
    # It would wait for ever for somebody to write into a FIFO.
    if problem in (DIED, NOT_REGULAR):
        return BucketOutcome(path, None, None, problem)
    return bucket_of(backend, path, problem)


@dataclass(frozen=True)
class SizePlan:
    """What every further file of one size gets; `cropper` where the crop is drawn anew for each."""

    bucket: str
    metadata: dict[str, Any]
    cropper: Any

    def outcome(self, path: str) -> BucketOutcome:
        """For a further file."""
        metadata = self.metadata.copy()
        if self.cropper is not None:
            metadata["crop_coordinates"] = self.cropper.crop(*metadata["target_size"])[1]
        return BucketOutcome(path, self.bucket, metadata)


class SizePlans:
    """One bucketing per image size. Not for several threads at once."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._first: dict[Size, BucketOutcome] = {}
        self._plans: dict[Size, SizePlan] = {}
        # What SimpleTuner's function gets when it asks for the size of a file.
        self.sizes: dict[str, Size] = {}
        config = StateTracker.get_data_backend_config(backend.id)
        draws_aspects = config.get("crop", False) and config.get("crop_aspect", "square") == "random"
        self._use_plans = not draws_aspects and not _reports_each_file()

    def outcome(self, path: str, size: Size, has_boxes: bool) -> BucketOutcome:
        """The bucket of one file; SimpleTuner decides for the first two of a size."""
        if has_boxes:
            return self._by_upstream(path, size)
        if (plan := self._plans.get(size)) is not None:
            return plan.outcome(path)
        first = self._first.get(size)
        return self._by_upstream(path, size) if first is None else self._second(path, size, first)

    def _by_upstream(self, path: str, size: Size) -> BucketOutcome:
        self.sizes[path] = size
        outcome = bucket_of(self._backend, path)
        if self._use_plans and outcome.metadata is not None and "bbox_entities" not in outcome.metadata:
            self._first.setdefault(size, outcome)
        return outcome

    def _second(self, path: str, size: Size, first: BucketOutcome) -> BucketOutcome:
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
            return self._by_upstream(path, size)
        self._plans[size] = SizePlan(first.bucket, first.metadata, cropper if _draws(cropper, prepared) else None)
        return BucketOutcome(path, first.bucket, metadata)


class BoxFiles:
    """Images with a `.bbox` file beside them have metadata of their own. Each directory is listed once."""

    def __init__(self) -> None:
        self._there: dict[str, bool] = {}

    def beside(self, paths: Sequence[str]) -> set[str]:
        """The images that have one."""
        directories = {path.rpartition("/")[0] for path in paths}
        if not any(self._any_in(directory) for directory in directories):
            return set()
        return {path for path in paths if os.path.exists(f"{os.path.splitext(path)[0]}.bbox")}

    def _any_in(self, directory: str) -> bool:
        if directory not in self._there:
            try:
                self._there[directory] = any(name.endswith(".bbox") for name in os.listdir(directory or "."))
            except OSError:
                self._there[directory] = False
        return self._there[directory]


def _draws(cropper: Any, prepared: Any) -> bool:
    if cropper.intermediary_width is None or type(cropper) in (CornerCropping, CenterCropping):
        return False
    width, height = prepared.target_size
    return bool(cropper.intermediary_width > width or cropper.intermediary_height > height)


def _reports_each_file() -> bool:
    """A webhook at debug level gets a message for every file that SimpleTuner prepares."""
    handler = StateTracker.get_webhook_handler()
    if handler is None:
        return False
    ends = getattr(handler, "backends", None) or [{}]
    levels = [end.get("log_level", DEBUG_LEVEL) if isinstance(end, dict) else DEBUG_LEVEL for end in ends]
    return bool(max(levels) >= DEBUG_LEVEL)
