"""Placement hints for tensors in managed or GPU-reachable system memory; each says what it did, and is counted."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from ..config.cache_options import CacheOptions
from ..config.sources import read_settings
from ..state import StateHooks
from .driver import HOST, Advice, CudaError, DeviceAttribute, Driver, ManagedRange, Place, load_driver
from .family import platform
from .hbm import HbmShare
from .pages import covering_pages, extent, whole_pages
from .prefetch import DEFAULT_STREAM, Mover

if TYPE_CHECKING:
    import torch

    from ..config.schema import AccessPattern

logger = logging.getLogger("gh200.uvm")


class Outcome(StrEnum):
    """What became of a hint."""

    APPLIED = "applied"
    NOT_MANAGED = "not_managed"
    SMALLER_THAN_A_PAGE = "smaller_than_a_page"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    NO_DRIVER = "no_driver"
    STEPPED_BACK = "stepped_back"
    RESIDENT = "resident"
    BEYOND_SHARE = "beyond_share"
    OFF = "off"


class Hints:
    """The memory switches and counters of one run."""

    # Outlives the run: it is the caller's word for this process.
    override: ClassVar[bool | None] = None

    def __init__(self, options: CacheOptions) -> None:
        self.options = options
        # Known once the Accelerator is made; a thread of a pool would answer 0, whatever its process uses.
        self.device: int | None = None
        # Managed allocations that torch's own pools made: it moves their content around, page by page it is many tensors.
        self.left_alone: Callable[[int], bool] = lambda base: False
        self.lock = threading.Lock()
        self.counts: Counter[tuple[str, Outcome]] = Counter()
        self.errors: Counter[str] = Counter()
        self.gone: str | None = None
        self.steps = 0
        self.share = HbmShare()
        self.mover = Mover()
        # Whoever holds memory for the run says here which of it stays where it is.
        self.may_move: Callable[[int, int], bool] = lambda pointer, size: True

    def policy(self) -> AccessPattern:
        """The access pattern that was asked for, where pages gain by moving to the GPU."""
        try:
            return "cpu_first" if platform(cuda_device()).stays_on_the_cpu else self.options.access_pattern
        except CudaError as error:
            self.failed("policy", error)
            return "cpu_first"

    def close(self) -> None:
        """Frees the stream and event of prefetches."""
        self.mover.close()

    def settle_on(self, device: torch.device | None) -> None:
        """In the thread that made the Accelerator, which may say `cuda` and mean that thread's current device."""
        import torch

        if device is not None and device.type == "cuda":
            self.device = torch.cuda.current_device() if device.index is None else device.index

    @property
    def enabled(self) -> bool:
        """Whether hints act: the override where there is one, else the settings."""
        return self.options.hints if Hints.override is None else Hints.override

    def count(self, hint: str, outcome: Outcome) -> Outcome:
        """Counts an outcome and returns it."""
        with self.lock:
            self.counts[hint, outcome] += 1
        return outcome

    def failed(self, hint: str, error: CudaError) -> Outcome:
        """Counts a CUDA error and warns of the first of each name."""
        with self.lock:
            self.errors[error.name] += 1
            first = self.errors[error.name] == 1
            if error.device_gone:
                self.gone = error.name
        if first:
            rest = "no more hints are given in this run" if error.device_gone else "counted from here on, not repeated"
            logger.warning("GH200 hint %s: %s; %s", hint, error, rest)
        unsupported = "NOT_SUPPORTED" in error.name or "NOT_AVAILABLE" in error.name
        return Outcome.UNSUPPORTED if unsupported else Outcome.FAILED

    def report(self) -> dict[str, Any]:
        """Counters of hints, errors and copies."""
        with self.lock:
            hints: dict[str, dict[str, int]] = {}
            for (hint, outcome), count in sorted(self.counts.items()):
                hints.setdefault(hint, {})[outcome.value] = count
            report = {"enabled": self.enabled, "steps": self.steps, "hints": hints, "hbm_share": self.share.report()}
            return report | {"copies": self.mover.report(), "errors": dict(self.errors), "device_gone": self.gone}


def current() -> Hints:
    """Those of the run; without one, what the environment alone asks for."""
    run = StateHooks._gh200_run
    return run.hints if run is not None else _without_a_run()


@cache
def _without_a_run() -> Hints:
    hints = Hints(CacheOptions.from_settings(read_settings({}, os.environ)))
    atexit.register(hints.close)
    return hints


def gh200_uvm_enabled() -> bool:
    """Whether hints and unified-memory caches act now: the override where there is one, else the settings."""
    return current().enabled


def set_uvm_hint_override(enabled: bool | None) -> None:
    """Turn hints and caches on or off for this process, also during a run; None goes back to the settings."""
    Hints.override = enabled


def cuda_device() -> int:
    """The GPU of the run; outside of one torch's current device, or 0 where torch has no CUDA."""
    import torch

    known = current().device
    if known is not None:
        return known
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


@cache
def supports(attribute: DeviceAttribute, device: int) -> bool:
    """Whether a device has an attribute; cached."""
    driver = load_driver()
    return isinstance(driver, Driver) and bool(driver.device_attribute(attribute, device))


def attempt(hint: str, call: Callable[[Driver], Outcome]) -> Outcome:
    """Run one hint against the driver and count how it ended; a driver error never reaches the training loop."""
    hints = current()
    driver = load_driver()
    if not hints.enabled:
        outcome = Outcome.OFF
    elif not isinstance(driver, Driver) or hints.gone:
        outcome = Outcome.NO_DRIVER
    else:
        try:
            outcome = call(driver)
        except CudaError as error:
            outcome = hints.failed(hint, error)
    return hints.count(hint, outcome)


def reachable(driver: Driver, tensor: torch.Tensor, device: int) -> tuple[Outcome, ManagedRange | None]:
    """Whether hints apply to a tensor, and its managed allocation."""
    import torch

    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda") or not extent(tensor):
        return Outcome.NOT_MANAGED, None
    if not supports(DeviceAttribute.CONCURRENT_MANAGED_ACCESS, device):
        return Outcome.UNSUPPORTED, None
    managed = driver.managed_range(tensor.data_ptr(), device)
    if managed is not None:
        return Outcome.APPLIED, managed
    host_pages_reachable = supports(DeviceAttribute.PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, device)
    if tensor.device.type != "cpu" or not host_pages_reachable:
        return Outcome.NOT_MANAGED, None
    # The driver would return success and leave ordinary memory where it is.
    return Outcome.UNSUPPORTED if platform(device).stays_on_the_cpu else Outcome.APPLIED, None


def _prefer(hint: str, tensor: torch.Tensor, place: Place) -> Outcome:
    def call(driver: Driver) -> Outcome:
        device = cuda_device()
        outcome, _ = reachable(driver, tensor, device)
        if outcome is not Outcome.APPLIED:
            return outcome
        start, size = whole_pages(tensor.data_ptr(), extent(tensor))
        if size <= 0:
            return Outcome.SMALLER_THAN_A_PAGE
        driver.advise(start, size, Advice.SET_PREFERRED_LOCATION, place, device)
        return outcome

    return attempt(hint, call)


def prefer_cpu_residency(tensor: torch.Tensor) -> Outcome:
    """Ask the driver to keep a tensor's pages in CPU memory."""
    return _prefer("prefer_cpu", tensor, HOST)


def prefer_gpu_residency(tensor: torch.Tensor, device: int | None = None) -> Outcome:
    """Ask the driver to keep a tensor's pages in the GPU's own memory."""
    return _prefer("prefer_gpu", tensor, Place(cuda_device() if device is None else device))


def prefetch_to_device(tensor: torch.Tensor, device: int | None = None, stream: int = DEFAULT_STREAM) -> Outcome:
    """Start moving a tensor's pages to the GPU, in the order of `stream` (a raw CUDA stream handle)."""

    def call(driver: Driver) -> Outcome:
        ordinal = cuda_device() if device is None else device
        outcome, bounds = reachable(driver, tensor, ordinal)
        if outcome is Outcome.APPLIED:
            start, size = covering_pages(tensor.data_ptr(), extent(tensor), bounds)
            driver.prefetch(start, size, Place(ordinal), stream, ordinal)
        return outcome

    return attempt("prefetch", call)
