"""The one run of a process: its settings, what is on and why, and the state of its features, from beginning to end."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from .config.cache_options import CacheOptions
from .config.schema import Settings
from .memory.budget import ManagedBudget
from .memory.driver import CudaError, Driver, DriverUnavailable, load_driver
from .memory.family import platform
from .memory.hints import Hints
from .state import StateHooks

# Not below "SimpleTuner": train.py cuts that logger off from every handler.
logger = logging.getLogger("gh200.settings")

HINTS = "memory hints"
VAE_CACHE = "VAE cache in unified memory"
TEXT_CACHE = "text cache in unified memory"
RAMP = "gradient accumulation ramp"
IN_MEMORY = "in-memory datasets"
MANAGED = "managed memory of torch"
FAST_START = "fast start"
TELEMETRY = "telemetry"
PREEMPTION = "checkpoint on a signal"

# What features say they measured.
UNIFIED_MEMORY = "Unified memory"
MANAGED_MEMORY = "Managed memory"
STAGED = "Staged into RAM: "


class Run:
    """One training run of this process: what was asked, what became of it, and whatever its features hold until its end."""

    def __init__(self, settings: Settings, options: CacheOptions) -> None:
        self.settings, self.options = settings, options
        self.hints = Hints(options)
        # Where torch's pools and the caches share one bound.
        self.managed: ManagedBudget | None = None
        # Around the loading of a checkpoint.
        self.resuming: Callable[[], AbstractContextManager[None]] = nullcontext
        self.on: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.measured: dict[str, Callable[[], dict[str, Any]]] = {}
        self._parts: dict[Any, Any] = {}
        self._lock = threading.RLock()
        self._ending = ExitStack()
        self._process = os.getpid()

    def part[Part](self, kind: Callable[[Run], Part]) -> Part:
        """A feature's own state: made when it is first asked for, the same one until the end of the run."""
        found: Part | None = self._parts.get(kind)
        if found is None:
            with self._lock:
                if kind not in self._parts:
                    self._parts[kind] = kind(self)
                found = self._parts[kind]
        return found

    def bytes_in_pools(self) -> int:
        """Managed memory that torch's own pools have: it comes before the caches'."""
        return self.managed.pools if self.managed is not None else 0

    def at_end(self, call: Callable[[], object]) -> None:
        """Called when the run ends, the last one given first."""
        self._ending.callback(call)

    def end(self) -> None:
        """Safe to call again; a forked child leaves what is its parent's alone."""
        if self._process == os.getpid():
            self._ending.close()
        self._parts.clear()

    def measure(self, title: str, source: Callable[[], dict[str, Any]]) -> None:
        """What a feature counts or has timed; asked for whenever somebody looks."""
        self.measured[title] = source

    def report_on(self, feature: str, detail: str) -> None:
        """Records that a feature is on."""
        self.unavailable.pop(feature, None)
        self.on[feature] = detail

    def report_unavailable(self, feature: str, reason: str) -> None:
        """Records why a feature is not possible here."""
        self.on.pop(feature, None)
        self.unavailable[feature] = reason

    def values(self) -> dict[str, dict[str, Any]]:
        """Every setting by key path, with its value and where that came from."""
        blocks = {"cache_config": self.settings.caches, "gh200_optimizations": self.settings.optimizations}
        found: dict[str, dict[str, Any]] = {}
        for path, origin in self.settings.origins.items():
            block, _, key = path.partition(".")
            if key:
                found[path] = {"value": getattr(blocks[block], key), "origin": origin}
        return found

    def snapshot(self) -> dict[str, Any]:
        """The whole run for JSON."""
        return {
            "on": dict(self.on),
            "unavailable": dict(self.unavailable),
            "values": self.values(),
            "in_memory": {name: options.model_dump() for name, options in self.settings.in_memory.items()},
            "notes": list(self.settings.notes),
            "measured": {title: source() for title, source in self.measured.items()},
        }

    def lines(self) -> list[str]:
        """The block that is logged at start: what was set, what is on, what is not and why."""
        return [
            "GH200 settings of this run:",
            *(f"  {setting}" for setting in self.settings.given()),
            *(
                f"  dataset {name}: {options.model_dump(exclude_defaults=True)}"
                for name, options in self.settings.in_memory.items()
            ),
            *(f"  on: {feature}: {detail}" for feature, detail in self.on.items()),
            *(f"  asked for, not possible here: {feature}: {reason}" for feature, reason in self.unavailable.items()),
            *(f"  note: {note}" for note in self.settings.notes),
        ]


def current() -> Run | None:
    """The run of this process; None when no GH200 setting is present."""
    return StateHooks._gh200_run


def begin(settings: Settings, options: CacheOptions) -> Run:
    """Ends the run before it in this process; says what of the settings this machine can do. Logging is the caller's."""
    end()
    run = Run(settings, options)
    run.at_end(run.hints.close)
    driver = load_driver()
    on_gpu = f"placement {options.placement}, once the GPU is known"
    memory = on_gpu if isinstance(driver, Driver) else "plain RAM: there is no CUDA driver here"
    unified = {VAE_CACHE: settings.uses_unified_memory("vae"), TEXT_CACHE: settings.uses_unified_memory("text")}
    for feature, asked in unified.items():
        if asked:
            run.report_on(feature, memory)
    if settings.optimizations.enable_uvm_hints:
        if isinstance(driver, DriverUnavailable):
            run.report_unavailable(HINTS, driver.what)
        else:
            run.report_on(HINTS, _policy(settings.optimizations.uvm_access_pattern))
    if settings.in_memory:
        run.report_on(IN_MEMORY, ", ".join(settings.in_memory))
    if settings.fast_start:
        run.report_on(FAST_START, "dataset scan")
    if settings.telemetry_interval:
        run.report_on(TELEMETRY, f"every {settings.telemetry_interval:g} s")
    StateHooks.set_gh200_runtime_config(run)
    atexit.register(end)
    return run


def _policy(asked: str) -> str:
    try:
        # Before the Accelerator nobody knows the run's GPU; those of one machine have one mode.
        reason = platform(0).stays_on_the_cpu if asked != "cpu_first" else ""
    except CudaError as error:
        return f"policy {asked}, unless the GPU turns out to have no memory to move pages to ({error})"
    return f"policy cpu_first instead of {asked}: {reason}" if reason else f"policy {asked}"


def end() -> None:
    """Nothing of a run is left in this process: a second Trainer starts as the first one did."""
    run = current()
    if run is not None:
        run.end()
        atexit.unregister(end)
    StateHooks.set_gh200_runtime_config(None)


def log(run: Run) -> None:
    """Logs the settings of a run."""
    logger.info("\n".join(run.lines()))
