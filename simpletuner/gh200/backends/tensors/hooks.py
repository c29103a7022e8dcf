"""What SimpleTuner's backend builders and collate call: attach the tier, place a latent, skip a known check."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ...memory import hints
from ...memory.driver import Driver
from ...memory.hbm import free_and_total
from ...runtime import UNIFIED_MEMORY, Run, current
from .arena import Consumer
from .backend import UnifiedCacheTier
from .batch_prefetch import AdaptivePrefetch, NextBatch
from .batches import FINITE, Batches, known_to_be_finite
from .blocks import Slot
from .cache_kinds import CONSUMERS, kind_of_dataset, registered_caches
from .placement import Placement
from .preload import Preload
from .store import CacheStore

logger = logging.getLogger("gh200.cache")

UNSAFE_LOADING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
LIMITS_OF_THIS = (
    "the arenas hold caches; weights, gradients, optimizer state and EMA are in managed memory only by "
    "gh200_optimizations.managed_memory, or by the patched PyTorch build"
)


class TensorCaches:
    """The unified-memory caches of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.store: CacheStore | None = None
        self.batches: Batches | None = None
        self.preload: Preload | None = None
        self.adaptive = AdaptivePrefetch() if run.options.adaptive_prefetch and run.options.prefetch else None
        self.next_batch = NextBatch(run.hints, self.adaptive)
        run.hints.may_move = self._may_move
        run.at_end(self._close)
        run.at_end(self._summarise)
        run.at_end(self._end_preload)

    def opened(self) -> CacheStore:
        """The store, made at the first call."""
        if self.store is None:
            placement = self.run.part(Placement)
            store = CacheStore(self.run.options, self.run.bytes_in_pools, in_managed_memory=placement.path == "managed")
            if placement.moves:
                self.batches = Batches(store, placement, self.run.hints)
            self.store = store
        return self.store

    def _may_move(self, pointer: int, size: int) -> bool:
        return self.store is None or self.store.may_move(pointer, size)

    def read_ahead(self) -> None:
        """Starts to preload what the caches of this run have on local disks."""
        if self.preload is None:
            self.preload = Preload(self.opened(), self._to_read_ahead, shown=_first_rank())

    def _to_read_ahead(self) -> Iterator[tuple[Any, Any, Consumer]]:
        for kind, cache, backend in registered_caches():
            if kind in self.run.options.kinds and isinstance(backend, UnifiedCacheTier) and backend.has_tier:
                yield cache, backend, CONSUMERS[kind]

    def training_begins(self) -> None:
        """Reports caches that are not local; from here on disk reads count as waits of a step."""
        self._report_elsewhere()
        if self.store is not None:
            self.store.training_begins()
        if self.preload is not None:
            self.preload.training_begins()

    def _report_elsewhere(self) -> None:
        """The backend of a cache is known only now: an S3 dataset may have a local one for its latents."""
        elsewhere = {
            f'the {kind} cache of backend "{backend.id}" (type {backend.type})'
            for kind, _, backend in registered_caches()
            if kind in self.run.options.kinds and getattr(backend, "type", "local") != "local"
        }
        if elsewhere:
            logger.warning(
                "GH200 caches: not in unified memory, although cache_config asks for it: %s. Only caches in local "
                "directories are cached; these are read as without it. Give them a backend of type local, or set the "
                'cache type to "disk"',
                ", ".join(sorted(elsewhere)),
            )

    def report(self) -> dict[str, Any]:
        """Counters and sizes for the runtime config, and what this is not."""
        caches = self.store.report() if self.store is not None else {}
        if self.preload is not None:
            caches["preload"] = self.preload.report()
        if self.adaptive is not None:
            caches["adaptive_prefetch"] = self.adaptive.report()
        if self.batches is not None:
            caches |= self.batches.report()
        return self.run.hints.report() | {"caches": caches, "note": LIMITS_OF_THIS}

    def _summarise(self) -> None:
        report = self.report()
        parts = (report["hints"], report["errors"], report["caches"])
        logger.info("GH200 memory summary: hints %s, errors %s, caches %s", *parts)

    def _end_preload(self) -> None:
        if self.preload is not None:
            self.preload.end()

    def _close(self) -> None:
        if self.store is not None:
            self.store.close()
        if self.batches is not None:
            self.batches.close()


def report_caches(run: Run) -> None:
    """Reports the caches and hints of a run that has them."""
    if run.options.hints or run.options.kinds:
        run.measure(UNIFIED_MEMORY, run.part(TensorCaches).report)


def decide_placement(run: Run, device: torch.device, batch_bytes: int, entries: int) -> None:
    """Before anything is cached or loaded: how batches of about that size get to the GPU."""
    if run.options.kinds:
        run.part(Placement).decide(device, batch_bytes, entries)


def _in_use() -> TensorCaches | None:
    """The caches of the run while they are enabled and filled."""
    run = current()
    if run is None or not run.options.kinds or not run.hints.enabled:
        return None
    caches = run.part(TensorCaches)
    return caches if caches.store is not None and caches.store.usable else None


def is_cached(dataset_type: str) -> bool:
    """Whether the cache of a local backend that upstream builds for such a dataset is to be in unified memory."""
    run, kind = current(), kind_of_dataset(dataset_type)
    if run is None or kind not in run.options.kinds:
        return False
    if not _loads_weights_only():
        logger.warning(
            "GH200 caches are off for the %s cache: this torch would run code from a cache file "
            "(torch older than 2.6, or %s is set); update torch or unset it",
            kind,
            UNSAFE_LOADING,
        )
        return False
    return True


def attach_cache_tier(backend: UnifiedCacheTier, dataset_type: str) -> None:
    """From here on the backend serves entries from the run's memory."""
    run, kind = current(), kind_of_dataset(dataset_type)
    assert run is not None
    caches = run.part(TensorCaches)
    backend.attach_store(caches.opened(), kind)
    if run.options.preload:
        caches.read_ahead()


def training_begins() -> None:
    """All caches are built; what is read from disk from now on, a step waits for."""
    run = current()
    if run is not None and run.options.kinds:
        run.part(TensorCaches).training_begins()


def _first_rank() -> bool:
    dist = sys.modules.get("torch.distributed")
    return dist is None or not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def _loads_weights_only() -> bool:
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return release >= (2, 6) and os.environ.get(UNSAFE_LOADING, "0").lower() not in ("1", "y", "yes", "true")


def upstream_prefetches(args: Any) -> bool:
    """Whether SimpleTuner's device prefetch is on; ours is then off."""
    return float(getattr(args, "dataloader_prefetch_device_threshold_mb", 0) or 0) > 0


def micro_batch_begins(optimizer_step: int) -> None:
    """Once training has allocated its memory, measures how much of HBM caches may use; later releases it if needed."""
    caches = _in_use()
    if caches is None:
        return
    store, share = caches.opened(), caches.run.hints.share
    store.drop_for_pools()
    if caches.batches is not None and caches.batches.training_needs_more():
        caches.batches.release_resident("training needs more than it did in its first steps")
    if not (store.managed or share.by_entry) or not share.due(optimizer_step):
        return

    def measure(driver: Driver) -> hints.Outcome:
        share.measured(*free_and_total(hints.cuda_device()))
        return hints.Outcome.APPLIED

    if hints.attempt("hbm_share", measure) is hints.Outcome.APPLIED:
        store.share_hbm()


@functools.cache
def _can_pin() -> bool:
    """Upstream pins wherever MPS is absent, which raises on a machine without an accelerator."""
    return torch.accelerator.is_available()


def _slot_of(caches: TensorCaches | None, tensor: Any) -> Slot | None:
    return caches.opened().slot_of(tensor) if caches is not None and isinstance(tensor, torch.Tensor) else None


def placed_latent(latent: Any) -> Any | None:
    """What collate uses instead of a pinned copy of a latent; None where the pinned copy is right."""
    caches = _in_use()
    tensor: Any = latent.get("latents") if isinstance(latent, dict) else latent
    slot = _slot_of(caches, tensor)
    if caches is None or slot is None or tensor.shape != slot.tensor.shape:
        return None if _can_pin() else latent
    slot.check_finite()  # now: in one of the threads that read, and while managed pages are still on the CPU
    placed = _placed(caches, slot, tensor)
    return {**latent, "latents": placed} if isinstance(latent, dict) else placed


def _placed(caches: TensorCaches, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    if slot.managed and torch.cuda.is_available():
        return slot.cuda_view().detach()
    if not _can_pin() or (caches.batches is not None and caches.batches.together):
        return tensor
    pinned = tensor.pin_memory()
    return known_to_be_finite(pinned) if slot.finite else pinned


def moved_together(latents: list[Any]) -> list[Any]:
    """The latents of a complete batch; cached ones are moved to the GPU together."""
    caches = _in_use()
    if caches is None or caches.batches is None:
        return latents
    _prefetch(caches, latents)
    return caches.batches.on_the_gpu(latents)


def _prefetch(caches: TensorCaches, latents: list[Any]) -> None:
    if caches.run.options.prefetch and caches.run.hints.policy() != "cpu_first":
        slots = [_slot_of(caches, latent) for latent in latents]
        caches.next_batch.go([slot for slot in slots if slot is not None and slot.managed])


def known_finite(tensor: torch.Tensor) -> bool:
    """Whether it is a cached latent that had no NaN or Inf when it was placed, and was not written to since."""
    caches = _in_use()
    mark: int | None = getattr(tensor, FINITE, None)
    if caches is not None and mark is not None:
        return mark == tensor._version
    slot = _slot_of(caches, tensor)
    return slot is not None and slot.finite is True
