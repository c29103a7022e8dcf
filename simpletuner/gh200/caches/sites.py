"""What upstream's caches and collate call: attach the tier, place a latent, skip a check whose answer is known."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Literal

import torch

from ..memory import hints as uvm
from ..memory.driver import Driver, Place
from ..memory.pinning import pinning_impossible
from ..run import Run, current
from .arena import Consumer
from .blocks import Slot
from .store import CacheStore
from .tier import UnifiedCacheTier

logger = logging.getLogger("gh200.cache")

CacheKind = Literal["vae", "text", "image_embed", "distillation"]
# Collate moves latents to the GPU one by one; everything else is first put together on the CPU.
CONSUMERS: dict[CacheKind, Consumer] = {
    "vae": "device", "text": "host", "image_embed": "host", "distillation": "host",
}  # fmt: skip
UNSAFE_LOADING = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
LIMITS_OF_THIS = (
    "the arenas hold caches; weights and optimizer state are not oversubscribed by them "
    "(upstream's RamTorch, block swap and optimizer offload do that, or the patched PyTorch build)"
)


class NextBatch:
    """Moves the entries of the batch being put together to the GPU on a stream of its own, one batch ahead at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stream = self._event = 0
        self._collecting = self._behind = False

    def move(self, slot: Slot) -> None:
        uvm.attempt("cache_prefetch", lambda driver: self._move(driver, slot))

    def _move(self, driver: Driver, slot: Slot) -> uvm.Outcome:
        assert slot.block is not None
        device = slot.block.device
        with self._lock:
            if not self._stream:
                self._stream, self._event = driver.create_stream(device), driver.create_event(device)
            if not self._collecting:
                self._collecting, self._behind = True, not driver.event_reached(self._event, device)
            if self._behind:
                return uvm.Outcome.STEPPED_BACK
            driver.prefetch(*slot.pages(), Place(device), self._stream, device)
            driver.record_event(self._event, self._stream, device)
        return uvm.Outcome.APPLIED

    def collected(self) -> None:
        """The batch is being checked: the next entry that is placed begins another one."""
        self._collecting = False


class HeldCaches:
    """The unified-memory caches of one run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.store: CacheStore | None = None
        self.next_batch = NextBatch()
        run.at_end(self._close)
        run.at_end(self._summarise)

    def opened(self) -> CacheStore:
        if self.store is None:
            self.store = CacheStore(self.run.options)
        return self.store

    def report(self) -> dict[str, Any]:
        """Counters and sizes for the runtime config, and what this is not."""
        caches = self.store.report() if self.store is not None else {}
        return self.run.hints.report() | {"caches": caches, "note": LIMITS_OF_THIS}

    def _summarise(self) -> None:
        report = self.report()
        parts = (report["hints"], report["errors"], report["caches"])
        logger.info("GH200 memory summary: hints %s, errors %s, caches %s", *parts)

    def _close(self) -> None:
        if self.store is not None:
            self.store.close()


def begin(run: Run) -> None:
    """The memory part of a run that has one: reported while it lasts, freed when it ends."""
    if run.options.hints or run.options.kinds:
        run.measure("Unified memory", run.part(HeldCaches).report)


def _in_use() -> HeldCaches | None:
    """Where caches are held and act now."""
    run = current()
    if run is None or not run.hints.enabled:
        return None
    held = run.part(HeldCaches)
    return held if held.store is not None and held.store.usable else None


def attach_cache_tier(cache: Any, attribute: str, kind: CacheKind) -> None:
    """Put the tier in the place of the data backend a cache reads and writes through; nothing where it is off."""
    run = current()
    if run is None or kind not in run.options.kinds:
        return
    backend = getattr(cache, attribute)
    if backend is None or type(backend) is UnifiedCacheTier:
        return
    if not _loads_weights_only():
        logger.warning(
            "GH200 caches are off for the %s cache: this torch would run code from a cache file "
            "(torch older than 2.6, or %s is set); update torch or unset it",
            kind,
            UNSAFE_LOADING,
        )
        return
    setattr(cache, attribute, UnifiedCacheTier(backend, run.part(HeldCaches).opened(), CONSUMERS[kind]))


def _loads_weights_only() -> bool:
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return release >= (2, 6) and os.environ.get(UNSAFE_LOADING, "0").lower() not in ("1", "y", "yes", "true")


def upstream_prefetches(args: Any) -> bool:
    """Whether upstream's own device prefetch is on; ours then steps back."""
    return float(getattr(args, "dataloader_prefetch_device_threshold_mb", 0) or 0) > 0


def placed_latent(latent: Any) -> Any | None:
    """What collate should use instead of a pinned copy of a held latent; None where upstream's way is right."""
    held = _in_use()
    tensor = latent.get("latents") if isinstance(latent, dict) else latent
    if held is None or held.store is None or not isinstance(tensor, torch.Tensor):
        return None
    slot = held.store.slot_of(tensor)
    if slot is None or tensor.shape != slot.tensor.shape:
        return None
    placed = _placed(held, slot, tensor)
    return {**latent, "latents": placed} if isinstance(latent, dict) else placed


def _placed(held: HeldCaches, slot: Slot, tensor: torch.Tensor) -> torch.Tensor:
    if slot.managed and torch.cuda.is_available():
        _is_finite(slot)  # now, while the pages are still on the CPU
        _prefetch(held, slot)
        return slot.cuda_view().detach()
    if pinning_impossible(torch.backends.mps.is_available()):
        return tensor
    pinned = tensor.pin_memory()
    if _is_finite(slot):
        pinned._gh200_finite = pinned._version  # type: ignore[attr-defined]
    return pinned


def _prefetch(held: HeldCaches, slot: Slot) -> None:
    options = held.run.options
    if options.prefetch and options.access_pattern != "cpu_first":
        held.next_batch.move(slot)


def known_finite(tensor: torch.Tensor) -> bool:
    """True for a held latent that was found free of NaN and Inf and has not been written to since."""
    held = _in_use()
    if held is None or held.store is None:
        return False
    held.next_batch.collected()
    mark: int | None = getattr(tensor, "_gh200_finite", None)
    if mark is not None:
        return mark == tensor._version
    slot = held.store.slot_of(tensor)
    return slot is not None and _is_finite(slot)


def _is_finite(slot: Slot) -> bool:
    if slot.finite is None:
        try:
            slot.finite = not bool(torch.isnan(slot.tensor).any() or torch.isinf(slot.tensor).any())
        except NotImplementedError:
            slot.finite = False  # upstream's own check then speaks for itself
    return slot.finite
