"""Captions, read once: what upstream made of each caption file, as long as that file is the same."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from os.path import splitext
from pathlib import Path
from typing import Any

from simpletuner.helpers.training.state_tracker import StateTracker

from ..run import current
from .record import PACKED_STAT, Stat, clock_of, load, record_beside, save, settled, stat_of

# What upstream's reading of one file depends on, by the names it has there.
_ASKED = ("use_captions", "prepend_instance_prompt", "instance_prompt", "disable_multiline_split", "shuffle_enabled")
ATTRIBUTE = "_gh200_captions"


class AllRead(dict[str, int]):
    """By dataset, when upstream began to read its captions; not where one of them could not be read."""

    def __init__(self, _: object) -> None:
        super().__init__()


def captions_once(backend: Any, images: Iterable[Any], asked: dict[str, Any]) -> Iterable[Any]:
    """Upstream's loop over these images asks `Captions` for each, as long as it runs."""
    if asked.get("caption_strategy") != "textfile" or backend.type != "local" or hasattr(backend, "view"):
        return images
    try:
        metadata = StateTracker.get_data_backend(backend.id)["metadata_backend"]
    except (KeyError, TypeError):
        return images
    return _asked_once(backend, images, Captions(metadata.cache_file, [repr(asked.get(name)) for name in _ASKED]))


def _asked_once(backend: Any, images: Iterable[Any], captions: Captions) -> Iterator[Any]:
    setattr(backend, ATTRIBUTE, captions)
    try:
        yield from images
    finally:
        delattr(backend, ATTRIBUTE)
    run = current()
    if run is not None and not captions.unread:
        run.part(AllRead)[backend.id] = captions.clock
    if getattr(backend.accelerator, "is_local_main_process", True):
        captions.save()


class Captions:
    """By position, since the files come in the same order as last time unless some came or went."""

    def __init__(self, bucket_file: Path, key: object) -> None:
        self._file, self._key = record_beside(bucket_file, "captions"), key
        kept: tuple[list[str], bytes, list[Any]] = load(self._file, key) or ([], b"", [])
        self._paths, self._stats, self._captions = kept
        self._at = 0
        self._places: dict[str, int] | None = None
        self.clock = clock_of(self._file.parent) or 0
        # In the order of this start: places of the record that still hold, or ~places in what is new.
        self._order = array("q")
        self._new: list[tuple[str, Stat, Any]] = []
        self.read = self.unread = 0

    def caption(self, image: str, read: Callable[[], Any]) -> Any:
        """What upstream's `read` gave when the caption file was as it is now."""
        try:
            stat = stat_of(caption_file(image)) if type(image) is str else None
        except (OSError, ValueError):
            stat = None
        if stat is None:
            return self._counted(read())
        place = self._place(image)
        if place is not None and PACKED_STAT.unpack_from(self._stats, place * PACKED_STAT.size) == stat:
            self._order.append(place)
            return self._captions[place]
        self.read += 1
        caption = self._counted(read())
        if caption is not None and settled(stat, self.clock):
            self._order.append(~len(self._new))
            self._new.append((image, stat, caption))
        return caption

    def _counted(self, caption: Any) -> Any:
        """Upstream goes on without one that it cannot read, which may be otherwise a moment later."""
        self.unread += caption is None
        return caption

    def _place(self, image: str) -> int | None:
        at = self._at
        if at < len(self._paths) and self._paths[at] == image:
            self._at = at + 1
            return at
        if self._places is None:
            self._places = {path: place for place, path in enumerate(self._paths)}
        return self._places.get(image)

    def save(self) -> None:
        """Only what was asked for this time: files that are gone do not stay."""
        if not self._new and len(self._order) == len(self._paths):
            return
        kept = [self._new[~place] if place < 0 else self._kept(place) for place in self._order]
        stats = b"".join(PACKED_STAT.pack(*stat) for _, stat, _ in kept)
        save(self._file, self._key, ([path for path, _, _ in kept], stats, [caption for _, _, caption in kept]))

    def _kept(self, place: int) -> tuple[str, Stat, Any]:
        stat: Stat = PACKED_STAT.unpack_from(self._stats, place * PACKED_STAT.size)
        return self._paths[place], stat, self._captions[place]


def caption_file(image: str) -> str:
    """As upstream forms it."""
    return "".join(caption_place(image))


def caption_place(image: str) -> tuple[str, str]:
    """The folder, with its slash, and the name there; the plain case without the cost of `splitext`."""
    name, dot = image.rfind("/") + 1, image.rfind(".")
    if dot > name and image[name] != ".":
        return image[:name], image[name:dot] + ".txt"
    return image[:name], splitext(image[name:])[0] + ".txt"
