"""The acceptance run on the simulated driver: what it shows, refutes and leaves out, and how it leaves a machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from acceptance_lab import MIB, accepted, clean, seen, verdicts
from diagnostic_lab import REPO, schema_errors

from gh200_lab.pages import acceptance as acceptance_page
from simpletuner.gh200.diagnostic.acceptance.claims import CLAIMS, OF_OWN_MEMORY
from simpletuner.gh200.diagnostic.acceptance.session import PARTS
from tests.cuda_sim.processes import Machine

SCRIPT = REPO / "gh200_diagnostic.py"
SPEED = {"resident_is_cheap", "to_device_speed", "to_host_speed"}
ASKED_FOR = {"larger_than_hbm"}
UUID = "GPU-57a4d190-2c1e-4b77-8f30-6e5d9102c400"


def of(report: dict[str, Any], verdict: str) -> set[str]:
    return {name for name, found in verdicts(report).items() if found == verdict}


def test_shows_what_a_cuda_sim_can_show(machine: Machine) -> None:
    report, output = accepted(machine)
    assert of(report, "refuted") == set()
    assert of(report, "not tested") == SPEED | ASKED_FOR
    assert clean(machine) and "CLOSED 1" in output
    assert not schema_errors(report, acceptance_page.schema())
    assert "expected: " in output and "seen: " in output and "Step times" in output
    assert output.count("GH200 acceptance: ") == 1 and len(report["trainings"]) == 4


def test_every_claim_has_a_part_and_every_part_a_claim() -> None:
    assert {claim.part for claim in CLAIMS} == {part.name for part in PARTS}
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("mode", ["cdmm", "pcie"])
def test_expects_of_each_mode_what_it_does(machine: Machine, mode: str) -> None:
    report, _ = accepted(machine, mode=mode)
    assert of(report, "refuted") == set(), report["claims"]
    assert verdicts(report)["hints_ordinary"] == "not tested" and "with the CPU" in json.dumps(report["claims"])
    assert clean(machine)


@pytest.mark.parametrize(
    ("plan", "claim", "verdict", "words"),
    [
        ({"everything on": {"losses": ("0x1p0", "0x1p1")}}, "all_on_bits", "refuted", "loss of micro-batch 2"),
        ({"everything on": {"updates": ("a", "x")}}, "all_on_bits", "refuted", "weights after update 2"),
        ({"everything on": {"weights": {"unet": "x"}}}, "all_on_bits", "refuted", "weights on disk: unet"),
        (
            {"everything on": {"updates": ("x",)}, "stock again": {"losses": ("0x1p3",)}},
            "all_on_bits", "not tested", "two stock trainings differ here too",
        ),
        ({"managed, HBM filled": {"code": 1, "complaint": "no block"}}, "beyond_hbm_bits", "refuted", "no block"),
        ({"stock, HBM filled": {"losses": ()}}, "stock_out_of_memory", "refuted", "it trained all the same"),
        ({"stock, HBM filled": {"code": 9, "complaint": "gone"}}, "stock_out_of_memory", "refuted", "otherwise: gone"),
        ({"stock, HBM filled": {"losses": ()}}, "beyond_hbm_bits", "not tested", "was not seen"),
        ({"stock": {"code": 1, "complaint": "no VAE"}}, "all_on_bits", "not tested", "stock training itself fails"),
        ({"everything on": {"timeout": True}}, "all_on_bits", "not tested", "--minutes"),
    ],
)  # fmt: skip
def test_judges_the_trainings(machine: Machine, plan: dict[str, Any], claim: str, verdict: str, words: str) -> None:
    refuted = verdict == "refuted" or "stock, HBM filled" in plan
    report, _ = accepted(machine, "--quiet", plan=plan, code=int(refuted))
    assert verdicts(report)[claim] == verdict and words in seen(report, claim), seen(report, claim)


def test_one_pool_has_no_claims_about_memory_of_the_gpus_own(machine: Machine) -> None:
    report, _ = accepted(machine, mode="pool")
    found = verdicts(report)
    assert {claim for claim, verdict in found.items() if verdict == "not applicable"} == OF_OWN_MEMORY
    assert [claim for claim, verdict in found.items() if verdict == "refuted"] == []
    assert found["all_on_bits"] == "shown" and report["summary"]["not applicable"] == len(OF_OWN_MEMORY)


def test_large_is_only_tried_when_asked(machine: Machine) -> None:
    report, _ = accepted(machine, "--large")
    assert verdicts(report)["larger_than_hbm"] == "shown" and report["minutes"] == 60
    report, _ = accepted(machine, "--large", plan={"larger than HBM": {"losses": ("nan",)}}, code=1)
    assert verdicts(report)["larger_than_hbm"] == "refuted"


def test_without_a_trainer_says_so(machine: Machine) -> None:
    for trains, missing, words in ((False, "", "started without the lab"), (True, "no fork here", "no fork here")):
        report, _ = accepted(machine, "--quiet", trains=trains, missing=missing)
        assert words in seen(report, "all_on_bits") and verdicts(report)["all_on_bits"] == "not tested"


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"ways": {"failed": {"pinned": "no pinned memory"}}}, "refuted", "pinned failed: no pinned memory"),
        ({"ways": {"timings": {}}}, "refuted", "32 entries"),
        ({"ways_code": 1}, "not tested", "could not be timed"),
        ({"ways": {"failed": {"managed": "no"}}, "mode": "pcie"}, "refuted", "managed failed"),
    ],
)
def test_ways_of_a_batch(machine: Machine, changes: dict[str, Any], verdict: str, words: str) -> None:
    report, _ = accepted(machine, "--quiet", code=int(verdict == "refuted"), **changes)
    assert verdicts(report)["batch_ways"] == verdict and words in seen(report, "batch_ways")


def test_says_which_torch_it_is(machine: Machine) -> None:
    patched = {"version": "2.9.0+uvm", "takes_uvm_keys": True, "lacking": ["torch.cuda.MemPool"]}
    report, output = accepted(machine, torch=patched, code=1)
    assert verdicts(report)["torch_allocator"] == "refuted" and "use_uvm keys that are not set" in output


def test_cuts_what_the_minutes_do_not_allow(machine: Machine) -> None:
    report, _ = accepted(machine, "--quiet", "--minutes", "0.00001")
    cut = {claim["id"] for claim in report["claims"] if "--minutes" in claim["seen"]}
    assert {"all_on_bits", "to_device_speed", "allocation_beyond_hbm"} <= cut and report["trainings"] == []
    assert verdicts(report)["evicted_intact"] == "shown" and "not asked for" in seen(report, "larger_than_hbm")


@pytest.mark.parametrize(
    ("faults", "claims"),
    [
        ({"fail": "cuMemAdvise_v2", "fail_code": 801}, {"fresh_thread", "hints_remembered", "first_touch_managed"}),
        ({"fail": "cuMemPrefetchBatchAsync", "fail_code": 801}, {"one_call_for_many"}),
        ({"corrupt": 3}, {"evicted_intact"}),
        ({"idle_prefetch": 1}, {"one_call_for_many"}),
        ({"corrupt_copies": 1}, {"copies_intact"}),
        ({"concurrent": 0}, {"concurrent_access"}),
        ({"managed": MIB}, {"first_touch_managed", "evicted_for_plain", "allocation_beyond_hbm"}),
    ],
)
def test_refutes_what_the_driver_does_not_do(machine: Machine, faults: dict[str, object], claims: set[str]) -> None:
    report, _ = accepted(machine, "--quiet", code=1, **faults)
    assert claims <= of(report, "refuted"), verdicts(report)
    assert clean(machine)


@pytest.mark.parametrize("after", [30, 90, 200])
def test_ends_with_a_whole_report_when_the_gpu_is_gone(machine: Machine, after: int) -> None:
    report, _ = accepted(machine, "--quiet", code=1, fail="*", fail_code=719, fail_after=after)
    assert len(report["claims"]) == len(CLAIMS) and of(report, "refuted")
    assert any("stopped answering" in claim["seen"] for claim in report["claims"])


@pytest.mark.parametrize(
    ("smi", "words"),
    [
        ({"compute-apps": f"{UUID}, 4711, 9000\n"}, "process 4711 has 9000 MiB"),
        ({"utilization": f"{UUID}, 97\n"}, "97 % busy"),
    ],
)
def test_leaves_a_busy_gpu_alone(machine: Machine, smi: dict[str, str], words: str) -> None:
    report, output = accepted(machine, smi=smi, code=3)
    assert not report and words in output and "nothing was tried" in output and "fix: " in output
    assert not machine.calls("cuMemAllocManaged") and not machine.calls("cuMemAlloc_v2")
    assert clean(machine)


def test_on_another_gpus_processes_is_not_rejected(machine: Machine) -> None:
    accepted(machine, "--quiet", smi={"compute-apps": "GPU-other, 4711, 9000\n"})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_that_is_stopped_writes_what_it_saw(machine: Machine, number: int) -> None:
    report, output = accepted(machine, plan={"everything on": {"sleep": int(number)}}, code=128 + number)
    assert report["ended"] == f"interrupted by {signal.Signals(number).name}" and report["ended"] in output
    assert verdicts(report)["beyond_hbm_bits"] == "shown" and "interrupted" in seen(report, "all_on_bits")
    assert clean(machine) and "CLOSED 1" in output and "Traceback" not in output


def test_without_a_gpu_says_what_is_missing(machine: Machine) -> None:
    report, output = accepted(machine, devices=0, code=3)
    assert of(report, "not tested") == {claim.id for claim in CLAIMS} and report["trainings"] == []
    assert "no CUDA device that can be used" in report["ended"] and report["ended"] in output


def started(directory: Path, *words: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    """As an operator does, with a Python that has no packages at all."""
    line = f'{shell} exec "$0" -I -S "$@"'
    command = ["bash", "-c", line, sys.executable, str(SCRIPT), "--acceptance", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120)


def test_of_a_bare_python(tmp_path: Path) -> None:
    done = started(tmp_path, "--quiet")
    assert done.returncode == 3 and "no CUDA device" in done.stdout and "Traceback" not in done.stderr, done.stderr
    report = json.loads((tmp_path / "gh200_acceptance.json").read_text())
    assert not schema_errors(report, acceptance_page.schema())


@pytest.mark.parametrize(
    ("words", "shell", "said"),
    [
        (["--minutes", "0"], "", "above 0"),
        (["--minutes", "nan"], "", "above 0"),
        (["--minutes", "soon"], "", "above 0"),
        (["--config", "x.json"], "", "goes without --config"),
        (["--skip-allocation"], "", "goes without --skip-allocation"),
        (["--output", "no/such/directory.json"], "", "No such file"),
        (["--output", "."], "", "is a directory"),
        # As on a full disk: a file may not grow to the size of a report.
        (["--output", "full.json"], "ulimit -f 100;", "cannot be written"),
    ],
)
def test_rejects_before_any_work(words: list[str], shell: str, said: str, tmp_path: Path) -> None:
    done = started(tmp_path, *words, shell=shell)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == [] and "asking" not in done.stderr


@pytest.mark.parametrize("words", [["--large"], ["--minutes", "3"]])
def test_words_belong_to_it(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(SCRIPT), *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "belongs to --acceptance" in done.stderr


KILLED = """
import sys, time
from pathlib import Path
from gh200_lab import process
from gh200_lab.validation import acceptance
acceptance.make_model = acceptance.make_images = lambda *_: None
acceptance.find_place = lambda: type("Place", (), {"fork": Path()})
directory = acceptance.Trainings()._lab(8).directory
print(directory, flush=True)
process.run([sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"],
            cwd=directory, environment={}, log=directory / "log", limit=60)
"""


def test_killed_outright_leaves_no_process_and_no_directory(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPO), "TMPDIR": str(tmp_path)}
    script = f"from gh200_lab.checkout import see_this_checkout\nsee_this_checkout()\n{KILLED}"
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    directory = Path(parent.stdout.readline().strip())
    try:
        _until(lambda: (directory / "log").is_file() and "begun" in (directory / "log").read_text())
        assert running(directory)
    finally:
        parent.kill()
        parent.wait()
    _until(lambda: not running(directory) and list(tmp_path.iterdir()) == [])


def running(directory: Path) -> list[str]:
    """Processes at work in a directory; a dead one nobody has asked about yet has none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == directory:
                found.append(process.name)
        except OSError:
            continue
    return found


def _until(true: Any, seconds: float = 30.0) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)
