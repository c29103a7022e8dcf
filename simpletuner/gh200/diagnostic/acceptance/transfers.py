"""The larger tests as claims: managed memory beyond HBM, copies against published speeds, ways of moving a batch."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator

from ..allocation import try_allocation
from ..bandwidth import IN, NEAR_ENOUGH, OUT, PINNED, PUBLISHED_GB_S, measure
from ..device import holds, ordinary
from ..status import FAIL, SKIP, gb
from .bench import Bench
from .claims import NOT_TESTED, Answer, NotTested, judged

CLAIM_OF = {IN: ("to_device_speed", PUBLISHED_GB_S[1]), OUT: ("to_host_speed", PUBLISHED_GB_S[0])}
# 32 latents of 16 x 128 x 128 in bf16.
ENTRIES, BATCH_BYTES = 32, 32 << 19
SECONDS = 120.0
WORD, PATTERN = 0x5EEDBA11, 0xA5
# It needs torch, which this process does without; and upstream's own start-up code is for trainers.
TIME_WAYS = """
import json, sys
from dataclasses import asdict
from types import ModuleType
parent = ModuleType("simpletuner")
parent.__path__ = [sys.argv[1]]
sys.modules["simpletuner"] = parent
from simpletuner.gh200.memory.transfer_paths import time_transfer_paths
device, size, entries = map(int, sys.argv[2:])
print("WAYS " + json.dumps(asdict(time_transfer_paths(device, size, entries=entries))))
"""


def scale(bench: Bench) -> Iterator[Answer]:
    """Managed memory beyond HBM, written and read back."""
    done = try_allocation(bench.device, bench.scale, bench.available, bench.tell)
    claim, expected = "allocation_beyond_hbm", f"{bench.scale:g} x HBM, every chunk right"
    measurements = {"bytes": float(done.size_bytes), "hbm_bytes": float(done.hbm_bytes), "seconds": done.seconds}
    if done.status == SKIP or (done.status != FAIL and done.size_bytes <= done.hbm_bytes):
        yield Answer(claim, NOT_TESTED, expected, done.message, measurements)
    else:
        yield judged(claim, done.status != FAIL, expected, done.message, **measurements)


def bandwidth(bench: Bench) -> Iterator[Answer]:
    """Copies in both directions: their bytes, then their speed."""
    yield _intact(bench)
    done = measure(bench.device, bench.available, bench.platform.family, bench.tell)
    if not done.rates:
        raise NotTested(done.message)
    measurements = {f"{rate.path}, {rate.direction}": rate.median for rate in done.rates}
    for rate in (rate for rate in done.rates if rate.path == PINNED):
        claim, published = CLAIM_OF[rate.direction]
        expected = f"{published:g} GB/s published; at least {NEAR_ENOUGH:.0%} of it"
        seen = f"{rate.median:.1f} GB/s ({rate.lowest:.1f} to {rate.highest:.1f})"
        yield bench.judged_speed(claim, rate.median >= NEAR_ENOUGH * published, expected, seen, **measurements)


def _intact(bench: Bench) -> Answer:
    size = bench.sample()
    wrong = []
    with bench.device.plain(size) as there:
        for name, memory in (("pageable", ordinary(size)), (PINNED, bench.device.pinned(size))):
            with memory as host:
                bench.device.fill(there, WORD, size)
                bench.device.copy_out(host, there, size)
                back = holds(host, WORD, size)
                ctypes.memset(host, PATTERN, size)
                bench.device.copy_in(there, host, size)
                ctypes.memset(host, 0, size)
                bench.device.copy_out(host, there, size)
                if not (back and holds(host, PATTERN * 0x01010101, size)):
                    wrong.append(name)
    seen = f"wrong bytes: {', '.join(wrong)}" if wrong else f"{gb(size)} equal each way"
    return judged("copies_intact", not wrong, "the bytes that were written", seen)


def batch(bench: Bench) -> Iterator[Answer]:
    """Timed by the module that times them at the start of a run."""
    machine = bench.machine
    if not machine.importable("torch"):
        raise NotTested("there is no torch in this interpreter: run with .venv/bin/python")
    words = (str(machine.package), str(bench.ordinal), str(BATCH_BYTES), str(ENTRIES))
    ran = machine.run((sys.executable, "-c", TIME_WAYS, *words), SECONDS, machine.environ)
    printed = ran.marked("WAYS ")
    if printed is None:
        raise NotTested(f"they could not be timed: {ran.problem or ran.last_line}")
    timed = json.loads(printed)
    medians = {way: timing["median"] for way, timing in timed["timings"].items()}
    managed = bench.device.shares_managed_memory
    failed = {way: why for way, why in timed["failed"].items() if way != "managed" or managed}
    shown = [f"{way} {seconds * 1e6:.0f} us" for way, seconds in sorted(medians.items(), key=lambda pair: pair[1])]
    shown += [f"{way} failed: {why}" for way, why in failed.items()]
    seen = f"{timed['batch_bytes'] / 1e6:.1f} MB in {timed['entries']} entries: {', '.join(shown)}"
    right = bool(medians) and not failed
    yield judged("batch_ways", right, "managed, pinned and hbm all work", seen, **medians)
