"""The ways of moving a batch to the GPU, timed by the module that times them at the start of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from .bench import Bench
from .claims import Answer, NotTested, judged

# 32 latents of 16 x 128 x 128 in bf16.
ENTRIES, BATCH_BYTES = 32, 32 << 19
SECONDS = 120.0
EXPECTED = "managed, pinned and hbm all work"
# It needs torch, which this process does without; and upstream's own start-up code is for trainers.
TIME_WAYS = """
import json, sys
from dataclasses import asdict
from types import ModuleType
parent = ModuleType("simpletuner")
parent.__path__ = [sys.argv[1]]
sys.modules["simpletuner"] = parent
from simpletuner.gh200.memory.ways import time_ways
device, size, entries = map(int, sys.argv[2:])
print("WAYS " + json.dumps(asdict(time_ways(device, size, entries=entries))))
"""


def batch(bench: Bench) -> Iterator[Answer]:
    machine = bench.machine
    if not machine.importable("torch"):
        raise NotTested("there is no torch in this interpreter: run with .venv/bin/python")
    words = (str(machine.package), str(bench.ordinal), str(BATCH_BYTES), str(ENTRIES))
    ran = machine.run((sys.executable, "-c", TIME_WAYS, *words), SECONDS, machine.environ)
    told = [line.removeprefix("WAYS ") for line in ran.output.splitlines() if line.startswith("WAYS ")]
    if ran.code != 0 or not told:
        raise NotTested(f"they could not be timed: {ran.problem or ran.last_line}")
    yield _judged(json.loads(told[-1]), bench.device.shares_managed_memory)


def _judged(timed: dict[str, Any], shares_managed_memory: bool) -> Answer:
    medians = {way: timing["median"] for way, timing in timed["timings"].items()}
    failed = {way: why for way, why in timed["failed"].items() if way != "managed" or shares_managed_memory}
    shown = [f"{way} {seconds * 1e6:.0f} us" for way, seconds in sorted(medians.items(), key=lambda pair: pair[1])]
    shown += [f"{way} failed: {why}" for way, why in failed.items()]
    seen = f"{timed['batch_bytes'] / 1e6:.1f} MB in {timed['entries']} entries: {', '.join(shown)}"
    return judged("batch_ways", bool(medians) and not failed, EXPECTED, seen, **medians)
