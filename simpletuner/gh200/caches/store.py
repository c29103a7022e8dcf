"""Cache entries held as tensors in arenas: admitted once, served as views in fresh containers, dropped when changed."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import torch

from ..memory import hints as uvm
from ..memory.driver import CudaError, Driver, load_driver
from ..settings.cache_options import CacheOptions
from .arena import ArenaStats, Consumer, TensorArena
from .blocks import ArenaFull, CacheBudget, Slot, holdable

logger = logging.getLogger("gh200.cache")

MISS: Final = object()
TRIM_EVERY = 16 << 20
Signature = tuple[int, int, int] | None
_PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size})
_BUILDERS: dict[type, Callable[[Any], Any]] = {
    Slot: lambda slot: slot.tensor.detach(),
    dict: lambda node: {key: _build(value) for key, value in node.items()},
    list: lambda node: [_build(value) for value in node],
    tuple: lambda node: tuple(_build(value) for value in node),
}


def _build(node: Any) -> Any:
    builder = _BUILDERS.get(type(node))
    return node if builder is None else builder(node)


class NotHoldable(Exception):
    """An entry has a part that a view cannot stand for; it is read from its file every time."""


class Entry:
    __slots__ = ("arena", "generation", "signature", "slots", "template")

    def __init__(
        self, template: Any, slots: tuple[Slot, ...], arena: TensorArena, generation: int, signature: Signature
    ) -> None:
        self.template, self.slots, self.arena = template, slots, arena
        self.generation, self.signature = generation, signature


def file_signature(path: str) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def byte_limit(options: CacheOptions) -> int | None:
    """The configured limit, or the oversubscription ratio times the GPU's memory, whichever is smaller."""
    bounds = [] if options.memory_limit is None else [options.memory_limit]
    driver = load_driver()
    if isinstance(driver, Driver):
        try:
            bounds.append(int(driver.memory_info(uvm.cuda_device())[1] * options.oversubscription_ratio))
        except CudaError as error:
            logger.warning("GH200 caches: the GPU's memory size is unknown (%s); the ratio bounds nothing", error)
    return min(bounds) if bounds else None


class CacheStore:
    """All unified-memory entries of this process, by file; caches that share a directory share entries."""

    def __init__(self, options: CacheOptions) -> None:
        self._budget = CacheBudget(byte_limit(options))
        self._arenas: dict[Consumer, TensorArena] = {}
        self._entries: dict[str, Entry] = {}
        self._by_pointer: dict[int, Slot] = {}
        self._lock = threading.RLock()
        self._generation = 0
        self._said: set[str] = set()
        self._untrimmed = 0
        self.changes = 0
        self._process = os.getpid()
        self.counts: Counter[str] = Counter()
        # Counts without a lock: stepping it is atomic, and looking at it is a step that is taken off again.
        self._hits, self._looks = count(), 0

    @property
    def usable(self) -> bool:
        """Managed memory is not there in a forked child, and the child cannot know who held a lock when it was made."""
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
                self._count("written_to")
                self.drop(key)
                return MISS
        next(self._hits)
        return _build(entry.template)

    def hits(self) -> int:
        with self._lock:
            seen, self._looks = next(self._hits) - self._looks, self._looks + 1
        return seen

    def _still_valid(self, key: str, entry: Entry) -> bool:
        """After upstream has listed files, an entry is checked once against the file it came from."""
        generation = self._generation
        if entry.signature is None or file_signature(key) != entry.signature:
            self._count("changed_on_disk")
            self.drop(key)
            return False
        entry.generation = generation
        return True

    def holds(self, key: str) -> bool:
        entry = self._entries.get(key)
        return entry is not None and (entry.generation == self._generation or self._still_valid(key, entry))

    def admit(self, key: str, value: Any, consumer: Consumer, seen: int, signature: Signature) -> bool:
        """Hold a value that was loaded after `seen` changes; False where it cannot or must not be held."""
        slots: list[Slot] = []
        with self._lock:
            # Something was written or deleted while the file was read: what was read may be the old content.
            if seen != self.changes or key in self._entries:
                return key in self._entries
            arena = self._arena(consumer)
            try:
                template = self._take_in(value, arena, slots)
            except (NotHoldable, ArenaFull) as reason:
                for slot in slots:
                    arena.release(slot)
                self._refused(reason)
                return False
            for slot in slots:
                self._by_pointer[slot.tensor.data_ptr()] = slot
            self._entries[key] = Entry(template, tuple(slots), arena, self._generation, signature)
            self._count("admitted")
            self._trim(sum(slot.span for slot in slots))
            return True

    def _trim(self, admitted: int) -> None:
        """Give back the holes that loading leaves; the small objects kept between them stop malloc from reusing them."""
        self._untrimmed += admitted
        if self._untrimmed >= TRIM_EVERY:
            self._untrimmed = 0
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def _take_in(self, node: Any, arena: TensorArena, slots: list[Slot]) -> Any:
        kind = type(node)
        if kind in _PLAIN_TYPES:
            return node
        if isinstance(node, torch.Tensor) and holdable(node):
            slots.append(arena.hold(node))
            return slots[-1]
        if kind is dict:
            return {key: self._take_in(item, arena, slots) for key, item in node.items()}
        if kind in (list, tuple):
            return kind(self._take_in(item, arena, slots) for item in node)
        raise NotHoldable(f"an entry holds a {kind.__module__}.{kind.__qualname__}")

    def _refused(self, reason: Exception) -> None:
        full = isinstance(reason, ArenaFull)
        self._count("refused_full" if full else "refused_type")
        rest = "later entries are read from disk" if full else "such entries are read from disk every time"
        self._say(type(reason).__name__, f"GH200 caches: {reason}; {rest}")

    def _arena(self, consumer: Consumer) -> TensorArena:
        if consumer not in self._arenas:
            self._arenas[consumer] = TensorArena(self._budget, consumer)
        return self._arenas[consumer]

    def drop(self, key: str) -> None:
        """Forget an entry and let no read that is under way bring it back."""
        with self._lock:
            self.changes += 1
            entry = self._entries.pop(key, None)
            if entry is None:
                return
            for slot in entry.slots:
                self._by_pointer.pop(slot.tensor.data_ptr(), None)
                entry.arena.release(slot)

    def drop_prefix(self, prefix: str) -> None:
        with self._lock:
            for key in [key for key in self._entries if key.startswith(prefix)]:
                self.drop(key)

    def listed(self) -> None:
        """Upstream looked at the files: from now on each entry is compared with its file before it is served."""
        with self._lock:
            self._generation += 1

    def slot_of(self, tensor: torch.Tensor) -> Slot | None:
        """The held tensor this one is a view of, on either device; managed pointers are the same on both."""
        slot = self._by_pointer.get(tensor.data_ptr())
        if slot is None or tensor.dtype != slot.tensor.dtype or tensor.numel() > slot.tensor.numel():
            return None
        return None if slot.written_to else slot

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _say(self, once: str, message: str) -> None:
        with self._lock:
            if once in self._said:
                return
            self._said.add(once)
        logger.warning(message)

    @property
    def managed(self) -> bool:
        return any(arena.managed for arena in self._arenas.values())

    def share_hbm(self) -> None:
        for arena in tuple(self._arenas.values()):
            arena.share_hbm()

    def may_move(self, pointer: int, size: int) -> bool:
        """Whether memory may go to HBM: held entries within their share, and what is not held here at all."""
        return all(arena.may_move(pointer, size) is not False for arena in tuple(self._arenas.values()))

    def stats(self) -> dict[str, ArenaStats]:
        return {consumer: arena.stats() for consumer, arena in self._arenas.items()}

    def report(self) -> dict[str, Any]:
        stats = self.stats().values()
        return {
            "entries": len(self._entries),
            "hits": self.hits(),
            "managed": any(item.managed for item in stats),
            "payload_bytes": sum(item.payload_bytes for item in stats),
            "packed_bytes": sum(item.packed_bytes for item in stats),
            "limit_bytes": self._budget.limit,
            "counts": dict(self.counts),
        }

    def close(self) -> None:
        with self._lock:
            self.changes += 1
            self._by_pointer.clear()
            self._entries.clear()
            left = sum(arena.close() for arena in self._arenas.values())
            if left:
                logger.debug("GH200 caches: %d blocks are freed when the tensors that use them are gone", left)
