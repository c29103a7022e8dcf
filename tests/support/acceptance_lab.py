"""Acceptance runs on the simulated driver, with fake trainings whose results the test sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cuda_sim.processes import Machine

MIB = 1 << 20
STOCK_TORCH = {"version": "2.14.1", "cuda": "13.0", "available": True, "device_count": 1, "architectures": []}
EACH = {"median": 1e-3, "lowest": 1e-3, "highest": 2e-3}
WAYS = {
    "batch_bytes": 16 * MIB, "entries": 32, "rounds": 3, "failed": {},
    "timings": {"managed": EACH, "pinned": EACH, "hbm": EACH, "stock": EACH},
}  # fmt: skip
RUN = """
import ctypes, json, os, signal, sys, tempfile, threading, time
from simpletuner.gh200.diagnostic.acceptance.trainings import Trained
from simpletuner.gh200.cli.doctor import main
from simpletuner.gh200.diagnostic.machine import Machine, Ran, run_limited

STOCK = dict(losses=("0x1p0", "0x1p-1"), updates=("a", "b"), weights={{"unet": "c"}}, step_seconds=(1.0, 0.5))
SMI = {smi!r}
# Torch is replaced by its recorded description and timings.
TORCH = {{"FACTS": Ran(0, "FACTS " + json.dumps({torch!r})), "time_transfer_paths": Ran({ways_code!r}, "WAYS " + json.dumps({ways!r}))}}

class FakeTrainings:
    closed = 0
    def missing(self):
        return {missing!r}
    def train(self, order, limit):
        plan = {plan!r}
        result = dict(STOCK, torch_bytes=10 << 20, driver_bytes=1 << 20, left_bytes=order.leave_bytes)
        change = plan.get(order.name, {{}})
        if "sleep" in change:
            threading.Timer(0.3, os.kill, (os.getpid(), change["sleep"])).start()
            time.sleep(30)
        if change.get("timeout"):
            raise TimeoutError("late")
        if order.leave_bytes is not None and not order.managed and not change:
            return Trained(order.name, 1, 1.0, left_bytes=order.leave_bytes, out_of_memory=True, complaint="CUDA out of memory")
        code = change.get("code", 0)
        return Trained(order.name, code, 1.0, **result | {{k: v for k, v in change.items() if k != "code"}})
    def close(self):
        FakeTrainings.closed += 1

def run(command, seconds, environ=None):
    if SMI and command[0] == "nvidia-smi":
        for word, output in SMI.items():
            if word in command[1]:
                return Ran(0, output)
    for word, answer in TORCH.items():
        if word in command[2]:
            return answer
    return run_limited(command, seconds, environ)

# Other runs on this machine have the same simulated GPU.
tempfile.tempdir = os.getcwd()
machine = Machine(importable=lambda name: True, run=run)
code = main({words!r}, machine, trainer=FakeTrainings if {trains!r} else None)
print("CODE", code, "CLOSED", FakeTrainings.closed, flush=True)
sys.stderr.flush()
# The simulated device's own: it writes its report first.
ctypes.CDLL("libcuda.so.1")._exit(0)
"""


def accepted(
    machine: Machine,
    *words: str,
    plan: dict[str, Any] | None = None,
    missing: str = "",
    trains: bool = True,
    smi: dict[str, str] | None = None,
    torch: dict[str, Any] | None = None,
    ways: dict[str, Any] | None = None,
    ways_code: int = 0,
    code: int = 0,
    **faults: object,
) -> tuple[dict[str, Any], str]:
    """The report (empty where none was written) and all that was printed."""
    report = machine.log.parent / "gh200_acceptance.json"
    report.unlink(missing_ok=True)
    script = RUN.format(
        words=["--acceptance", *words], plan=plan or {}, missing=missing, trains=trains, smi=smi or {},
        torch=STOCK_TORCH | (torch or {}), ways=WAYS | (ways or {}), ways_code=ways_code,
    )  # fmt: skip
    options = {"mode": "numa", "hbm": 64 * MIB, "report": machine.log.parent / "left.jsonl"} | faults
    options["report"].unlink(missing_ok=True)  # type: ignore[attr-defined]
    output = machine.run(script, **options)
    assert f"CODE {code} " in output, output
    result = json.loads(report.read_text()) if report.exists() else {}
    assert not result or result["summary"]["exit_code"] == code
    return result, output


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {claim["id"]: claim["verdict"] for claim in report["claims"]}


def seen(report: dict[str, Any], claim: str) -> str:
    return next(one["seen"] for one in report["claims"] if one["id"] == claim)


def clean(machine: Machine) -> bool:
    """No call that a strict driver rejects, nothing of ours left, by the report of the process that did the work."""
    lines = Path(machine.log.parent / "left.jsonl").read_text().splitlines()
    report = json.loads(lines[-1])
    return report["violations"] == [] and not any(report["left"]["driver"].values())
