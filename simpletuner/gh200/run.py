"""What the fork does in this run: features report here whether they are on, and if not, why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .settings.schema import Settings
from .state import StateHooks

# Not below "SimpleTuner": train.py cuts that logger off from every handler.
logger = logging.getLogger("gh200.settings")

HINTS = "memory hints"
VAE_CACHE = "VAE cache in unified memory"
TEXT_CACHE = "text cache in unified memory"
RAMP = "gradient accumulation ramp"
IN_MEMORY = "in-memory datasets"

ASKED: MappingProxyType[str, Callable[[Settings], bool]] = MappingProxyType(
    {
        HINTS: lambda settings: settings.optimizations.enable_uvm_hints,
        VAE_CACHE: lambda settings: settings.uses_unified_memory("vae"),
        TEXT_CACHE: lambda settings: settings.uses_unified_memory("text"),
        RAMP: lambda settings: settings.optimizations.enable_batch_size_rampup,
        IN_MEMORY: lambda settings: bool(settings.in_memory),
    }
)


@dataclass
class RuntimeConfig:
    """The settings of this run and what became of them."""

    settings: Settings
    on: dict[str, str] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    measured: dict[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)

    def measure(self, title: str, source: Callable[[], dict[str, Any]]) -> None:
        """What a feature counts or has timed; asked for whenever somebody looks."""
        self.measured[title] = source

    def report_on(self, feature: str, detail: str) -> None:
        self.unavailable.pop(feature, None)
        self.on[feature] = detail

    def report_unavailable(self, feature: str, reason: str) -> None:
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
        given = {path: item for path, item in self.values().items() if item["origin"] != "default"}
        return [
            "GH200 settings of this run:",
            *(f"  {path} = {item['value']!r}  ({item['origin']})" for path, item in given.items()),
            *(
                f"  dataset {name}: {options.model_dump(exclude_defaults=True)}"
                for name, options in self.settings.in_memory.items()
            ),
            *(f"  on: {feature}: {detail}" for feature, detail in self.on.items()),
            *(f"  asked for, not possible here: {feature}: {reason}" for feature, reason in self.unavailable.items()),
            *(f"  note: {note}" for note in self.settings.notes),
        ]


def current() -> RuntimeConfig | None:
    """The runtime config of this process; None when no GH200 setting is present."""
    return StateHooks._gh200_runtime


def start(settings: Settings) -> RuntimeConfig:
    """Makes the settings the ones in force and says what of them this machine can do; logging is the caller's."""
    runtime = RuntimeConfig(settings)
    memory = _memory_kind()
    for feature in (VAE_CACHE, TEXT_CACHE):
        if ASKED[feature](settings):
            runtime.report_on(feature, memory)
    if ASKED[HINTS](settings):
        _report_hints(runtime)
    if ASKED[IN_MEMORY](settings):
        runtime.report_on(IN_MEMORY, ", ".join(settings.in_memory))
    StateHooks.set_gh200_runtime_config(runtime)
    return runtime


def _memory_kind() -> str:
    from .memory.driver import Driver, load_driver

    return "managed memory" if isinstance(load_driver(), Driver) else "plain RAM: there is no CUDA driver here"


def _report_hints(runtime: RuntimeConfig) -> None:
    from .memory.driver import DriverUnavailable, load_driver

    driver = load_driver()
    if isinstance(driver, DriverUnavailable):
        runtime.report_unavailable(HINTS, driver.what)
    else:
        runtime.report_on(HINTS, f"policy {runtime.settings.optimizations.uvm_access_pattern}")


def log(runtime: RuntimeConfig) -> None:
    logger.info("\n".join(runtime.lines()))
