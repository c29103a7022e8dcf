"""Where processes of one user meet: a folder that nobody else can take first, and one empty file in it for each arena."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..memory.numa import cpu_node
from .listing import MEETING_PREFIX

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SUFFIX = ".stage"
# Folders with a link to a media file that is open.
MEDIA = "media-"


@dataclass(frozen=True)
class Key:
    """What an arena is of: everything that asks with the same key shares one."""

    root: str
    codec: str | None
    node: int | None

    @classmethod
    def of(cls, root: str | os.PathLike[str], codec: str | None) -> Key:
        return cls(os.path.realpath(root), codec, cpu_node())

    @property
    def name(self) -> str:
        parts = [os.fsencode(self.root).hex(), self.codec, self.node, *_machine()]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _machine() -> list[str]:
    """A process number means something on one machine and in one namespace; the folder may be shared by several."""
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = platform.node()
    try:
        return [machine, os.readlink("/proc/self/ns/pid")]
    except OSError:
        return [machine]


def folders(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """In the order in which every process tries them: the last ones are where no other user can have been first."""
    name = f"{MEETING_PREFIX}{os.geteuid()}"
    given = environment.get("TMPDIR")
    for place in (given, "/tmp", environment.get("XDG_RUNTIME_DIR"), "/dev/shm"):
        if place and os.path.isabs(place):
            yield Path(place) / name
    try:
        yield Path.home() / ".cache" / name
    except RuntimeError:
        return


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def refusal(folder: Path) -> str:
    """Makes the folder if need be; returns why it cannot be used, empty where it can."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True, parents=folder.parent.name == ".cache")
        return "" if _is_ours(folder) else "not a folder of this user's alone"
    except OSError as error:
        return error.strerror or str(error)


def new_folder(prefix: str) -> str:
    """In the first that has room for one; OSError where none has."""
    refused: OSError | None = None
    for folder in folders():
        if not refusal(folder):
            try:
                return tempfile.mkdtemp(prefix=prefix, dir=folder)
            except OSError as error:
                refused = error
    raise refused or FileNotFoundError("there is no folder of this user's alone; set TMPDIR to one")


def our_folders(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Those that are there."""
    for folder in dict.fromkeys(folders(environment)):
        with suppress(OSError):
            if _is_ours(folder):
                yield folder


def meeting_files(environment: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Every one there is, in all folders this user may meet in."""
    for folder in our_folders(environment):
        with suppress(OSError):
            yield from (folder / name for name in sorted(os.listdir(folder)) if name.endswith(SUFFIX))
