"""What upstream holds of its listings: files of a folder, and a dict of all paths, with no path made until somebody looks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from .late import LateDict, LateList
from .record import digest_of
from .text import PackedPaths, packed_from_json


class FolderFiles(LateList):
    """Paths of the files of one folder."""

    def __init__(self, folder: str, names: bytes) -> None:
        self.packed = os.path.join(os.path.abspath(folder), ""), names
        paths = PackedPaths()
        paths.add(*self.packed)
        super().__init__(lambda: paths, paths.count)


class Listing(LateDict):
    """What upstream holds of a listing: its paths, each with a False."""

    def __init__(self) -> None:
        self.paths = PackedPaths()
        super().__init__(self._held, 0)

    def _held(self) -> Iterable[tuple[str, bool]]:
        return dict.fromkeys(self.paths, False).items()

    def add(self, folder: str, names: bytes) -> None:
        self.paths.add(folder, names)
        self.promise(self._held, self.paths.count)

    def clear(self) -> None:
        super().clear()
        self.paths = PackedPaths()


def hold(held: dict[str, Any], dataset: str, folder: Any) -> Any:
    """A folder of a listing, and what upstream must still take from it, path by path, into the dict it holds of a dataset."""
    if type(folder) is not tuple or len(folder) != 3 or not isinstance(folder[2], FolderFiles) or not folder[2].pending:
        return folder
    if not held[dataset] and not isinstance(held[dataset], Listing):
        held[dataset] = Listing()
    listing = held[dataset]
    if not isinstance(listing, Listing) or (listing and not listing.pending):
        return folder
    listing.add(*folder[2].packed)
    return *folder[:2], ()


def listing_from(text: str) -> Listing | None:
    """What another rank wrote of its listing; None where only JSON can tell."""
    paths = packed_from_json(text)
    if paths is None:
        return None
    listing = Listing()
    listing.add("", paths)
    return listing


def unread(files: Any) -> PackedPaths | None:
    """The paths of a listing that nobody has looked into; None of anything else."""
    return files.paths if isinstance(files, Listing) and files.pending else None


def digest_of_listing(files: Iterable[str]) -> bytes:
    paths = unread(files)
    return digest_of(files) if paths is None else paths.digest
