"""Which bucket upstream will put an image into, from its size alone: upstream's arithmetic, in integers and ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, sqrt
from typing import Any

Size = tuple[int, int]
ALIGNMENT, ROUNDING = 64, 2
# These families set the alignment themselves, whatever the config says.
_ALIGNED = {"sdxl": 64, "sd3": 64, "sana": 64, "hidream": 64, "moss_image": 16}


@dataclass(frozen=True)
class Rules:
    """How one dataset is cut; `resolution` is an edge for the type pixel and megapixels for the type area."""

    resolution: float
    by_area: bool
    crop: bool = False
    crop_aspect: str = "square"
    aspects: tuple[float, ...] = ()
    alignment: int = ALIGNMENT
    rounding: int = ROUNDING
    minimum_size: float | None = None
    minimum_aspect: float | None = None
    maximum_aspect: float | None = None

    @property
    def unknown(self) -> str:
        """Why the buckets cannot be predicted, or nothing."""
        return "crop_aspect random draws them" if self.crop and self.crop_aspect == "random" else ""

    def _aligned(self, value: float) -> int:
        return max(round(value / self.alignment) * self.alignment, self.alignment)

    def _aspect(self, size: tuple[float, float]) -> float:
        return round(size[0] / size[1], self.rounding)

    def too_small(self, size: Size) -> bool:
        """Whether upstream skips an image of this size."""
        if self.minimum_size is None:
            return False
        width, height = size
        if not self.by_area:
            return min(width, height) < self.minimum_size
        least = self.minimum_size * 1_000_000
        square = self.crop and self.crop_aspect == "square"
        return width * height < least or (square and min(width, height) < floor(sqrt(least)))

    def bucket(self, size: Size) -> str:
        """The name of the bucket, an aspect ratio."""
        return str(self._aspect(self.target(size)))

    def target(self, size: Size) -> Size:
        """What an image is cropped to, once it is resized to cover that."""
        aspect = self._aspect(size)
        edge = self._aligned(int(sqrt(self.resolution * 1e6))) if self.by_area else self._aligned(int(self.resolution))
        if self.crop and self.crop_aspect == "square":
            return edge, edge
        if self.crop and self.crop_aspect == "closest" and self.aspects:
            aspect = min(self.aspects, key=lambda candidate: abs(candidate - aspect))
        if not self.by_area:
            return self._by_edge(aspect, size)
        return self._aligned(edge * sqrt(aspect)), self._aligned(edge / sqrt(aspect))

    def lost(self, size: Size) -> float:
        """The share of an image's area that is cropped."""
        (width, height), (wide, high) = size, self.target(size)
        return 1 - wide * high / (width * height * max(wide / width, high / height) ** 2)

    def _by_edge(self, aspect: float, size: Size) -> Size:
        edge = int(self.resolution)
        if size[0] < size[1]:
            return self._aligned(edge), self._aligned(int(edge / aspect) if aspect else edge)
        return self._aligned(int(edge * aspect)), self._aligned(edge)

    def kept(self, bucket: str) -> bool:
        """Whether the aspect ratio is within the dataset's limits."""
        aspect = float(bucket)
        below = self.minimum_aspect and aspect < self.minimum_aspect
        return not below and not (self.maximum_aspect and aspect > self.maximum_aspect)


def rules_of(entry: Mapping[str, Any], config: Mapping[str, Any]) -> Rules | None:
    """The rules for a dataset in a training config, whose own keys are the defaults of the entry."""

    def value(key: str, default: Any = None) -> Any:
        given = entry.get(key)
        return given if given is not None else config.get(key, default)

    kind = str(value("resolution_type", "pixel_area"))
    try:
        resolution = float(value("resolution", 1024))
        minimum = value("minimum_image_size")
        least = None if minimum is None else float(minimum)
        if kind == "pixel_area":
            resolution = resolution * resolution / 1e6
            least = least * least / 1e6 if least else least
        family = str(config.get("model_family", "")).lower()
        return Rules(
            resolution,
            kind != "pixel",
            crop=bool(entry.get("crop", False)),
            crop_aspect=str(entry.get("crop_aspect") or "square"),
            aspects=tuple(float(aspect) for aspect in entry.get("crop_aspect_buckets") or ()),
            alignment=_ALIGNED.get(family) or int(config.get("aspect_bucket_alignment") or ALIGNMENT),
            rounding=int(config.get("aspect_bucket_rounding") or ROUNDING),
            minimum_size=least,
            minimum_aspect=_ratio(entry.get("minimum_aspect_ratio")),
            maximum_aspect=_ratio(entry.get("maximum_aspect_ratio")),
        )
    except (TypeError, ValueError):
        return None


def _ratio(value: Any) -> float | None:
    return None if value is None else float(value)
