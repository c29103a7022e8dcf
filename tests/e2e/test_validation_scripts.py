"""The validation scripts and the baseline, as an operator types them, in the built fork."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tiny

pytestmark = pytest.mark.timeout(3600)


def run(script: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    environment = os.environ | {"GH200_FORK": str(tiny.FORK)}
    command = ["bash", str(tiny.ROOT / "scripts" / script), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def scenarios(script: str, *arguments: str, cwd: Path) -> dict[str, dict[str, Any]]:
    """Every scenario that ran, by name; none may have failed, and none may leave a trace in the fork."""
    report = cwd / "report.json"
    code, output = run(script, *arguments, "--json", str(report), cwd=cwd)
    assert code == 0, output
    changed = subprocess.run(["git", "-C", str(tiny.FORK), "status", "--short"], capture_output=True, text=True)
    assert changed.stdout == ""
    return {entry["name"]: entry for entry in json.loads(report.read_text())["scenarios"]}


def test_each_feature_by_itself(tmp_path: Path) -> None:
    found = scenarios("test_gh200_features.sh", cwd=tmp_path)
    assert list(found) == ["diagnostic", "memory", "staging", "ramp"]
    assert {name for name, entry in found.items() if entry["verdict"] == "passed"} >= {"memory", "staging", "ramp"}
    assert "second process" in found["staging"]["what"]


def test_one_feature_can_be_selected(tmp_path: Path) -> None:
    assert list(scenarios("test_gh200_features.sh", "--memory", cwd=tmp_path)) == ["memory"]


@pytest.mark.slow(reason="a cold training")
def test_the_features_together_with_an_attention_backend(tmp_path: Path) -> None:
    found = scenarios(
        "test_combined_features.sh", "--backend", "native-math", "--backend", "sageattention", cwd=tmp_path
    )
    assert found["backend-native-math"]["verdict"] == "passed"
    assert "[1, 1, 1, 1, 1, 2, 2, 3, 4]" in found["backend-native-math"]["what"]
    assert found["backend-sageattention"]["verdict"] == "skipped"
    assert not list((tiny.ROOT / "build" / "validation").glob("backend-*"))


@pytest.mark.slow(reason="two cold trainings")
def test_manual_requests_during_a_ramp(tmp_path: Path) -> None:
    found = scenarios("test_combined_features.sh", "--manual-validation", cwd=tmp_path)
    assert [entry["verdict"] for entry in found.values()] == ["passed"]
    assert "losses equal" in found["manual-requests"]["what"]


@pytest.mark.slow(reason="two cold trainings")
def test_an_audio_dataset_in_memory(tmp_path: Path) -> None:
    found = scenarios("test_combined_features.sh", "--audio", cwd=tmp_path)
    assert [entry["verdict"] for entry in found.values()] == ["passed"]
    assert "equal to those of type local" in found["audio-in-memory"]["what"]


@pytest.mark.slow(reason="two cold trainings of 40 steps")
def test_a_baseline_is_kept_compared_and_not_lost(tmp_path: Path) -> None:
    directory = tmp_path / "baseline"
    code, output = run("capture_baseline.sh", "--steps", "40", "--output", str(directory), cwd=tmp_path)
    assert code == 0, output
    kept = json.loads((directory / "baseline.json").read_text())
    assert len(kept["seconds_per_sample"]) == 40 - kept["warm_up"] == 35
    assert kept["samples_per_second"] > 0 and kept["step_seconds"]["p50"] <= kept["step_seconds"]["p99"]
    assert "samples per second" in (directory / "baseline_report.txt").read_text()
    again = ("capture_baseline.sh", "--steps", "40", "--output", str(directory), "--compare", str(directory))
    code, output = run(*again, cwd=tmp_path)
    (compared,) = directory.glob("compared/*/baseline.json")
    verdict = json.loads(compared.read_text())["comparison"]["verdict"]
    assert code == (verdict == "worse"), output
    assert json.loads((directory / "baseline.json").read_text()) == kept


@pytest.mark.slow(reason="a cold training of 20 steps")
def test_against_a_much_faster_past_a_run_is_worse(tmp_path: Path) -> None:
    """The run is real; the past is invented: from an idle machine, thousands of times as fast, with everything on."""
    past = {
        "format": 1,
        "features": "on",
        "machine": {"cpu": "another"},
        "versions": {"upstream": "3.1.1"},
        "other_work": 0.0,
        "seconds_per_sample": [1e-5] * 20,
    }
    old = tmp_path / "old.json"
    old.write_text(json.dumps(past))
    output = str(tmp_path / "out")
    code, output = run("capture_baseline.sh", "--steps", "20", "--output", output, "--compare", str(old), cwd=tmp_path)
    assert code == 1 and "worse" in output, output
    for name in ("features", "processor", "upstream"):
        assert f"not the same {name}" in output
