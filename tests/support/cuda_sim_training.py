"""Whole trainings on a GPU made of host memory: the one way to start them, and what their processes report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gh200_lab.place import ROOT
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run, weights
from tests.cuda_sim.processes import HERE


@dataclass(frozen=True)
class Trained:
    run: Run
    report: Path

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """One of every process that used the GPU."""
        return [json.loads(line) for line in self.report.read_text().splitlines()]

    @cached_property
    def trainers(self) -> list[dict[str, Any]]:
        """Those of the processes that trained, by the device each used."""
        mine = [one for one in self.reports if any(one.get("device_bytes_peak", ()))]
        return sorted(mine, key=lambda one: [bool(peak) for peak in one["device_bytes_peak"]], reverse=True)

    def bits(self) -> tuple[list[str], list[str], dict[str, str]]:
        """Ranks write their lines as they come."""
        return sorted(self.run.micro_losses()), sorted(self.run.updates()), weights(self.run.output)


def trained(directory: Path, name: str, *options: str, ranks: int, start: Callable[..., Run]) -> Trained:
    """`start` runs the training with the launcher and the variables it is given."""
    report = directory / f"{name}.jsonl"
    report.unlink(missing_ok=True)
    prefix = (str(HERE / "run.sh"), "--devices", str(ranks), *options, "--report", str(report))
    variables = {"CUDA_SIM_BACKEND": "gloo", "OMP_NUM_THREADS": "1"}
    # Its list of fonts takes seconds to make, and has nothing to do with the machine.
    variables["MPLCONFIGDIR"] = str(ROOT / "build" / "matplotlib")
    run = start(name, launcher=Launcher(gpu=True, ranks=ranks, prefix=prefix), variables=variables)
    return Trained(run, report)
