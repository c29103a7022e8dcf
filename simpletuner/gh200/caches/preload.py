"""Reads the entries of all caches ahead, while upstream loads its models; a read that somebody waits for goes first."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from tqdm import tqdm

from ..memory.limits import spoken_size
from .arena import Consumer
from .blocks import ArenaFull
from .listing import CacheFiles
from .reader import Read, Unreadable, read_entry
from .store import CacheStore

logger = logging.getLogger("gh200.cache")

MOST_THREADS = 8  # what a thread does between two reads holds the GIL; more of them only wait for it
LOOK_EVERY = 0.25
CHECK_EVERY = 256 << 20
_END_WAIT = 5.0
_FIRST_WAIT = 1.0
AT_ONCE = 16
Job = tuple[str, Consumer, bool]
Source = tuple[Any, Any, Consumer]  # a cache, its data backend, and who reads its entries


class Tally:
    """What one thread did since it last told."""

    def __init__(self) -> None:
        self.how: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.bytes = self.reached = 0


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
        self._files: WeakKeyDictionary[Any, CacheFiles] = WeakKeyDictionary()
        self._jobs: deque[Job] = deque()
        self._offered: set[str] = set()
        self._lock = threading.Lock()
        self._stopping, self._last_look, self._work = threading.Event(), threading.Event(), threading.Event()
        self._nobody_waits, self._idle = threading.Event(), threading.Event()
        self._nobody_waits.set()
        self._idle.set()
        self._waiting = self._unchecked = self._busy = 0
        self._threads: list[threading.Thread] = []
        self._most = threads or max(1, min(MOST_THREADS, len(os.sched_getaffinity(0))))
        self._bar: Any = None
        self._shown = shown
        self._busy_since = self._seconds = 0.0
        self._why_stopped = ""
        self._finished = False
        self.entries = self.bytes = 0
        self.how: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.done = threading.Event()
        store.stepping_back = self._stepping_back
        self._start(self._list, "list")

    def training_begins(self) -> None:
        """All caches are built: what is there at the next look is all there will be."""
        self._last_look.set()
        # Where models load fast the first batch would overtake the readers, and read the same files once more.
        self.done.wait(_FIRST_WAIT)

    def end(self) -> None:
        self._stop("the run ended")
        until = time.monotonic() + _END_WAIT
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._finish()

    def report(self) -> dict[str, Any]:
        return {
            "entries": self.entries, "offered": len(self._offered), "bytes": self.bytes, "seconds": round(self._seconds, 3), "threads": self._most,
            "finished": self.done.is_set(), "how": dict(self.how), "left_out": dict(self.left_out),
        }  # fmt: skip

    @contextmanager
    def _stepping_back(self) -> Iterator[None]:
        with self._lock:
            self._waiting += 1
            self._nobody_waits.clear()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._nobody_waits.set()

    def _start(self, work: Any, name: str) -> None:
        thread = threading.Thread(target=self._guarded, args=(work,), name=f"gh200-preload-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            # Nothing depends on it: what is not held is read when it is needed.
            logger.warning("GH200 caches: reading ahead has stopped", exc_info=error)
            self._stop(f"{type(error).__name__}: {error}")

    def _list(self) -> None:
        while not self._stopping.is_set():
            last = self._last_look.is_set()
            for cache, backend, consumer in self._caches():
                files = self._files.setdefault(cache, CacheFiles())
                self._offer(files.changed(cache, now=last), consumer, bool(getattr(backend, "compress_cache", False)))
            self._show()
            if last:
                break
            self._last_look.wait(LOOK_EVERY)
        while not self._stopping.is_set() and not self._idle.wait(LOOK_EVERY):
            self._show()
        # Stopped or not: what the readers have in hand belongs to the sum, unless a disk hangs.
        self._idle.wait(_END_WAIT)
        self._finish()

    def _show(self) -> None:
        """By this thread alone, four times a second: a child that upstream forks meanwhile could inherit tqdm's lock."""
        if not self._shown or not self._offered or self.done.is_set():
            return
        if self._bar is None:
            self._bar = tqdm(total=0, desc="GH200 caches: reading ahead", unit="entries", leave=False, disable=None)
        self._bar.total, self._bar.n = len(self._offered), len(self._offered) - len(self._jobs)
        self._bar.refresh()

    def _offer(self, paths: list[str], consumer: Consumer, compressed: bool) -> None:
        new = [path for path in paths if path not in self._offered]
        self._offered.update(new)
        if not new:
            return
        with self._lock:
            self._idle.clear()
            self._jobs.extend((path, consumer, compressed) for path in new)
        self._work.set()
        for number in range(len(self._threads) - 1, self._most):
            self._start(self._read, f"read-{number}")

    def _read(self) -> None:
        while not self._stopping.is_set() and not self.done.is_set():
            jobs = self._next()
            if not jobs:
                self._work.clear()
                if not self._jobs:
                    self._work.wait(LOOK_EVERY)
                continue
            tally = Tally()
            try:
                self._some(jobs, tally)
            finally:
                self._ready(tally, len(jobs) - tally.reached)

    def _next(self) -> list[Job]:
        """Some jobs of one kind at once: a lock that several threads want for each file costs more than the file."""
        with self._lock:
            taken: list[Job] = []
            while self._jobs and len(taken) < AT_ONCE and (not taken or self._jobs[0][1:] == taken[0][1:]):
                taken.append(self._jobs.popleft())
            if taken:
                if not self._busy:
                    self._busy_since = time.monotonic()
                self._busy += 1
            return taken

    def _ready(self, tally: Tally, not_reached: int) -> None:
        with self._lock:
            self._busy -= 1
            now = time.monotonic()
            self._seconds, self._busy_since = self._seconds + now - self._busy_since, now
            self.entries += tally.how.total()
            self.bytes += tally.bytes
            self._unchecked -= tally.bytes
            self.how += tally.how
            self.left_out += tally.left_out
            if not_reached:
                self.left_out["not reached"] += not_reached
            if not self._busy and not self._jobs:
                self._idle.set()

    def _some(self, jobs: list[Job], tally: Tally) -> None:
        store, (_, consumer, compressed) = self._store, jobs[0]
        arena, seen = store.arena(consumer), store.changes
        paths = [path for path, *_ in jobs if not store.has(path)]
        tally.reached = len(jobs) - len(paths)
        if paths and self._due() and (missing := arena.lacks(CHECK_EVERY)):
            self._take(paths[0], ArenaFull(f"free memory has become too small: {missing}"), consumer, seen, tally)
        for path in paths:
            if not self._may_go_on():
                return
            found: Read | Exception
            try:
                found = read_entry(path, arena, compressed=compressed)
            except (ArenaFull, OSError, Unreadable) as error:
                found = error
            self._take(path, found, consumer, seen, tally)

    def _may_go_on(self) -> bool:
        while not self._stopping.is_set() and not self._nobody_waits.is_set():
            self._nobody_waits.wait(LOOK_EVERY)
        return not self._stopping.is_set()

    def _take(self, path: str, found: Read | Exception, consumer: Consumer, seen: int, tally: Tally) -> None:
        tally.reached += 1
        if isinstance(found, Read):
            if self._store.admit_ahead(path, found, consumer, seen):
                tally.how[found.how] += 1
                tally.bytes += found.bytes
            else:
                tally.left_out["changed meanwhile or of a kind that is not held"] += 1
        elif isinstance(found, ArenaFull):
            tally.left_out["without room"] += 1
            self._stop(str(found))
        elif isinstance(found, FileNotFoundError):
            tally.left_out["vanished"] += 1
        else:
            tally.left_out["unreadable"] += 1
            logger.debug("GH200 caches: %s is not read ahead: %s", path, found)

    def _due(self) -> bool:
        # Without a lock: a look at the machine's memory more or less does no harm.
        due = self._unchecked <= 0
        if due:
            self._unchecked = CHECK_EVERY
        return due

    def _stop(self, why: str) -> None:
        with self._lock:
            if self._stopping.is_set() or self.done.is_set():
                return
            self._why_stopped = why
            if self._jobs:
                self.left_out["not reached"] += len(self._jobs)
                self._jobs.clear()
            if not self._busy:
                self._idle.set()
            self._stopping.set()
        self._work.set()
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
        seconds = max(self._seconds, 1e-9)
        speed = f" ({spoken_size(self.bytes / seconds)}/s)" if seconds >= 0.1 else ""
        text = f"read ahead {self.entries} entries, {spoken_size(self.bytes)} in {seconds:.1f} s{speed}"
        left = ", ".join(f"{count} {why}" for why, count in sorted(self.left_out.items()))
        stopped = f" (stopped: {self._why_stopped})" if self._why_stopped else ""
        return f"{text}; left out: {left}{stopped}" if left else f"{text}; nothing was left out{stopped}"
