"""How the processes of one machine come to share an arena: performs the steps of `protocol` on real locks and memory."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..memory.limits import spoken_size
from ..run import STAGED, current
from .arena import ArenaDamaged, SharedArena, attach
from .meeting import GivenWord, MeetingFile, meeting_file, meeting_path
from .party import Party
from .places import Key
from .progress import Told
from .protocol import FIRST, LAST, TABLE, Came, Step, Word, remembered
from .record import OwnRecord, SeenRecord
from .waiting import Waiting

logger = logging.getLogger("gh200.in_memory")

_POLL_SECONDS = 0.1
# A word whose memory is gone is of a process that is just ending; one that stays so is of one that closed what it held.
_MOST_GONE = 20


class StagerFailed(GH200Error):
    """The process that was staging for this run is gone, or has given up."""


class Meeting:
    """One process on its way to an arena."""

    def __init__(
        self,
        path: Path,
        party: Party,
        stage: Callable[[Told], SharedArena],
        check: Callable[[SharedArena], None],
        root: str = "",
    ) -> None:
        self._file: MeetingFile = meeting_file(path)
        self._party, self._stage, self._check, self._root = party, stage, check, root
        self._watched: SeenRecord | None = None
        self._waiting = Waiting(party.dataset, party.patience)
        self._my_turn = time.monotonic() + party.run.leave_to_first
        self._ready: SeenRecord | None = None
        self._gone = 0
        self._record: OwnRecord | None = None
        self.arena: SharedArena | None = None
        self.error: BaseException | None = None

    def hold(self) -> SharedArena | None:
        """The arena; None where it is to be read from disk, which has then been said."""
        step = FIRST
        with self._waiting:
            while step not in LAST:
                step = TABLE[step, self._PERFORM[step](self)]
        if step is Step.STOP_FAILED:
            assert self.error is not None
            raise self.error
        if step in (Step.STOP_ENDED, Step.STOP_TOLD):
            raise self._failure(step)
        if step is Step.DISK:
            logger.warning("(id=%s) %s: reading from disk.", self._party.dataset, self._waiting.reason)
            return None
        assert self.arena is not None
        if self._ready is not None:
            _tell_of_shared(self._party.dataset, self._ready.pid, self.arena)
        return self.arena

    def _look(self) -> Came:
        for word in self._file.words():
            try:
                record = SeenRecord(word)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError as error:
                # One that is just ending cannot be looked at either; its word goes with it.
                if word not in self._file.words():
                    continue
                self._waiting.reason = f"The record of process {word.pid}, which has the folder, is refused ({error})"
                return Came.FAILED
            if record.word is Word.HERE:
                self._ready = record
                return Came.READY
        return Came.NOBODY

    def _ask(self) -> Came:
        return Came.FREE if self._file.holder() is None else Came.BUSY

    def _remember(self) -> Came:
        record = self._watched
        info = record.info if record else {}
        return remembered(
            record.word if record else None,
            tuple(info.get("run", ())) == self._party.run.identity,
            info.get("options") == self._party.options,
            time.monotonic() >= self._my_turn,
        )

    def _watch(self) -> Came:
        pid = self._file.holder()
        found = None
        for word in self._file.words() if pid is not None else ():
            if word.pid == pid:
                try:
                    found = SeenRecord(word)
                except OSError:
                    continue
                self._watched = found
        return self._waiting.look(pid, found)

    def _pause(self) -> Came:
        time.sleep(_POLL_SECONDS)
        return Came.DONE

    def _claim(self) -> Came:
        return Came.GOT if self._file.claim(shared=False) else Came.REFUSED

    def _share(self) -> Came:
        return Came.GOT if self._file.claim(shared=True) else Came.REFUSED

    def _announce(self) -> Came:
        self._give_word()
        return Came.DONE

    def _give_word(self) -> None:
        party = self._party
        info = {"pid": os.getpid(), "dataset": party.dataset, "root": self._root, "run": party.run.identity}
        more = {"options": party.options, "kept_until": party.kept_until}
        self._record = OwnRecord(info | more)
        self._given = GivenWord.of(os.getpid(), self._record.descriptor)
        if self.arena is not None:
            self._record.publish(self.arena.handle())
        self._file.give(self._given)

    def _fill(self) -> Came:
        assert self._record is not None
        try:
            self.arena = self._stage(self._record.tell)
        except BaseException as error:
            self.error = error
            return Came.FAILED
        return Came.DONE

    def _publish(self) -> Came:
        assert self._record is not None and self.arena is not None
        self._record.tell("checking", 0, 0)
        self._record.publish(self.arena.handle())
        return Came.DONE

    def _verify(self) -> Came:
        assert self.arena is not None
        self._check(self.arena)
        return Came.DONE

    def _attach(self) -> Came:
        assert self._ready is not None
        try:
            arena = attach(self._ready.handle)
            self._check(arena)
        except (FileNotFoundError, ProcessLookupError) as error:
            self._gone += 1
            self._waiting.reason = f"Process {self._ready.pid} says it holds the folder, and does not ({error})"
            return Came.GONE if self._gone < _MOST_GONE else Came.FAILED
        except (OSError, ValueError, ArenaDamaged) as error:
            self._waiting.reason = f"Attaching to the RAM of process {self._ready.pid} failed ({error})"
            return Came.FAILED
        self.arena = arena
        return Came.DONE

    def _let_go(self) -> Came:
        self._file.let_go()
        if self.arena is not None and self._record is not None:
            weakref.finalize(self.arena, _withdraw, self._file, self._given, self._record, os.getpid())
        return Came.DONE

    def _tell(self) -> Came:
        assert self._record is not None
        self._record.fail(str(self.error) or type(self.error).__name__)
        self._file.let_go()
        _withdraw(self._file, self._given, self._record, os.getpid())
        return Came.DONE

    def _failure(self, step: Step) -> StagerFailed:
        assert self._watched is not None
        pid, where = self._watched.pid, self._root or str(self._file.path)
        if step is Step.STOP_TOLD:
            return StagerFailed(
                f"Process {pid} could not stage the dataset for the other ranks.", where=where, why=self._watched.error
            )
        return StagerFailed(
            f"Process {pid} ended while it was staging the dataset for the other ranks.",
            where=where,
            why=f"the system has released its claim, and it left no dataset behind ({self._waiting.how_far})",
            fix="look for its error or an out-of-memory kill in the log of the system, then start again",
        )

    _PERFORM: Mapping[Step, Callable[[Any], Came]] = {
        Step.LOOK: _look,
        Step.ASK: _ask,
        Step.REMEMBER: _remember,
        Step.WATCH: _watch,
        Step.PAUSE: _pause,
        Step.CLAIM: _claim,
        Step.LOOK_AGAIN: _look,
        Step.ANNOUNCE: _announce,
        Step.FILL: _fill,
        Step.PUBLISH: _publish,
        Step.VERIFY: _verify,
        Step.SHARE: _share,
        Step.ATTACH: _attach,
        Step.JOIN: _announce,
        Step.LEAVE: _let_go,
        Step.RETRY: _let_go,
        Step.GIVE_UP: _let_go,
        Step.TELL: _tell,
    }


def _tell_of_shared(dataset: str, pid: int, arena: SharedArena) -> None:
    """Whoever staged it had a limit of its own: what it left out is told here, too."""
    files, size = arena.files, spoken_size(arena.header["bytes"])
    logger.info("(id=%s) Attached to the dataset in RAM of process %s: %d files, %s.", dataset, pid, files, size)
    run = current()
    if run is not None:
        told = {"files": files, "bytes": arena.header["bytes"], "bytes in RAM": sum(arena.segment_sizes)}
        run.measure(f"{STAGED}{dataset}", lambda: {**told, "staged by process": pid})
    if left := arena.header["left_out"]:
        left_size = spoken_size(arena.header["left_out_bytes"])
        logger.warning(
            "(id=%s) %d files, %s, did not fit where process %s staged it and are read from disk.",
            *(dataset, left, left_size, pid),
        )


def _withdraw(file: MeetingFile, word: GivenWord, record: OwnRecord, pid: int) -> None:
    # A child made by fork has a copy of the arena, but the word is its parent's.
    if os.getpid() == pid:
        file.take_back(word)
        record.close()
        try:
            file.remove_if_last()
        except OSError as error:
            logger.debug("%s stays: %s", file.path, error)


_held: weakref.WeakValueDictionary[str, SharedArena] = weakref.WeakValueDictionary()


def share(
    key: Key, party: Party, stage: Callable[[Told], SharedArena], check: Callable[[SharedArena], None]
) -> SharedArena | None:
    """The one arena of that key: this process's, another's, or staged here; None where files are read from disk."""
    path = meeting_path(key)
    with meeting_file(path).busy:
        arena = _held.get(str(path))
        if arena is None:
            arena = Meeting(path, party, stage, check, key.root).hold()
            if arena is not None:
                _held[str(path)] = arena
        return arena
