"""A collated batch of cached latents: those in plain RAM go to the GPU in one copy, some stay there."""

from __future__ import annotations

import logging
from typing import Any

import torch

from ...memory import hints
from ...memory.batch_copy import OneCopy, PinningFailed
from ...memory.driver import CudaError
from ...memory.hbm import free_and_total
from .arena import let_go
from .blocks import Slot
from .placement import Placement
from .store import CacheStore

logger = logging.getLogger("gh200.cache")

FINITE = "_gh200_finite"


def known_to_be_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Marks a tensor as checked until it is written to."""
    setattr(tensor, FINITE, tensor._version)
    return tensor


class Batches:
    """What a run does with the latents of one batch, in the thread that puts it together."""

    def __init__(self, store: CacheStore, placement: Placement, run_hints: hints.Hints) -> None:
        self._store, self._placement, self._hints = store, placement, run_hints
        self._copy = OneCopy(hints.cuda_device())
        self._without_pinned = ""
        run_hints.share.by_entry = placement.resident

    @property
    def together(self) -> bool:
        """Whether entries in plain RAM wait for their batch, instead of being pinned one by one."""
        return self._placement.path == "pinned" and not self._without_pinned

    def on_the_gpu(self, latents: list[Any]) -> list[Any]:
        """The same list with cached latents on the GPU; others are left to SimpleTuner."""
        slots = [self._slot(latent) for latent in latents]
        found = list(latents)
        for index, slot in enumerate(slots):
            if slot is not None and slot.resident is not None and self._in_order():
                found[index] = known_to_be_finite(slot.resident.detach())
        waiting = [index for index, slot in enumerate(slots) if slot is not None and found[index].device.type == "cpu"]
        if waiting and self.together:
            try:
                moved = self._copy.move([found[index] for index in waiting])
            except PinningFailed as error:
                self._without_pinned = str(error)
                logger.warning("GH200 caches: %s; latents go to the GPU one by one, from ordinary memory", error)
                return latents
            for index, tensor in zip(waiting, moved, strict=True):
                found[index] = known_to_be_finite(tensor)
        if self._placement.resident:
            self._keep(slots, found)
        return found

    def _slot(self, latent: Any) -> Slot | None:
        """Of a complete cached latent without NaN and Inf; SimpleTuner checks the others, and deletes the file."""
        slot = self._store.slot_of(latent) if isinstance(latent, torch.Tensor) else None
        whole = slot is not None and slot.block is not None and latent.shape == slot.tensor.shape
        return slot if slot is not None and whole and slot.finite else None

    def _in_order(self) -> bool:
        """Copies that stay are made and read in one stream, and so need no event each."""
        device = self._copy.device
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)

    def _keep(self, slots: list[Slot | None], found: list[Any]) -> None:
        share = self._hints.share
        if not share.bytes or not self._in_order():
            return
        for slot, tensor in zip(slots, found, strict=True):
            if (
                slot is None
                or slot.resident is not None
                or tensor.device.type != "cuda"
                or not share.take_all(slot.span)
            ):
                continue
            try:
                with torch.inference_mode(False), torch.no_grad():
                    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
                    slot.keep(copy.copy_(tensor))
            except torch.cuda.OutOfMemoryError:
                share.give_back(slot.span)
                self.release_resident("torch has no more memory for them")
                return

    def training_needs_more(self) -> bool:
        """Whether free GPU memory has fallen below half of the margin."""
        share = self._hints.share
        if not (share.by_entry and share.given):
            return False
        device = self._copy.device
        try:
            free, total = free_and_total(device.index)
        except CudaError as error:
            self._hints.failed("hbm_share", error)
            return False
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return share.short(free + unused, total)

    def release_resident(self, why: str) -> None:
        """Frees the copies in HBM for training, for the rest of the run."""
        kept = [slot for slot in self._store.slots() if slot.resident is not None]
        self._hints.share.close()
        for slot in kept:
            let_go(slot)
        logger.info("GH200 caches: %d latents are removed from the GPU's memory: %s", len(kept), why)

    def report(self) -> dict[str, int]:
        """Batches and bytes copied, and bytes resident in HBM."""
        moved = {"batches_in_one_copy": self._copy.batches, "bytes_copied": self._copy.bytes}
        return moved | ({"bytes_resident": self._hints.share.given} if self._placement.resident else {})

    def close(self) -> None:
        """Frees the pinned buffer."""
        self._copy.close()
