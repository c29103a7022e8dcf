"""The verdict on two timed runs, what is said about runs that do not belong together, and that no baseline is lost."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.place import ROOT
from gh200_lab.validation.baseline import write_json
from gh200_lab.validation.baseline_compare import BadBaseline, compare, read_baseline
from gh200_lab.validation.baseline_load import LoadWatch
from gh200_lab.validation.baseline_store import store


def record(
    level: float = 0.1, *, seed: int = 1, noise: float = 0.02, other_work: float = 0.0, **more: Any
) -> dict[str, Any]:
    """A run of 190 counted steps around one level, with a hiccup every 40 steps."""
    draw = random.Random(seed)
    times = [level * draw.lognormvariate(0, noise) * (5 if step % 40 == 7 else 1) for step in range(190)]
    return {
        "format": 1,
        "features": "off",
        "machine": {"cpu": "a CPU", "cpus": 2, "ram_gib": 24, "gpus": []},
        "versions": {"upstream": "4.10.1", "torch": "2.14.1", "python": "3.13.0"},
        "other_work": other_work,
        "seconds_per_sample": times,
        **more,
    }


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (1.0, "same"),
        (1.02, "same"),
        (1.05, "inconclusive"),
        (1.10, "worse"),
        (2.0, "worse"),
        (0.97, "same"),
        (0.8, "better"),
    ],
)
def test_the_verdict_follows_the_change(change: float, verdict: str) -> None:
    found = compare(record(), record(0.1 * change, seed=2))
    assert found.verdict == verdict, found.sentence()
    assert found.low <= change - 1 <= found.high
    assert verdict in found.sentence() and not found.warnings


def test_time_gpu_memory_and_ram_have_three_verdicts_kept_as_json(tmp_path: Path) -> None:
    old = record(peak_gpu_bytes=10 << 30, peak_resident_bytes=4 << 30)
    new = record(seed=2, peak_gpu_bytes=12 << 30, peak_resident_bytes=2 << 30)
    found = compare(old, new)
    assert found.verdict == "same" and found.worse
    write_json(tmp_path / "baseline.json", new, found)
    kept = json.loads((tmp_path / "baseline.json").read_text())["comparison"]
    assert {part["name"]: part["verdict"] for part in kept["memory"]} == {"GPU memory": "worse", "RAM": "better"}
    assert "not compared, neither run had a GPU" in compare(record(), record()).memory[0].sentence()


def test_equal_runs_are_hardly_ever_called_worse() -> None:
    verdicts = [compare(record(seed=2 * n, noise=0.15), record(seed=2 * n + 1, noise=0.15)).verdict for n in range(200)]
    assert verdicts.count("worse") == 0


def test_a_drifting_run_widens_the_interval() -> None:
    steady, drifting = record(0.12, seed=2), record(0.12, seed=2)
    times = drifting["seconds_per_sample"]
    drifting["seconds_per_sample"] = [time * (0.8 + 0.4 * number / len(times)) for number, time in enumerate(times)]
    before = record()
    assert compare(before, steady).verdict == "worse"
    assert compare(before, drifting).verdict == "inconclusive"


def test_load_of_other_processes_is_no_regression() -> None:
    quiet, slow = record(), record(0.13, seed=2, other_work=0.4)
    found = compare(quiet, slow)
    assert found.verdict == "inconclusive" and "40% of the machine" in found.warnings[0]
    assert compare(quiet, record(0.3, seed=2, other_work=0.4)).verdict == "worse"
    # A baseline taken under load looks slow, and would hide a regression.
    assert compare(record(0.13, other_work=0.4), record(seed=2)).verdict == "inconclusive"


def test_what_differs_is_named() -> None:
    machine = {"cpu": "another CPU", "cpus": 72, "ram_gib": 480, "gpus": ["NVIDIA GH200"]}
    versions = {"upstream": "4.9.0", "torch": "2.14.1", "python": "3.13.0"}
    warnings = "\n".join(compare(record(machine=machine, versions=versions, features="on"), record()).warnings)
    for name in (
        "features: 'off' now, 'on' in",
        "'another CPU'",
        "72",
        "480",
        "NVIDIA GH200",
        "'4.10.1' now, '4.9.0' in",
    ):
        assert name in warnings
    assert "torch" not in warnings and "Python" not in warnings


DAMAGED: dict[str, Any] = {
    "no JSON": "{",
    "no object": [1],
    "another format": record() | {"format": 99},
    "no times": record() | {"seconds_per_sample": []},
    "a time that is none": record() | {"seconds_per_sample": [0.1] * 20 + [-1]},
    "a text among times": record() | {"seconds_per_sample": [0.1] * 20 + ["0.1"]},
    "no machine": {key: value for key, value in record().items() if key != "machine"},
    "a share above all": record() | {"other_work": 2},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_baseline_is_rejected_by_name(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BadBaseline, match="baseline.json"):
        read_baseline(tmp_path)


def test_a_baseline_is_read_from_its_directory_or_file(tmp_path: Path) -> None:
    (tmp_path / "baseline.json").write_text(json.dumps(record()))
    assert read_baseline(tmp_path) == read_baseline(tmp_path / "baseline.json") == record()
    with pytest.raises(BadBaseline, match="does not exist"):
        read_baseline(tmp_path / "nowhere")


def captured(*arguments: str, cwd: Path, fork: str = "nowhere") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gh200_lab.validation.baseline", *arguments]
    environment = os.environ | {"GH200_FORK": fork, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compare", "nowhere"], "does not exist"),
        (["--compare", "damaged"], "is damaged"),
        (["--steps", "5"], "at least 20"),
        (["--steps", "many"], "whole number"),
        (["--features", "some"], "invalid choice"),
        ([], "no SimpleTuner tree"),
    ],
)
def test_bad_input_is_exit_code_2_before_any_training(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "baseline.json").write_text("{}")
    done = captured(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_an_output_that_is_no_directory_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "tree" / "simpletuner").mkdir(parents=True)
    (tmp_path / "tree" / "simpletuner" / "__init__.py").touch()
    (tmp_path / "taken").write_text("mine")
    done = captured("--output", "taken", cwd=tmp_path, fork=str(tmp_path / "tree"))
    assert done.returncode == 2 and "--output" in done.stderr and (tmp_path / "taken").read_text() == "mine"


def make_files(directory: Path, text: str) -> Path:
    directory.mkdir()
    for name in ("baseline.json", "baseline_report.txt"):
        (directory / name).write_text(text)
    return directory


def test_no_baseline_is_ever_lost(tmp_path: Path) -> None:
    output = tmp_path / "baseline"
    for text in ("first", "second", "third"):
        assert store(make_files(tmp_path / text, text), output, compared=False) == output
    for text in ("compared", "compared again"):
        store(make_files(tmp_path / text, text), output, compared=True)
    assert (output / "baseline.json").read_text() == "third"
    earlier = sorted(path.read_text() for path in output.glob("earlier/*/baseline.json"))
    compared = sorted(path.read_text() for path in output.glob("compared/*/baseline.json"))
    assert earlier == ["first", "second"] and compared == ["compared", "compared again"]


def test_the_kernels_accounts_separate_own_work_from_that_of_others() -> None:
    """A busy child in a group of its own: as the run it is own work, otherwise it is the work of others."""
    busy = "import time\nend = time.time() + 3\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", busy], start_new_session=True) as child:
        own, others = LoadWatch(), LoadWatch()
        while child.poll() is None:
            own.look(child.pid)
            others.look(os.getpid())
    first, last = own.samples[0], own.samples[-1]
    gained = last.own - first.own
    assert gained > 0
    shares = [watch.share_of_others(0, last.when + 1) for watch in (own, others)]
    assert 0 <= shares[0] < shares[1] <= 0.99
    assert LoadWatch().share_of_others(0, 1) == 0
