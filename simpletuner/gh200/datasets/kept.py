"""What is in RAM on this machine, told by the words of those that hold it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

from ..errors import GH200Error
from ..memory.limits import spoken_size
from .arena import attach_names
from .media import remove_left
from .meeting import GivenWord, MeetingFile, meeting_file
from .places import meeting_files, our_folders
from .protocol import Word
from .record import SeenRecord

_LONGEST_OPEN = 3600.0


@dataclass
class Kept:
    """One arena, or one that is being staged, and the processes that hold it."""

    root: str
    file: MeetingFile
    what: str
    users: list[int] = field(default_factory=list)
    keepers: dict[GivenWord, float] = field(default_factory=dict)

    def told(self) -> str:
        kept = [
            f"kept by {word.pid} until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(until))}"
            for word, until in self.keepers.items()
        ]
        used = ["used by " + ", ".join(map(str, self.users))] if self.users else []
        return f"{self.root}: {self.what}; " + "; ".join(kept + used)

    def end_keepers(self) -> None:
        for word in self.keepers:
            try:
                process = os.pidfd_open(word.pid)
            except ProcessLookupError:
                continue
            try:
                # The word is looked at once the process is pinned: its number cannot be another's any more.
                if word in self.file.words():
                    signal.pidfd_send_signal(process, signal.SIGTERM)
            except ProcessLookupError:
                pass
            finally:
                os.close(process)


def everything_kept() -> list[Kept]:
    found: dict[tuple[str, str], Kept] = {}
    for path in meeting_files():
        file = meeting_file(path)
        for word in file.words():
            try:
                record = SeenRecord(word)
                info, what, digest = record.info, *_what(record)
            except (OSError, ValueError, GH200Error):
                # It ends just now, or cannot be looked at.
                continue
            root = str(info.get("root", path))
            kept = found.setdefault((root, digest), Kept(root, file, what))
            if info.get("kept_until"):
                kept.keepers[word] = float(info["kept_until"])
            else:
                kept.users.append(word.pid)
    return list(found.values())


def _what(record: SeenRecord) -> tuple[str, str]:
    if record.word is not Word.HERE:
        moment = record.moment
        part = f" {moment.done / moment.total:.0%}" if moment.total else ""
        return f"being staged ({moment.phase}{part})", f"process {record.pid}"
    names = attach_names(record.handle)
    size, stored = names.header["bytes"], sum(names.header["segments"])
    codec = names.header["codec"] or "no codec"
    left = f", {names.header['left_out']} left out" if names.header["left_out"] else ""
    return f"{names.files} files, {spoken_size(size)} as {spoken_size(stored)} ({codec}){left}", names.digest


def tidy() -> None:
    """Removes what crashed processes left behind: empty files that nobody holds anything on, links that lead nowhere."""
    for folder in our_folders():
        remove_left(folder, time.time() - _LONGEST_OPEN)
    for path in meeting_files():
        try:
            meeting_file(path).remove_if_last()
        except OSError:
            continue
