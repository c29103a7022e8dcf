"""The lab's one way to train: how a run is started, what it inherits, what it leaves, what is forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.scenario import Failed
from gh200_lab.tiny.config import moved_config
from gh200_lab.tiny.lab import Lab, forget
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import read_log

# Stands for upstream's trainer: says what it was given, one file per rank.
TRAIN = """
import json, os, sys
from pathlib import Path
config = json.loads(Path(os.environ.get("CONFIG_PATH") or sys.argv[2]).read_text())
output = Path(config["output_dir"])
rank = os.environ.get("RANK", "0")
(output / f"rank{rank}.json").write_text(json.dumps({"environment": dict(os.environ), "arguments": sys.argv[1:]}))
(output / "seen").write_text(str(sorted(path.name for path in output.iterdir())))
log = Path(os.environ["GH200_RUN_LOG"])
log.write_text(json.dumps({"kind": "step", "loss": 1.0}) + "\\n" + '{"kind": "st')
sys.exit(config.get("code", 0))
"""
CPU = Launcher(gpu=False)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    script = tmp_path / "tree" / "simpletuner" / "train.py"
    script.parent.mkdir(parents=True)
    script.write_text(TRAIN)
    (tmp_path / "lab").mkdir()
    return Lab(tmp_path / "lab", tmp_path / "tree")


def reported(output: Path, rank: int = 0) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((output / f"rank{rank}.json").read_text())
    return answer


def test_a_run_inherits_nothing_of_another(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONFIG_BACKEND", "toml")
    monkeypatch.setenv("SIMPLETUNER_ENV", "examples")
    seen = reported(lab.run("first", lab.config("off"), launcher=CPU).output)["environment"]
    assert seen["CONFIG_BACKEND"] == "json" and seen["PYTHONPATH"] == str(lab.tree)
    assert seen["CUDA_VISIBLE_DEVICES"] == "" and seen["PYTHONHASHSEED"] == "0"
    assert not {"SIMPLETUNER_ENV", "SIMPLETUNER_SKIP_TORCH"} & seen.keys()


def test_a_command_in_front_runs_the_trainer_and_may_lend_a_gpu(lab: Lab) -> None:
    lent = Launcher(gpu=True, prefix=("env", "LENT=one"))
    seen = reported(lab.run("lent", lab.config(), launcher=lent).output)["environment"]
    assert seen["LENT"] == "one" and "ACCELERATE_USE_CPU" not in seen


def test_two_ranks_and_only_two(lab: Lab) -> None:
    run = lab.run("two", lab.config(), launcher=Launcher(gpu=False, ranks=2))
    assert run.code == 0, run.text[-2000:]
    assert [reported(run.output, rank)["environment"]["WORLD_SIZE"] for rank in (0, 1)] == ["2", "2"]
    with pytest.raises(ValueError, match="one rank"):
        Launcher(documented=True, ranks=2)


@pytest.mark.parametrize(("gpu", "file"), [(True, "gh200"), (False, "cpu")])
def test_the_documented_command(gpu: bool, file: str) -> None:
    command = Launcher(documented=True, gpu=gpu).command(Path(), Path("config/quickstart.json"), "--max_train_steps=3")
    start = f"accelerate launch --config_file config/accelerate_config_{file}.yaml simpletuner/train.py"
    assert " ".join(command) == f"{start} --config config/quickstart.json --max_train_steps=3"


def test_a_run_begins_with_an_empty_output_or_with_that_of_another(lab: Lab) -> None:
    first = lab.run("first", lab.config(), launcher=CPU)
    assert (first.output / "seen").read_text() == "['rank0.json']"
    resumed = lab.run("resumed", lab.config(), launcher=CPU, resume="first")
    assert (resumed.output / "seen").read_text() == "['rank0.json', 'seen']" and first.output.is_dir()


def test_a_line_that_is_being_written_does_not_count(lab: Lab) -> None:
    run = lab.run("cut", lab.config(), launcher=CPU)
    assert run.losses() == [1.0] and run.end == {} and lab.steps_so_far() == 1
    assert read_log(lab.directory / "nowhere") == ([], {})


@pytest.mark.parametrize(("changes", "why"), [({"code": 3}, "exit code 3"), ({"max_train_steps": 2}, "1 were trained")])
def test_a_run_that_does_not_end_well_is_a_failure(lab: Lab, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(Failed, match=why):
        lab.train("bad", lab.config(**changes), launcher=CPU)


@pytest.mark.parametrize("features", ["on", "off"])
def test_the_shipped_config_is_moved_whole(tmp_path: Path, features: str) -> None:
    config = moved_config(tmp_path / 'a "b"', features, seed=7)
    assert "build/quickstart" not in json.dumps(config) and config["seed"] == 7
    assert Path(config["datasets"][0]["instance_data_dir"]) == tmp_path / 'a "b"' / "images"


def test_forgetting_leaves_data_and_kept_runs(tmp_path: Path) -> None:
    for name in ("cache/vae/x.pt", "output/trace", "images/aspect_ratio_bucket_x.json", "images/a.png", "runs/a/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    forget(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["a.png", "w"]
