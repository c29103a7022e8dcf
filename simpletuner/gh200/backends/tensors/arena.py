"""Large blocks of managed memory, or of RAM where there is no GPU, in which tensors are packed and never moved."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...memory import hints
from ...memory.batch_copy import bytes_of
from ...memory.driver import HOST, Advice, CudaError, DeviceAttribute, Driver, Place, load_driver
from ...memory.family import platform
from ...memory.hbm import free_and_total
from ...memory.limits import memory_limits
from ...memory.pages import aligned, extent
from ...memory.residency import places
from .blocks import NO_BYTES, ArenaFull, Block, CacheBudget, Reserved, Slot

if TYPE_CHECKING:
    from ...config.schema import AccessPattern

logger = logging.getLogger("gh200.arena")

BLOCK_SIZE = 256 << 20
BLOCK_ROUNDING = 2 << 20

Consumer = Literal["device", "host"]
# A page that prefers the GPU is made in HBM by the CPU's first write, where training needs the memory; so all pages begin on the CPU.
BLOCK_ADVICE = ((Advice.SET_PREFERRED_LOCATION, "host"), (Advice.SET_ACCESSED_BY, "device"))
# What the GPU reads may go there once it is known how much training leaves.
SHARE_ADVICE: dict[AccessPattern, tuple[tuple[Advice, str], ...]] = {
    "gpu_first": ((Advice.SET_PREFERRED_LOCATION, "device"), (Advice.SET_ACCESSED_BY, "host")),
    "balanced": ((Advice.SET_READ_MOSTLY, "device"),),
}


@dataclass(frozen=True)
class ArenaStats:
    """Sizes and counts of one arena."""

    managed: bool
    reserved_bytes: int
    payload_bytes: int
    tensors: int


class TensorArena:
    """Packs tensors into blocks; a freed place is used again once no tensor refers to it any more."""

    def __init__(
        self,
        budget: CacheBudget,
        consumer: Consumer,
        block_size: int = BLOCK_SIZE,
        *,
        in_managed_memory: bool = True,
    ) -> None:
        self._budget, self._consumer, self._block_size = budget, consumer, block_size
        self._lock = threading.Lock()
        self._blocks: list[Block] = []
        self._free: dict[int, list[tuple[Block, int]]] = defaultdict(list)
        self._retired: list[tuple[list[StorageWeakRef], Block, int, int]] = []
        self._payload = 0
        # Why there is no further block; asking again costs more than reading the entry from its file.
        self._rejected: str | None = None
        self.device = hints.cuda_device()
        self._driver = self._managed_driver() if in_managed_memory else None

    def _managed_driver(self) -> Driver | None:
        driver = load_driver()
        try:
            usable = hints.supports(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, self.device)
        except CudaError as error:
            logger.warning("GH200 caches stay in plain RAM: %s", error)
            return None
        return driver if isinstance(driver, Driver) and usable else None

    @property
    def managed(self) -> bool:
        """Whether its blocks are managed memory."""
        return self._driver is not None

    def hold(self, source: torch.Tensor) -> Slot:
        """Copy a tensor in, bit for bit and with its strides; raises ArenaFull."""
        span = extent(source)
        (place,) = self.reserve(span)
        if span:
            with torch.inference_mode(False), torch.no_grad():
                there = torch.frombuffer(place.buffer, dtype=torch.uint8, count=span, offset=place.offset)
                there.copy_(bytes_of(source))
        return self.filled(place, source.dtype, tuple(source.shape), source.stride())

    def reserve(self, *spans: int) -> list[Reserved]:
        """Places for tensors whose bytes are still to come, or ArenaFull; `filled` or `give_back` must follow."""
        places: list[Reserved] = []
        with self._lock:
            try:
                for span in spans:
                    places.append(self._reserved(span) if span else NO_BYTES)
            except ArenaFull:
                self._give_back(places)
                raise
            self._payload += sum(spans)
        return places

    def _reserved(self, span: int) -> Reserved:
        block, offset = self._place(aligned(span))
        return Reserved(block, block.buffer, offset, span)

    def filled(self, place: Reserved, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Slot:
        """The tensor whose bytes were put into a reserved place."""
        # Entering the mode costs more than the rest, and a thread that reads ahead is never in it.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False):
                return self.filled(place, dtype, shape, stride)
        if place.block is None:
            return Slot(torch.empty_strided(shape, stride, dtype=dtype), None, 0, 0)
        elements = place.span // dtype.itemsize
        view = torch.frombuffer(place.buffer, dtype=dtype, count=elements, offset=place.offset)
        # Detached, because a view would keep its base alive: a second tensor object for every entry.
        return Slot(view.as_strided(shape, stride).detach(), place.block, place.offset, place.span)

    def give_back(self, places: list[Reserved]) -> None:
        """Reserved places that no tensor was made of."""
        with self._lock:
            self._payload -= sum(place.span for place in places)
            self._give_back(places)

    def _give_back(self, places: list[Reserved]) -> None:
        for place in places:
            if place.block is not None:
                self._freed(place.block, place.offset, aligned(place.span))

    def _place(self, size: int) -> tuple[Block, int]:
        if self._retired and not self._free[size]:
            self._reclaim()
        self._budget.take(size)
        try:
            block, offset = self._free[size].pop() if self._free[size] else self._next_place(size)
        except ArenaFull:
            self._budget.give_back(size)
            raise
        block.live += 1
        return block, offset

    def _next_place(self, size: int) -> tuple[Block, int]:
        if not self._blocks or self._blocks[-1].cursor + size > self._blocks[-1].size:
            empty = next((block for block in self._blocks if not block.live and size <= block.size), None)
            if empty is None:
                self._blocks.append(self._new_block(size))
            else:
                self._blocks.remove(empty)
                self._blocks.append(empty)
        block = self._blocks[-1]
        offset, block.cursor = block.cursor, block.cursor + size
        return block, offset

    def _new_block(self, least: int) -> Block:
        if self._rejected is not None:
            raise ArenaFull(self._rejected)
        try:
            return self._allocated(least)
        except ArenaFull as full:
            self._rejected = str(full)
            raise

    def _allocated(self, least: int) -> Block:
        limit = self._budget.limit
        wanted = self._block_size if limit is None else min(self._block_size, limit)
        size = -(-max(wanted, least) // BLOCK_ROUNDING) * BLOCK_ROUNDING
        try:
            # Managed pages that fit on neither side invoke the OOM killer, not a CUDA error.
            tightest = memory_limits()[0]
            if size > tightest.bytes + self._free_on_gpu():
                raise ArenaFull(f"a block of {size} bytes does not fit: {tightest.name}, {tightest.bytes} bytes")
            block = Block(size, self._driver, self.device)
        except (CudaError, OSError) as error:
            raise ArenaFull(f"a block of {size} bytes was rejected: {error}") from error
        if self._driver is not None:
            self._advise(block, BLOCK_ADVICE, block.size)
            self._share_hbm(block)
        return block

    def _free_on_gpu(self) -> int:
        """Bytes beside those of the CPU: none in one pool, where they are the same."""
        if self._driver is None or platform(self.device).one_pool:
            return 0
        return free_and_total(self.device)[0]

    def _advise(self, block: Block, advices: Iterable[tuple[Advice, str]], size: int) -> bool:
        """From a block's beginning; whether all of it was applied."""
        places = {"device": Place(self.device), "host": HOST}
        outcomes = set()
        for advice, where in advices:

            def call(driver: Driver, advice: Advice = advice, place: Place = places[where]) -> hints.Outcome:
                driver.advise(block.pointer, size, advice, place, self.device)
                return hints.Outcome.APPLIED

            outcomes.add(hints.attempt(f"block_{advice.name.lower()}", call))
        return outcomes <= {hints.Outcome.APPLIED}

    def share_hbm(self) -> None:
        """Now that it is known how much of HBM there is for caches, the oldest blocks may go there."""
        with self._lock:
            for block in self._blocks if self._driver is not None else ():
                self._share_hbm(block)

    def _share_hbm(self, block: Block) -> None:
        run_hints = hints.current()
        advices = SHARE_ADVICE.get(run_hints.policy())
        if advices is None or self._consumer == "host":
            return
        size = run_hints.share.take(block.size - block.share)
        if size and self._advise(block, advices, block.share + size):
            block.share += size
        else:
            run_hints.share.give_back(size)

    def may_move(self, pointer: int, size: int) -> bool:
        """Whether memory may go to HBM; what is not in this arena may."""
        found = [block for block in self._blocks if block.pointer <= pointer < block.pointer + block.size]
        return all(block.may_move(pointer, size) for block in found)

    def release(self, slot: Slot) -> None:
        """Release a slot; its place is used again when the last tensor that shares it is gone."""
        if slot.block is None:
            return
        let_go(slot)
        views = [tensor for tensor in (slot.tensor, slot.cuda) if tensor is not None]
        size = aligned(slot.span)
        with self._lock:
            refs = [StorageWeakRef(view.untyped_storage()) for view in views]
            self._retired.append((refs, slot.block, slot.offset, size))
            self._payload -= slot.span
            self._rejected = None

    @property
    def dropped_in_use(self) -> int:
        """Bytes of dropped entries that somebody still reads."""
        return sum(size for _, _, _, size in tuple(self._retired))

    def shrink(self) -> int:
        """Free the blocks without live tensors; returns their bytes."""
        with self._lock:
            self._reclaim()
            empty = [block for block in self._blocks if not block.live]
            for block in empty:
                self._blocks.remove(block)
                block.free()
            return sum(block.size for block in empty)

    def _reclaim(self) -> None:
        free = [all(ref.expired() for ref in refs) for refs, *_ in self._retired]
        done = [item for item, gone in zip(self._retired, free, strict=True) if gone]
        self._retired = [item for item, gone in zip(self._retired, free, strict=True) if not gone]
        if self._driver is not None and any(len(refs) > 1 for refs, *_ in done):
            # A kernel that was queued while its tensor lived may still be reading the place.
            hints.attempt("synchronize", self._synchronised)
        for _, block, offset, size in done:
            self._freed(block, offset, size)

    def _freed(self, block: Block, offset: int, size: int) -> None:
        self._free[size].append((block, offset))
        self._budget.give_back(size)
        block.live -= 1
        if not block.live:
            # Nothing is left in it: start over, so that entries of another size can use it.
            block.cursor = 0
            for places in self._free.values():
                places[:] = [place for place in places if place[0] is not block]

    def _synchronised(self, driver: Driver) -> hints.Outcome:
        driver.synchronize(self.device)
        return hints.Outcome.APPLIED

    def stats(self) -> ArenaStats:
        """Its sizes now."""
        with self._lock:
            reserved = sum(block.size for block in self._blocks)
            tensors = sum(block.live for block in self._blocks) - len(self._retired)
            return ArenaStats(self.managed, reserved, self._payload, tensors)

    def places(self) -> dict[str, dict[str, int]]:
        """Where its blocks are as far as the driver reports; the part that may live in HBM is asked for by itself."""
        if self._driver is None:
            return {}
        with self._lock:
            blocks = [(block.pointer, block.size, block.share) for block in self._blocks]
        parts = [((start, share), (start + share, size - share)) for start, size, share in blocks]
        return places(self._driver, [part for pair in parts for part in pair if part[1]], self.device)

    def close(self) -> int:
        """Free the blocks, newest first; returns how many wait for tensors that are still out."""
        with self._lock:
            self._free.clear()
            blocks, self._blocks = self._blocks[::-1], []
            return sum(not block.free() for block in blocks)


def let_go(slot: Slot) -> None:
    """Its copy in HBM, if it has one, and that part of the share."""
    if slot.resident is not None:
        slot.resident = None
        hints.current().share.give_back(slot.span)
