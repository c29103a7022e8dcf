"""Training beyond HBM on the simulated device: what each way moves per step, beside the least that any way can move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from simpletuner.gh200.offload.cost import Link, Traffic

from ..place import ROOT
from .result import BenchSettings, Ratio, Result

SIMULATED = ROOT / "tests" / "cuda_sim" / "run.sh"
STEPS, TARGET, RESULT = 4, 1.15, "OFFLOAD "
SIZES = (96, 128, 160, 208, 256, 352)  # of HBM, MB
AMPLE = 512


@dataclass(frozen=True)
class Way:
    """One way to train, and the HBM in which its traffic is counted."""

    name: str
    hbm: int
    asked: Mapping[str, Any]
    planned: bool = False


WAYS = (
    Way("stock in HBM", AMPLE, {"mode": "stock"}),
    Way('"state"', 160, {"mode": "state"}),
    Way('"all"', 160, {"mode": "all"}),
    Way("torchao CPU offload", 256, {"mode": "torchao"}),
    Way("RamTorch", 256, {"mode": "stock", "ramtorch": True}),
    Way('planned ("auto")', 256, {"mode": "auto"}, planned=True),
    Way("planned, EMA", 256, {"mode": "auto", "ema": True}, planned=True),
    Way("planned, EMA, clipped", 256, {"mode": "auto", "ema": True, "clip": True}, planned=True),
    Way("planned, gradients too", 192, {"mode": "auto"}, planned=True),
    # Above the target: clipping reads offloaded gradients twice more and writes them once.
    Way("planned, gradients, clip", 192, {"mode": "auto", "clip": True}, planned=True),
    Way("planned, RamTorch", 240, {"mode": "auto", "ramtorch": True}, planned=True),
)


def measure(settings: BenchSettings) -> Iterator[Result]:
    """Every way's traffic, and the targets of the planned ones."""
    if not SIMULATED.is_file():
        print(f"skipped: {SIMULATED.relative_to(ROOT)} is not here")
        return
    print(
        f"{'':<24}{'smallest HBM':>13}{'in B/param':>12}{'out B/param':>13}{'faults':>8}{'evicted':>9}{'predicted s':>13}"
    )
    for way in WAYS:
        found = trained(way.asked, way.hbm)
        smallest = way.hbm if settings.quick else _smallest(way)
        if "steps" not in found:
            print(f"{way.name:<24}{smallest or '-':>10} MB  out of memory at {way.hbm} MB")
            yield Ratio(f"{way.name}: trains in {way.hbm} MB", (0.0,), 1.0 if way.planned else None)
            continue
        step = found["steps"][-1]
        inward, outward = (sum(step[side].values()) for side in ("to_device", "to_host"))
        count = max(1, found["parameters"])
        seconds = _traffic(step).seconds(Link())
        print(
            f"{way.name:<24}{smallest:>10} MB{inward / count:>12.1f}{outward / count:>13.1f}{step['faults']:>8}"
            f"{step['evictions']:>9}{seconds:>13.2e}"
        )
        if way.planned:
            yield from _targets(way, found, inward + outward)


def _targets(way: Way, found: dict[str, Any], moved: int) -> Iterator[Result]:
    stock = trained({**way.asked, "mode": "stock"}, AMPLE)
    weights = sum(stock["steps"][-1][side]["copy"] for side in ("to_device", "to_host"))
    bound = found["plan"]["lower_bound"]
    same = found["digest"] == stock["digest"] and found["losses"] == stock["losses"]
    faults = sum(step["faults"] + step["evictions"] for step in found["steps"])
    yield Ratio(f"{way.name}: bit-identical to stock", (float(same),), 1.0)
    yield Ratio(f"{way.name}: faults and evictions", (float(faults),), 0.0, at_least=False)
    # What SimpleTuner moves by itself, with nothing of ours, is no part of the plan.
    yield Ratio(f"{way.name}: bytes over the lower bound", ((moved - weights) / max(1, bound),), TARGET, at_least=False)


def _traffic(step: dict[str, Any]) -> Traffic:
    inward, outward = step["to_device"], step["to_host"]
    migrated = max(inward["migration"], outward["migration"])
    return Traffic(inward["copy"], outward["copy"], inward["remote"], outward["remote"], migrated)


def _smallest(way: Way) -> int | None:
    """By bisection over the sizes."""
    low, high = 0, len(SIZES)
    while low < high:
        middle = (low + high) // 2
        if "steps" in trained(way.asked, SIZES[middle]):
            high = middle
        else:
            low = middle + 1
    return SIZES[high] if high < len(SIZES) else None


def trained(asked: Mapping[str, Any], hbm: int) -> dict[str, Any]:
    """What a process with so much HBM printed; empty where it failed otherwise."""
    return _trained(json.dumps({**asked, "steps": STEPS}), hbm)


@cache
def _trained(asked: str, hbm: int) -> dict[str, Any]:
    command = [str(SIMULATED), "--hbm-mb", str(hbm), "--managed-mb", "2048", sys.executable, "-m"]
    done = subprocess.run(
        [*command, "gh200_lab.bench.offload_run", asked],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'build' / 'fork'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith(RESULT)), None)
    if line is None:
        print(f"  {asked} with {hbm} MB: {(done.stderr.strip() or 'nothing printed').splitlines()[-1][:150]}")
        return {}
    return dict(json.loads(line.removeprefix(RESULT)))
