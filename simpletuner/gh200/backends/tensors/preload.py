"""Reads the entries of all caches ahead, while upstream loads its models; a read that somebody waits for goes first."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import batched
from queue import SimpleQueue
from typing import Any, get_args
from weakref import WeakSet

from tqdm import tqdm

from ...memory.limits import format_size
from .arena import Consumer
from .blocks import ArenaFull
from .listing import entries_of, samples_known
from .reader import How, Unreadable, read_entry
from .store import CacheStore

logger = logging.getLogger("gh200.cache")

MOST_THREADS = 8  # what a thread does between two reads holds the GIL; more of them only wait for it
LOOK_EVERY = 0.25
_STEP_BACK = 0.005
_END_WAIT = 5.0
_FIRST_WAIT = 1.0
AT_ONCE = 16  # files of a job: a lock that several threads want for each file costs more than the file
_CACHED = "cached already"
Job = tuple[tuple[str, ...], Consumer, bool]
Source = tuple[Any, Any, Consumer]  # a cache, its data backend, and who reads its entries


class Preload:
    """Threads that read and one that lists; a run waits for them for a moment before its first step and at its end."""

    def __init__(
        self,
        store: CacheStore,
        caches: Callable[[], Iterable[Source]],
        *,
        threads: int | None = None,
        shown: bool = True,
    ) -> None:
        """`caches` is asked again and again: which there are, upstream only knows once it has built them."""
        self._store, self._caches = store, caches
        self._listed: WeakSet[Any] = WeakSet()
        self._offered: set[str] = set()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stopping, self._last_look = threading.Event(), threading.Event()
        self._readers: list[threading.Thread] = []
        self._most = threads or max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))
        self._bar: Any = None
        self._shown = shown
        self._busy = 0
        self._busy_since = self._seconds = 0.0
        self._why_stopped = ""
        self._finished = False
        self._outcomes: Counter[str] = Counter()  # of every entry that was reached
        self.bytes = 0
        self.done = threading.Event()
        self._lister = self._started(self._list, "list")

    def training_begins(self) -> None:
        """All caches are built: what is there at the next look is all there will be."""
        self._last_look.set()
        # Where models load fast the first batch would overtake the readers, and read the same files once more.
        self.done.wait(_FIRST_WAIT)

    def end(self) -> None:
        """Stops the readers and waits for them for a moment."""
        self._stop("the run ended")
        self._lister.join(_END_WAIT)
        self._finish()

    @property
    def how(self) -> dict[str, int]:
        """Entries that were read, by the way they were read."""
        with self._lock:
            return {how: self._outcomes[how] for how in get_args(How) if self._outcomes[how]}

    @property
    def entries(self) -> int:
        """How many entries were read."""
        return sum(self.how.values())

    @property
    def left_out(self) -> Counter[str]:
        """How many entries were not read, by reason."""
        with self._lock:
            found = Counter({why: n for why, n in self._outcomes.items() if why not in (_CACHED, *get_args(How))})
            if self._finished:
                found["not reached"] = len(self._offered) - self._outcomes.total()
            return +found

    def report(self) -> dict[str, Any]:
        """Counts for telemetry."""
        return {
            "entries": self.entries, "offered": len(self._offered), "bytes": self.bytes, "seconds": round(self._seconds, 3), "threads": self._most,
            "finished": self.done.is_set(), "how": self.how, "left_out": dict(self.left_out),
        }  # fmt: skip

    def _started(self, work: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work,), name=f"gh200-preload-{name}", daemon=True)
        thread.start()
        return thread

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            # Nothing depends on it: what is not cached is read when it is needed.
            logger.warning("GH200 caches: reading ahead has stopped", exc_info=error)
            self._stop(f"{type(error).__name__}: {error}")

    def _list(self) -> None:
        """Each cache once it is known what will be read of it, and all at the end: other ranks may have written more."""
        last = False
        try:
            while not last and not self._stopping.is_set():
                last = self._last_look.is_set()
                for cache, backend, consumer in self._caches():
                    if last or (cache not in self._listed and samples_known(cache)):
                        self._listed.add(cache)
                        self._offer(entries_of(cache), consumer, bool(getattr(backend, "compress_cache", False)))
                self._show()
                self._last_look.wait(LOOK_EVERY)
        finally:
            for _ in self._readers:
                self._jobs.put(None)
        for reader in self._readers:
            while reader.is_alive():
                self._show()
                reader.join(LOOK_EVERY)
        self._finish()

    def _show(self) -> None:
        """By this thread alone, four times a second: a child that upstream forks meanwhile could inherit tqdm's lock."""
        if not self._shown or not self._offered:
            return
        if self._bar is None:
            self._bar = tqdm(total=0, desc="GH200 caches: reading ahead", unit="entries", leave=False, disable=None)
        with self._lock:
            self._bar.total, self._bar.n = len(self._offered), self._outcomes.total()
        self._bar.refresh()

    def _offer(self, paths: list[str], consumer: Consumer, compressed: bool) -> None:
        new = [path for path in paths if path not in self._offered]
        self._offered.update(new)
        for some in batched(new, AT_ONCE):
            self._jobs.put((some, consumer, compressed))
        if new and not self._readers:
            self._readers = [self._started(self._read, f"read-{number}") for number in range(self._most)]

    def _read(self) -> None:
        for job in iter(self._jobs.get, None):
            with self._lock:
                if not self._busy:
                    self._busy_since = time.monotonic()
                self._busy += 1
            outcomes: Counter[str] = Counter()
            size = 0
            try:
                size = self._read_job(job, outcomes)
            finally:
                with self._lock:
                    self._busy -= 1
                    if not self._busy:
                        self._seconds += time.monotonic() - self._busy_since
                    self._outcomes += outcomes
                    self.bytes += size

    def _read_job(self, job: Job, outcomes: Counter[str]) -> int:
        """Counts how each entry ended; returns the bytes that were read."""
        (paths, consumer, compressed), store, size = job, self._store, 0
        arena, seen = store.arena(consumer), store.changes
        for path in paths:
            if store.has(path):
                outcomes[_CACHED] += 1
                continue
            if not self._may_go_on():
                break
            try:
                found = read_entry(path, arena, compressed=compressed)
            except (ArenaFull, OSError, Unreadable) as error:
                outcomes[self._unread(path, error)] += 1
                continue
            if store.admit_ahead(path, found, consumer, seen):
                outcomes[found.how] += 1
                size += found.bytes
            else:
                outcomes["changed meanwhile or of a kind that is not cached"] += 1
        return size

    def _may_go_on(self) -> bool:
        while self._store.demands and not self._stopping.is_set():
            self._stopping.wait(_STEP_BACK)
        return not self._stopping.is_set()

    def _unread(self, path: str, error: Exception) -> str:
        if isinstance(error, ArenaFull):
            self._stop(str(error))
            return "without space"
        if isinstance(error, FileNotFoundError):
            return "vanished"
        logger.debug("GH200 caches: %s is not read ahead: %s", path, error)
        return "unreadable"

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopping.is_set() or self.done.is_set():
                return
            self._why_stopped = why
            self._stopping.set()
        self._last_look.set()

    def _finish(self) -> None:
        with self._lock:
            if self._finished:
                return
            self._finished = True
        if self._bar is not None:
            self._bar.close()
        if self.entries or self.left_out:
            logger.log(logging.INFO if self._shown else logging.DEBUG, "GH200 caches: %s", self.summary())
        self.done.set()

    def summary(self) -> str:
        """One line for the log."""
        seconds = max(self._seconds, 1e-9)
        speed = f" ({format_size(self.bytes / seconds)}/s)" if seconds >= 0.1 else ""
        text = f"read ahead {self.entries} entries, {format_size(self.bytes)} in {seconds:.1f} s{speed}"
        left = ", ".join(f"{count} {why}" for why, count in sorted(self.left_out.items()))
        stopped = f" (stopped: {self._why_stopped})" if self._why_stopped else ""
        return f"{text}; left out: {left}{stopped}" if left else f"{text}; nothing was left out{stopped}"
