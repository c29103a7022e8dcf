"""Where cached latents live and how a batch of them gets to the GPU: as asked, or by what was measured on this machine."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch

from ...memory import hints
from ...memory.driver import CudaError, DeviceAttribute
from ...memory.family import ONE_POOL, platform
from ...memory.limits import format_size
from ...memory.transfer_paths import DESCRIPTIONS, Timed, TransferPath, time_transfer_paths
from ...runtime import TEXT_CACHE, VAE_CACHE, Run

logger = logging.getLogger("gh200.cache")

TIE = 1.05  # what is so little slower than the fastest is as fast; plain RAM then wins, being the simplest
MOVED_BY_US = "vae"  # latents; everything else is put together on the CPU
CHOICES: Final[tuple[TransferPath, ...]] = ("managed", "pinned", "hbm")  # stock is timed to compare, never chosen
USUAL_BATCH: Final = 16 << 20

Measure = Callable[[int, int, int], Timed]


def fastest(seconds: Mapping[TransferPath, float], among: Iterable[TransferPath]) -> TransferPath | None:
    """The path with the least time; plain RAM where it ties with that one."""
    known = {path: seconds[path] for path in among if path in seconds}
    if not known:
        return None
    best = min(known, key=lambda path: known[path])
    return "pinned" if known.get("pinned", float("inf")) <= known[best] * TIE else best


class Placement:
    """The choice of one run: made once, before anything is cached. `hbm` waits until it is known what training leaves."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.asked = run.options.placement
        self.moves = torch.cuda.is_available()  # whether there is a GPU that batches are moved to
        self._batch = USUAL_BATCH, 1
        self.measure: Measure = time_transfer_paths
        self._timed: Timed | None = None
        self._path: TransferPath | None = None
        self._lock = threading.Lock()
        self.resident = False
        self.why = ""
        run.measure("Cache placement", self.report)

    def decide(self, device: torch.device, batch_bytes: int, entries: int) -> None:
        """While nothing else uses the GPU yet."""
        self.moves = self.moves and device.type == "cuda"
        self._batch = batch_bytes, entries
        assert self.path

    @property
    def path(self) -> TransferPath:
        """How entries that are not resident get to the GPU; chosen at the first access."""
        with self._lock:
            if self._path is None:
                self._path, self.resident, self.why = self._chosen()
                self._report(self._path)
            return self._path

    def _chosen(self) -> tuple[TransferPath, bool, str]:
        if not self.moves:
            # Where there is a driver that nothing trains on, views of managed memory are plain CPU tensors too.
            return "managed", False, "this run trains on no GPU: nothing is moved and nothing is measured"
        impossible = self._impossible()
        no = impossible.get(self.asked) if self.asked != "auto" else None
        if no:
            logger.warning("GH200 caches: placement %s is not possible here: %s", self.asked, no)
            return "pinned", False, f"{self.asked} was asked for: {no}"
        if self.asked == "auto":
            return self._by_measurement(impossible)
        return "managed" if self.asked == "managed" else "pinned", self.asked == "hbm", "asked for"

    def _impossible(self) -> dict[str, str]:
        """Ways this run cannot have, each with its reason."""
        found: dict[str, str] = {}
        try:
            if not hints.supports(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, hints.cuda_device()):
                found["managed"] = "no managed memory that CPU and GPU can use at once"
        except CudaError as error:
            found["managed"] = str(error)
        if platform(hints.cuda_device()).one_pool:
            found["hbm"] = ONE_POOL
        if self._run.settings.optimizations.managed_memory == "all":
            found["hbm"] = 'with managed_memory "all" nothing that torch allocates is the GPU\'s own memory'
        return found

    def _by_measurement(self, impossible: Mapping[str, str]) -> tuple[TransferPath, bool, str]:
        if MOVED_BY_US not in self._run.options.kinds:
            return "pinned", False, "no latents are cached, and nothing else is moved by us"
        try:
            device = hints.cuda_device()
            if platform(device).one_pool:
                return "pinned", False, ONE_POOL
            allowed = [path for path in CHOICES if path not in impossible]
            if platform(device).stays_on_the_cpu and "managed" in allowed:
                allowed.remove("managed")
            self._timed = self.measure(device, *self._batch)
        except (CudaError, RuntimeError, OSError) as error:
            logger.warning("GH200 caches: the paths to the GPU could not be timed: %s", error)
            return "pinned", False, f"not measured: {error}"
        seconds = {path: timing.median for path, timing in self._timed.timings.items()}
        first = fastest(seconds, allowed)
        base = fastest(seconds, [path for path in allowed if path != "hbm"]) or "pinned"
        why = f"the fastest of {', '.join(allowed)}" if first else "no path could be timed"
        return base, first == "hbm", why

    def _report(self, path: TransferPath) -> None:
        if not self.moves:
            return
        where = DESCRIPTIONS[path]
        if self.resident:
            where = f"{DESCRIPTIONS['hbm']}, as far as training leaves memory after its first steps; until then and for the rest: {where}"
        for feature in (VAE_CACHE, TEXT_CACHE):
            if feature in self._run.on:
                self._run.report_on(feature, where)
        measured = f"; {self._measurements()}" if self._timed else ""
        logger.info("GH200 caches: placement %s: %s (%s)%s", self.asked, where, self.why, measured)

    def _measurements(self) -> str:
        assert self._timed is not None
        each = [f"{path} {timing.median * 1e3:.3f} ms" for path, timing in self._timed.timings.items()]
        each += [f"{path} failed: {why}" for path, why in self._timed.failed.items()]
        size = f"{format_size(self._timed.batch_bytes)} in {self._timed.entries}"
        return f"a batch of {size}: {', '.join(each)}"

    def report(self) -> dict[str, Any]:
        """The choice and what was measured; empty before it is made."""
        if self._path is None:
            return {}
        report: dict[str, Any] = {"asked": self.asked, "way": self._path, "hbm": self.resident, "reason": self.why}
        if self._timed is not None:
            report |= {
                "batch_bytes": self._timed.batch_bytes,
                "batch_entries": self._timed.entries,
                "milliseconds": {path: timing.median * 1e3 for path, timing in self._timed.timings.items()},
                "failed": dict(self._timed.failed),
            }
        return report
