"""Cache entries as tensors in arenas: admitted once, served as views in fresh containers, dropped when changed."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import torch

from ...config.cache_options import CacheOptions
from ...memory import hints
from ...memory.driver import CudaError, Driver, load_driver
from ...memory.family import platform
from ...memory.hbm import free_and_total
from ...memory.pages import aligned
from .arena import ArenaStats, Consumer, TensorArena
from .blocks import ArenaFull, CacheBudget, Slot
from .entry import Entry, build, copied_in
from .reader import NotPlain, Read, Signature, Unreadable, read_entry, signature_of

logger = logging.getLogger("gh200.cache")

MISS: Final = object()
TRIM_EVERY = 16 << 20
NEVER_COMPARED = -1


def file_signature(path: str) -> Signature:
    """What identifies a version of a file; None where there is none."""
    try:
        return signature_of(os.stat(path))
    except OSError:
        return None


def _shared_limit(options: CacheOptions) -> int | None:
    """The oversubscription ratio times the GPU's memory: the bound that caches share with torch's pools.

    In one pool there is nothing beyond it, and training comes out of it too: caches may have half of what is free.
    """
    driver = load_driver()
    if not isinstance(driver, Driver):
        return None
    try:
        free, total = free_and_total(hints.cuda_device())
        return free // 2 if platform(hints.cuda_device()).one_pool else int(total * options.oversubscription_ratio)
    except CudaError as error:
        logger.warning("GH200 caches: the GPU's memory size is unknown (%s); the ratio bounds nothing", error)
        return None


class CacheStore:
    """All unified-memory entries of this process, by file; caches that share a directory share entries."""

    def __init__(
        self, options: CacheOptions, pools: Callable[[], int] = lambda: 0, *, in_managed_memory: bool = True
    ) -> None:
        self._budget = CacheBudget(options.memory_limit, _shared_limit(options), pools)
        self._in_managed_memory = in_managed_memory
        self._arenas: dict[Consumer, TensorArena] = {}
        self._entries: dict[str, Entry] = {}
        self._by_pointer: dict[int, Slot] = {}
        self._lock = threading.RLock()
        self._generation = 0
        self._said: set[str] = set()
        self._untrimmed = 0
        self.changes = 0
        self._dropped_at: dict[str, int] = {}
        self._coming: set[str] = set()
        self._all_dropped_at = 0
        self._process = os.getpid()
        self.counts: Counter[str] = Counter()
        self.demands = 0  # reads from disk that a caller waits for now; preloading pauses meanwhile
        self._disk_reads = self._disk_reads_before_training = 0
        self.waited = 0.0
        # Counts without a lock: next() is atomic, and each look at it adds one that is subtracted again.
        self._hits, self._looks = count(), 0

    @property
    def usable(self) -> bool:
        """False in a forked child: it has no managed memory, and a lock may be taken for ever."""
        return os.getpid() == self._process

    def serve(self, key: str) -> Any:
        """A fresh copy of the entry's containers around views of its tensors, or MISS; takes no lock on a hit."""
        entry = self._entries.get(key)
        if entry is None:
            return MISS
        if entry.generation != self._generation and not self._still_valid(key, entry):
            return MISS
        for slot in entry.slots:
            if slot.written_to:
                self._say(key, f"GH200 cache entry {key} was written to in place; dropped and read from its file again")
                self.count("written_to")
                self.drop(key)
                return MISS
        next(self._hits)
        return build(entry.template)

    @contextmanager
    def demanded(self) -> Iterator[None]:
        """Around a read from disk that a caller waits for."""
        began = time.monotonic()
        with self._lock:
            self.demands += 1
        try:
            yield
        finally:
            with self._lock:
                self.demands -= 1
                self._disk_reads += 1
                self.waited += time.monotonic() - began

    def training_begins(self) -> None:
        """Disk reads from here on are those of training."""
        self._disk_reads_before_training = self._disk_reads

    def hits(self) -> int:
        """How many reads were served from memory."""
        with self._lock:
            seen, self._looks = next(self._hits) - self._looks, self._looks + 1
        return seen

    def _still_valid(self, key: str, entry: Entry) -> bool:
        """After upstream has listed files, an entry is checked once against the file it came from."""
        generation = self._generation
        if entry.signature is None or file_signature(key) != entry.signature:
            self.count("changed_on_disk")
            self.drop(key)
            return False
        entry.generation = generation
        return True

    def has(self, key: str) -> bool:
        """Whether there is an entry, compared with its file or not, or one is about to be."""
        return key in self._entries or key in self._coming

    def holds(self, key: str) -> bool:
        """Whether there is a valid entry."""
        entry = self._entries.get(key)
        return entry is not None and (entry.generation == self._generation or self._still_valid(key, entry))

    def unchanged(self, key: str, seen: int) -> bool:
        """Whether nothing wrote or deleted this entry's file since there were `seen` changes, as far as we saw."""
        return max(self._dropped_at.get(key, 0), self._all_dropped_at) <= seen

    def admit(self, key: str, value: Any, consumer: Consumer, seen: int, signature: Signature) -> bool:
        """Cache a value that was loaded after `seen` changes; False where it cannot or must not be cached."""
        slots: list[Slot] = []
        with self._lock:
            # Something was written or deleted while the file was read: what was read may be the old content.
            if key in self._entries or not self.unchanged(key, seen):
                return key in self._entries
            arena = self.arena(consumer)
            try:
                template = copied_in(value, arena, slots)
            except (NotPlain, ArenaFull) as reason:
                for slot in slots:
                    arena.release(slot)
                self.rejected(reason)
                return False
            self._enter(key, Entry(template, tuple(slots), arena, self._generation, signature))
            self._trim(sum(slot.span for slot in slots))
            return True

    def admit_ahead(self, key: str, read: Read, consumer: Consumer, seen: int) -> bool:
        """Cache what was preloaded: it is compared with its file when it is served for the first time."""
        if read.how == "torch":
            admitted = self.admit(key, read.value, consumer, seen, read.signature)
            entry = self._entries.get(key)
            if admitted and entry is not None:
                entry.generation = NEVER_COMPARED
            return admitted
        arena = self.arena(consumer)
        with self._lock:
            if key not in self._entries and self.unchanged(key, seen):
                self._enter(key, Entry(read.value, read.slots, arena, NEVER_COMPARED, read.signature))
                return True
        for slot in read.slots:
            arena.release(slot)
        return False

    def _enter(self, key: str, entry: Entry) -> None:
        for slot in entry.slots:
            self._by_pointer[slot.tensor.data_ptr()] = slot
        self._entries[key] = entry
        self.count("admitted")

    def _trim(self, admitted: int) -> None:
        """Give back the holes that loading leaves; the small objects kept between them stop malloc from reusing them."""
        self._untrimmed += admitted
        if self._untrimmed >= TRIM_EVERY:
            self._untrimmed = 0
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def rejected(self, reason: Exception) -> None:
        """Counts an entry that was not cached, and warns once per reason."""
        full = isinstance(reason, ArenaFull)
        self.count("refused_full" if full else "refused_type")
        rest = "later entries are read from disk" if full else "such entries are read from disk every time"
        self._say(type(reason).__name__, f"GH200 caches: {reason}; {rest}")

    def arena(self, consumer: Consumer) -> TensorArena:
        """The arena of entries for that consumer, made at the first call."""
        with self._lock:
            if consumer not in self._arenas:
                self._arenas[consumer] = TensorArena(self._budget, consumer, in_managed_memory=self._in_managed_memory)
            return self._arenas[consumer]

    def drop(self, key: str) -> int:
        """Drop an entry, also for reads in progress; returns the number of this change."""
        with self._lock:
            self.changes += 1
            self._dropped_at[key] = self.changes
            entry = self._entries.pop(key, None)
            if entry is not None:
                for slot in entry.slots:
                    self._by_pointer.pop(slot.tensor.data_ptr(), None)
                    entry.arena.release(slot)
            return self.changes

    def admit_written(self, key: str, consumer: Consumer, began: int, *, packed: bool) -> None:
        """Cache what this process has written, unless the file changed since change number `began`; read back from the file."""
        with self._lock:
            alone = self.unchanged(key, began)
            # Again: a reader may have taken the old content in while the new one was written.
            self.drop(key)
            seen = self.changes
            if not alone:
                return
            self._coming.add(key)
        try:
            found = read_entry(key, self.arena(consumer), compressed=packed)
            if self.admit_ahead(key, found, consumer, seen):
                self.count("held_when_written")
        except ArenaFull as reason:
            self.rejected(reason)
        except (OSError, Unreadable) as error:
            logger.debug("GH200 caches: %s is not cached: %s", key, error)
        finally:
            self._coming.discard(key)

    def listed(self) -> None:
        """Upstream looked at the files: from now on each entry is compared with its file before it is served."""
        with self._lock:
            self._generation += 1

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """The cached tensor this one is a view of, on either device; managed pointers are the same on both."""
        slot = self._by_pointer.get(tensor.data_ptr())
        if slot is None or tensor.dtype != slot.tensor.dtype or tensor.numel() > slot.tensor.numel():
            return None
        return None if slot.written_to else slot

    def count(self, what: str) -> None:
        """Adds one to a counter of the report."""
        with self._lock:
            self.counts[what] += 1

    def _say(self, once: str, message: str) -> None:
        with self._lock:
            if once in self._said:
                return
            self._said.add(once)
        logger.warning(message)

    def drop_for_pools(self) -> None:
        """Drops the newest entries where torch's pools have grown into the shared bound."""
        if not self._budget.excess():
            return
        with self._lock:
            arenas = self._arenas.values()
            freed = sum(arena.shrink() for arena in arenas)
            # What was dropped before and is still being read is freed by its last reader.
            wanted, dropped = self._budget.excess() - sum(arena.dropped_in_use for arena in arenas), 0
            for key in reversed(tuple(self._entries)):
                if wanted <= 0:
                    break
                wanted -= sum(aligned(slot.span) for slot in self._entries[key].slots)
                self.drop(key)
                dropped += 1
            freed += sum(arena.shrink() for arena in arenas)
            self.counts["dropped_for_pools"] += dropped
        logger.debug("GH200 caches: %d entries were dropped for torch's pools, %d bytes freed", dropped, freed)
        self._say(
            "pools",
            f"GH200 caches: torch's pools have grown, and come first: {dropped} entries are dropped; they and others "
            "that do not fit are read from disk",
        )

    def slots(self) -> list[Slot]:
        """Those of all entries."""
        with self._lock:
            return [slot for entry in self._entries.values() for slot in entry.slots]

    @property
    def managed(self) -> bool:
        """Whether any arena is managed memory."""
        return any(arena.managed for arena in self._arenas.values())

    def share_hbm(self) -> None:
        """Advises the arenas of their share of HBM."""
        for arena in tuple(self._arenas.values()):
            arena.share_hbm()

    def may_move(self, pointer: int, size: int) -> bool:
        """Whether memory may go to HBM: cached entries within their share, and memory of others."""
        return all(arena.may_move(pointer, size) for arena in tuple(self._arenas.values()))

    def stats(self) -> dict[str, ArenaStats]:
        """Sizes of each arena."""
        return {consumer: arena.stats() for consumer, arena in tuple(self._arenas.items())}

    def _places(self) -> dict[str, dict[str, int]]:
        found: dict[str, Counter[str]] = {}
        for arena in tuple(self._arenas.values()):
            for question, sides in arena.places().items():
                found.setdefault(question, Counter()).update(sides)
        return {question: dict(sides) for question, sides in found.items()}

    def report(self) -> dict[str, Any]:
        """Counters and sizes of all entries."""
        stats = self.stats().values()
        return {
            "entries": len(self._entries),
            "hits": self.hits(),
            "disk_reads": self._disk_reads,
            "disk_reads_in_training": self._disk_reads - self._disk_reads_before_training,
            "managed": any(item.managed for item in stats),
            "payload_bytes": sum(item.payload_bytes for item in stats),
            "packed_bytes": self._budget.used,
            "arena_bytes": sum(item.reserved_bytes for item in stats),
            "limit_bytes": self._budget.limit,
            "waited_seconds": round(self.waited, 3),
            "places": self._places(),
            "counts": dict(self.counts),
        }

    def close(self) -> None:
        """Drops all entries and frees their blocks."""
        with self._lock:
            self.changes += 1
            self._all_dropped_at = self.changes
            self._by_pointer.clear()
            self._entries.clear()
            left = sum(arena.close() for arena in self._arenas.values())
            if left:
                logger.debug("GH200 caches: %d blocks are freed when the tensors that use them are gone", left)
