"""One staged copy for all ranks of a run on one machine: the first rank there stages, the others attach to its memory.

They exchange a few short values through the store of the process group, not through collectives: staging may take longer
than the timeout of a collective, and the store works with every backend. A process that is not in a group stages for itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torch import distributed
from torch.distributed.distributed_c10d import _get_default_store

from ...errors import GH200Error, printable
from ...memory.limits import format_size
from ...runtime import STAGED, current
from .arena import Handle, SharedArena, attach

logger = logging.getLogger("gh200.in_memory")

_PREFIX = "gh200/datasets"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_SECONDS = 0.1
_REPORT_SECONDS = 60.0
# The store may live in the process that fails, which must not end before the others have read why.
_ERROR_READ_SECONDS = 10.0

Stage = Callable[[], SharedArena]


class StagerFailed(GH200Error):
    """The rank that stages for this machine reported an error."""


class StagerEnded(GH200Error):
    """The rank that stages for this machine ended without a result."""


def machine() -> list[str]:
    """Where a process number means the same, and memory of this user's processes can be opened."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = platform.node()
    return [boot, os.readlink("/proc/self/ns/pid"), str(os.geteuid())]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class RankGroup:
    """The ranks of one process group that run on this machine; the lowest of them is the owner."""

    def __init__(self, store: Any, rank: int, local_ranks: int) -> None:
        self.store, self.rank, self.local_ranks = store, rank, local_ranks
        # A process may train several times over one store; each rank counts for itself, and all come to the same number.
        self._prefix = f"{_PREFIX}/{store.add(f'{_PREFIX}/{rank}', 1)}"
        here = machine()
        store.set(f"{self._prefix}/rank{rank}", json.dumps([here, os.getpid()]))
        self.owner, self.owner_pid = rank, os.getpid()
        for lower in range(rank):
            there, pid = self._process_of(lower)
            if there == here:
                self.owner, self.owner_pid = lower, pid
                break
        self._calls: Counter[str] = Counter()

    def _process_of(self, rank: int) -> tuple[list[str], int]:
        try:
            there, pid = json.loads(self.store.get(f"{self._prefix}/rank{rank}"))
        except RuntimeError as error:
            raise StagerEnded(
                f"Rank {rank} did not come to share the in-memory datasets of this run.",
                why=str(error),
                fix="look for its error, then start again",
            ) from error
        return there, pid

    def arena(
        self, dataset: str, root: str, codec: str | None, known: SharedArena | None, stage: Stage
    ) -> SharedArena | None:
        """Every rank calls it once for each dataset; what the owner answers decides, also whether it is staged again."""
        name = hashlib.blake2b(f"{codec} {os.fsencode(root).hex()}".encode(), digest_size=12).hexdigest()
        self._calls[name] += 1
        key = f"{self._prefix}/{self.owner}/{name}/{self._calls[name]}"
        if self.rank == self.owner:
            return self._staged(key, known, stage)
        handle = self._handle(key, dataset, root)
        if known is not None and known.token == handle.token:
            return known
        return _attached(dataset, handle)

    def _staged(self, key: str, known: SharedArena | None, stage: Stage) -> SharedArena:
        try:
            arena = known or stage()
        except BaseException as error:
            # A store that is gone must not hide the error.
            with suppress(RuntimeError):
                self._report_error(key, error)
            raise
        self.store.set(key, json.dumps(arena.handle().as_dict()))
        return arena

    def _report_error(self, key: str, error: BaseException) -> None:
        self.store.set(key, json.dumps({"error": str(error) or type(error).__name__}))
        until = time.monotonic() + (_ERROR_READ_SECONDS if isinstance(error, Exception) else 0)
        while self.store.add(f"{key}/read", 0) < self.local_ranks - 1 and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)

    def _handle(self, key: str, dataset: str, root: str) -> Handle:
        try:
            self._wait(key, dataset, root)
            answer = json.loads(self.store.get(key))
            self.store.add(f"{key}/read", 1)
        except RuntimeError as error:
            self._ended(root, f"the store of the process group does not answer ({error})")
        if "error" in answer:
            raise StagerFailed(
                f'Rank {self.owner} could not stage the in-memory dataset "{dataset}" for the other ranks of this machine.',
                where=printable(root),
                why=answer["error"],
            )
        return Handle.from_dict(answer)

    def _wait(self, key: str, dataset: str, root: str) -> None:
        began = said = time.monotonic()
        logger.info("(id=%s) Waiting for rank %d (process %d) to stage it.", dataset, self.owner, self.owner_pid)
        while not self.store.check([key]):
            # Asked in this order, a result that came just before the end is not missed.
            if not _is_alive(self.owner_pid) and not self.store.check([key]):
                self._ended(root, "it left no dataset and no error behind")
            now = time.monotonic()
            if now - said > _REPORT_SECONDS:
                said = now
                waited = (dataset, self.owner, self.owner_pid, now - began)
                logger.warning("(id=%s) Rank %d (process %d) is still staging after %.0f s.", *waited)
            time.sleep(_POLL_SECONDS)

    def _ended(self, root: str, why: str) -> NoReturn:
        raise StagerEnded(
            f"Rank {self.owner} (process {self.owner_pid}) ended while it was staging the dataset for the other ranks.",
            where=printable(root),
            why=why,
            fix="look for its error, or an out-of-memory kill in the system log, then start again",
        )


def _attached(dataset: str, handle: Handle) -> SharedArena | None:
    try:
        arena = attach(handle)
    except (OSError, GH200Error) as error:
        reason = (dataset, handle.pid, error)
        logger.warning("(id=%s) Attaching to the RAM of process %s failed (%s): reading from disk.", *reason)
        return None
    files, size = arena.files, arena.header["bytes"]
    shown = (dataset, handle.pid, files, format_size(size))
    logger.info("(id=%s) Attached to the dataset in RAM of process %s: %d files, %s.", *shown)
    if (run := current()) is not None:
        values = {"files": files, "bytes": size, "bytes in RAM": sum(arena.segment_sizes)}
        run.measure(f"{STAGED}{dataset}", lambda: {**values, "staged by process": handle.pid})
    return arena


_attached_arenas: weakref.WeakValueDictionary[tuple[str, str | None], SharedArena] = weakref.WeakValueDictionary()
_group: RankGroup | None = None


def shared_arena(dataset: str, root: str, codec: str | None, stage: Stage) -> SharedArena | None:
    """The one arena of a real directory and codec; None where this process has to read from disk."""
    known, group = _attached_arenas.get((root, codec)), _process_group()
    arena = (known or stage()) if group is None else group.arena(dataset, root, codec, known, stage)
    if arena is not None:
        _attached_arenas[root, codec] = arena
    return arena


def _process_group() -> RankGroup | None:
    global _group
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() < 2:
        return None
    store = _get_default_store()
    if _group is None or _group.store is not store:
        ranks = distributed.get_world_size()
        _group = RankGroup(store, distributed.get_rank(), int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    return _group
