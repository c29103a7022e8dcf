"""What is in a directory: images and their sizes, and what cannot be used, each by name."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from ..backends.ram.listing import list_dataset
from ..errors import GH200Error
from ..image_headers import Header, Size, header
from ..preflight.report import some
from ..preflight.samples import image_suffixes

CAPTION = ".txt"
# Captions, tables of them, and upstream's own lists.
_BESIDE_IMAGES = frozenset({CAPTION, ".caption", ".json", ".jsonl", ".csv", ".parquet"})
_TAIL = 64
_PLURALS = {"is": "are", "has": "have", "differs": "differ"}
_VIDEOS = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".flv", ".wmv", ".m4v", ".mpeg", ".mpg", ".3gp", ".ogv"})
# Formats cameras and phones write that Pillow has no reader for.
_FOREIGN = frozenset({".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".rw2", ".orf"})


@dataclass(frozen=True)
class ImageDirectory:
    """Names are relative to the directory. `unusable` says why for each image left out, `unread` for each caption."""

    root: Path
    names: tuple[str, ...]
    sizes: Mapping[str, Size]
    captions: Mapping[str, str] = field(default_factory=dict)
    unusable: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def usable(self) -> list[str]:
        """Names of the images to train on."""
        return sorted(self.sizes)

    @property
    def uncaptioned(self) -> list[str]:
        """Usable images without a caption."""
        return [name for name in self.usable if not self.captions.get(name, "").strip()]


def look_at(root: Path) -> ImageDirectory:
    """Every file below the directory, as upstream will walk it; one clear error where there is nothing to train on."""
    if not root.is_dir():
        there = "is a file" if root.exists() else "does not exist"
        raise GH200Error(f"The directory {there}.", where=str(root), fix="name a directory that holds images")
    if not _is_text(os.path.abspath(root)):
        raise GH200Error("The directory's name is not UTF-8.", where=_as_text(str(root)), fix="rename it")
    listing = list_dataset(root)
    names = sorted(os.path.relpath(path, listing.root) for path, _ in listing.names)
    suffixes = image_suffixes()
    sizes: dict[str, Size] = {}
    unusable = {
        _as_text(os.path.relpath(path, listing.root)): f"cannot be read:{why}"
        for path, _, why in (problem.rpartition(":") for problem in listing.problems)
    }
    used: dict[str, str] = {}
    for name in names:
        stem, suffix = os.path.splitext(name)
        if rejected := _rejected(name, suffix.lower(), suffixes):
            unusable[_as_text(name)] = rejected
        elif suffix.lower() in suffixes and stem in used:
            unusable[name] = (
                f"differs in the suffix only, and upstream keeps one latent for both; rename it: {used[stem]}"
            )
        elif suffix.lower() in suffixes:
            _sort_in(root, name, sizes, unusable)
            used |= {stem: name} if name in sizes else {}
    if not sizes:
        raise GH200Error(
            "There is no image to train on.",
            where=str(root),
            why="\n".join(f"{name} {why}" for name, why in sorted(unusable.items())[:20])
            or "the directory holds no images",
            fix="name a directory with JPEG, PNG or WebP files",
        )
    size = sum(file.size for file in listing.files)
    others = [name for name in names if os.path.splitext(name)[1].lower() not in {*suffixes, *_VIDEOS, *_BESIDE_IMAGES}]
    found = {
        "have transparency, which training drops": [name for name in sizes if _has_alpha(root / name)],
        "are links": [name for name in sizes if (root / name).is_symlink()],
        "are no images and stay unused": [name for name in others if name not in unusable],
    }
    notes = tuple(
        f"{len(some_names):,} files {what}: {some(some_names)}" for what, some_names in found.items() if some_names
    )
    return ImageDirectory(root, tuple(names), sizes, unusable=unusable, bytes=size, notes=notes)


def kohya_repeats(name: str) -> int | None:
    """How often a directory named as kohya's scripts want it (10_name) shows each image in an epoch."""
    found = re.fullmatch(r"(\d+)_.+", name)
    return max(1, int(found[1])) if found else None


def _has_alpha(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(32)
    if start.startswith(b"\x89PNG"):
        return start[25] in (4, 6)
    return start[12:16] == b"VP8X" and bool(start[20] & 0x10)


def left_out_lines(directory: ImageDirectory, uncaptioned: list[str]) -> list[str]:
    """One line for each reason, with its count and the first names."""
    captions = {name: directory.unread.get(name, "has no caption; --caption TEXT gives one") for name in uncaptioned}
    reasons = {**directory.unusable, **captions}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, why in sorted(reasons.items()):
        # What follows the colon is of this file alone.
        verb, _, rest = why.partition(":")[0].partition(" ")
        groups[f"{_PLURALS.get(verb, verb)} {rest}"].append(name)
    return [
        f"{names[0]} {reasons[names[0]]}" if len(names) == 1 else f"{len(names):,} images {why}: {some(names)}"
        for why, names in groups.items()
    ]


def reject_most_left_out(directory: ImageDirectory, uncaptioned: list[str]) -> None:
    """A job of the few images that are left is not what anybody meant."""
    left, used = len(directory.unusable) + len(uncaptioned), len(directory.sizes)
    if left > used:
        raise GH200Error(
            f"Most images would be left out: {left:,} of {left + used:,}.",
            where=str(directory.root),
            why="\n".join(left_out_lines(directory, uncaptioned)),
            fix="repair or remove them, or give images without a caption one with --caption TEXT",
        )


def _rejected(name: str, suffix: str, suffixes: Collection[str]) -> str:
    """Why an image or video cannot be used, judged by its name."""
    if suffix in _VIDEOS:
        return "is a video; an image job does not train on it"
    if suffix in _FOREIGN and suffix not in suffixes:
        return f"is {suffix.lstrip('.').upper()}, which Pillow cannot read here; convert it to JPEG or PNG"
    return "has a name that is not UTF-8; rename it" if suffix in suffixes and not _is_text(name) else ""


def _sort_in(root: Path, name: str, sizes: dict[str, Size], unusable: dict[str, str]) -> None:
    path = root / name
    found = header(os.fspath(path))
    problem = found.problem or _unfit(found) or _damage(path)
    if problem or found.size is None:
        unusable[name] = problem
    else:
        sizes[name] = found.size


def _unfit(found: Header) -> str:
    width, height = found.size or (0, 0)
    if width < 16 or height < 16:
        return f"is too small to train on: {width}x{height}"
    return (
        f"is too long and narrow to train on: {width}x{height}" if max(width, height) > 20 * min(width, height) else ""
    )


def _damage(path: Path) -> str:
    """Why the image's body cannot be read, or nothing; decodes only where the end of the file is not the format's."""
    if _ends_well(path):
        return ""
    try:
        with Image.open(path) as image:
            image.load()
    except Exception as error:  # Pillow's readers raise whatever a damaged file makes of them
        return f"is damaged: {error}"
    return ""


def _ends_well(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, path.stat().st_size - _TAIL))
        end = file.read()
    if start.startswith(b"\xff\xd8"):
        return end.rstrip(b"\0").endswith(b"\xff\xd9")
    return start.startswith(b"\x89PNG") and b"IEND" in end


def _is_text(name: str) -> bool:
    """Neither a config nor upstream's lists can hold a name of other bytes."""
    return _as_text(name) == name


def _as_text(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
