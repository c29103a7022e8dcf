"""The settings through the real fork: every way of launching gives the same ones, every mistake stops every way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launch_methods import LAUNCH_METHODS, TRAIN, UPSTREAM, Launch, environment, json_flag, outcomes
from preloaded import Preloaded

from simpletuner.gh200.config.keys import BLOCK_KEYS
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.ramp.from_config import ramp_from_config
from simpletuner.gh200.ramp.schedule import RampError

SEEN = ("on", "unavailable", "in_memory")
BLOCKS = {
    "gh200_optimizations": {
        "preflight": False,  # it would rightly stop a run whose model does not exist
        "enable_uvm_hints": True,
        "uvm_access_pattern": "balanced",
        "enable_batch_size_rampup": False,
        "initial_effective_batch_size": 4,
    },
    "cache_config": {"cache_dir": "cache/gh 200", "persistent_cache": False},
}
TYPO = {"gh200_optimizations": {"enable_uvm_hint": True}}
BIG: dict[str, Any] = {
    "datasets": [{"id": f"d{index}", "type": "local", "instance_data_dir": "x" * 1000} for index in range(10_000)],
    "gh200_optimizations": {"preflight": False},
}


RAMP = {
    "gh200_optimizations": {
        "preflight": False,
        "initial_effective_batch_size": 8,
        "target_effective_batch_size": 24,
        "batch_rampup_steps": 4,
    }
}
# What a config says of its sizes, and whether training takes it.
SIZES: dict[str, tuple[dict[str, Any], bool]] = {
    "as text": ({"train_batch_size": "2", "gradient_accumulation_steps": "3"}, True),
    "not at all": ({"train_batch_size": None}, True),
    "no accumulation": ({"gradient_accumulation_steps": 0}, False),
    "as a fraction": ({"train_batch_size": 2.5}, False),
    "as a whole fraction": ({"train_batch_size": 2.0}, False),
    "in the wrong place": ({"target_effective_batch_size": 8}, False),
    "the older switch": ({"use_gh200_trainer": "f"}, True),
}


def _special_launches(directory: Callable[[str], Path]) -> dict[str, Launch]:
    launches: dict[str, Launch] = {}
    (directory("missing")).mkdir(parents=True)
    launches["missing"] = {"argv": ["--config", "absent.json"]}
    (directory("binary")).mkdir(parents=True)
    (directory("binary") / "my.json").write_bytes(bytes(range(256)))
    launches["binary"] = {"argv": ["--config", "my.json"]}
    (directory("override")).mkdir(parents=True)
    launches["override"] = json_flag(directory("override"), BLOCKS)
    launches["override"]["argv"] += ["--max_train_steps", "7", '--cache_config={"cache_dir": "flag"}']
    (directory("big")).mkdir(parents=True)
    without = {key: value for key, value in UPSTREAM.items() if key != "data_backend_config"}
    (directory("big") / "my.json").write_text(json.dumps({**without, **BIG}))
    launches["big"] = {"argv": ["--config", "my.json"]}
    (directory("both")).mkdir(parents=True)
    launches["both"] = json_flag(directory("both"), {"datasets": [{"id": "a"}]})
    (directory("off")).mkdir(parents=True)
    launches["off"] = json_flag(directory("off"), {})
    for name, (sizes, _) in SIZES.items():
        directory(name).mkdir(parents=True)
        launches[name] = json_flag(directory(name), RAMP | sizes)
    return launches


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of every launch, by name."""
    base = tmp_path_factory.mktemp("loaders")
    launches: dict[str, Launch] = {}
    for label, blocks in (("good", BLOCKS), ("typo", TYPO)):
        for way, prepare in LAUNCH_METHODS.items():
            name = f"{label}-{way}"
            (base / name / "config").mkdir(parents=True)
            (base / name / "datasets.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "x"}]')
            launches[name] = prepare(base / name, blocks)
    launches |= _special_launches(lambda name: base / name)
    return outcomes(base, launches)


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    runtime = result["runtime"]
    assert runtime, result["output"][-3000:]
    values = {path: item["value"] for path, item in runtime["values"].items()}
    return {"values": values, **{key: runtime[key] for key in SEEN}}


@pytest.mark.parametrize("way", LAUNCH_METHODS)
def test_settings_are_the_same_by_every_loader(way: str, results: dict[str, dict[str, Any]]) -> None:
    loaded = _plain(results[f"good-{way}"])
    assert loaded == _plain(results["good-trainer-dict"])
    assert loaded["values"]["gh200_optimizations.uvm_access_pattern"] == "balanced"
    assert loaded["values"]["cache_config.cache_dir"] == "cache/gh 200"
    assert loaded["values"]["gh200_optimizations.initial_effective_batch_size"] == 4


@pytest.mark.parametrize("way", LAUNCH_METHODS)
def test_a_typo_stops_every_loader_before_models_load(way: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[f"typo-{way}"]
    # Preflight may name the missing model too, before anything is loaded; nothing ever asks a hub for it.
    assert "HTTP" not in result["output"] and "Loading" not in result["output"].split("GH200 settings: 1 problem")[-1]
    assert result["written"] == [] and not result["runtime"]
    if way in {"trainer-dict", "sdk-job"}:
        assert result["error"] == "SettingsError" and "enable_uvm_hints" in result["message"]
        return
    assert result["exit"] == 2
    last = result["output"].strip().splitlines()[-8:]
    first = "This training cannot work" if "config-flag" in way else "GH200 settings: 1 problem"
    assert any(first in line for line in last), last
    assert any('Did you mean "enable_uvm_hints"?' in line for line in last), last
    assert "Traceback" not in result["output"]


@pytest.mark.parametrize(("name", "file"), [("missing", "absent.json"), ("binary", "my.json")])
def test_an_unusable_file_is_never_replaced(name: str, file: str, results: dict[str, Any]) -> None:
    result = results[name]
    assert result["exit"] == 2 and result["written"] == []
    tail = "\n".join(result["output"].strip().splitlines()[-4:])
    assert file in tail and "fix:" in tail and "Traceback" not in result["output"]


def test_flags_win_over_the_file(results: dict[str, dict[str, Any]]) -> None:
    result = results["override"]
    values = result["runtime"]["values"]
    assert result["max_train_steps"] == 7
    assert values["cache_config.cache_dir"] == {"value": "flag", "origin": "command line"}
    assert values["cache_config.persistent_cache"]["origin"] == "default"
    assert values["gh200_optimizations.uvm_access_pattern"]["origin"] == "config file my.json"


def test_ten_megabytes_of_inline_datasets(results: dict[str, dict[str, Any]]) -> None:
    result = results["big"]
    assert result["datasets"] == len(BIG["datasets"]), result["output"][-3000:]
    assert [item for item in result["written"] if item.startswith("gh200-")] == []


def test_inline_and_file_say_which_to_remove(results: dict[str, dict[str, Any]]) -> None:
    assert results["both"]["exit"] == 2 and "remove one of the two" in results["both"]["output"]


def test_absent_settings_leave_upstream_alone(results: dict[str, dict[str, Any]]) -> None:
    assert results["off"]["runtime"] == {} and "GH200" not in results["off"]["output"]
    for name in ("off", *(f"good-{way}" for way in LAUNCH_METHODS if way != "sdk-job")):
        assert len(results[name]["attributes"]) > 100
        assert not BLOCK_KEYS & {*results[name]["attributes"]}, "trackers hash all of the parsed config"


@pytest.mark.parametrize("name", SIZES)
def test_sizes_mean_to_the_ramp_command_what_they_mean_to_training(name: str, results: dict[str, Any]) -> None:
    result, (_, taken) = results[name], SIZES[name]
    assert bool(result["runtime"]) is taken, result["output"][-3000:]
    try:
        ramp = ramp_from_config(result["config"], processes=1)
    except RampError as error:
        assert name == "the older switch" and "asks for no ramp" in str(error)
        assert result["runtime"]["values"]["gh200_optimizations.enable_batch_size_rampup"]["value"] is False
    except SettingsError:
        assert not taken
    else:
        assert taken and [ramp.train_batch_size, ramp.target] == result["sizes"]


LAUNCHERS = {
    "python": ([sys.executable, str(TRAIN)], 2),
    "accelerate": (
        [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", str(TRAIN)],
        1,
    ),
    "simpletuner": ([sys.executable, "-c", "from simpletuner.cli import main; raise SystemExit(main())", "train"], 1),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_config_flag_under_each_launcher(launcher: str, tmp_path: Path) -> None:
    command, code = LAUNCHERS[launcher]
    json_flag(tmp_path, TYPO)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--config", "my.json"],
        env=environment(PATH=path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    assert done.returncode == code, done.stdout[-3000:]
    assert (
        'gh200_optimizations.enable_uvm_hint: unknown key (value true). Did you mean "enable_uvm_hints"?' in done.stdout
    )
    assert {item.name for item in tmp_path.iterdir()} - {"debug.log"} == {"my.json"}


def test_long_blocks_reach_the_child_of_a_job(tmp_path: Path, forked: Preloaded) -> None:
    """The SDK rebuilds a command line for a child process; 10 MB do not fit into one."""
    without = {key: value for key, value in UPSTREAM.items() if key != "data_backend_config"}
    config = {**without, **BIG, "accelerate_extra_args": "--cpu"}
    (tmp_path / "job.json").write_text(json.dumps(config))
    program = (
        "import json; from simpletuner.helpers.training.trainer import run_trainer_job; "
        "run_trainer_job(json.load(open('job.json')))"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "tmp").mkdir()
    (tmp_path / "start.py").write_text(program)
    subprocess.run(
        [sys.executable, *forked.forked("start.py")],
        env=environment(PATH=path, TMPDIR=str(tmp_path / "tmp")),
        cwd=tmp_path,
        capture_output=True,
        timeout=580,
    )
    assert len(json.loads((tmp_path / "out" / "gh200_datasets.json").read_text())) == len(BIG["datasets"])
    assert not list((tmp_path / "tmp").glob("gh200-*"))
