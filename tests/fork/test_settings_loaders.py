"""The settings through the real fork: every way of launching gives the same ones, every mistake stops every way.

Run as a program, this file is the driver: it imports the trainer once and forks a child per launch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200.ramp.plot import ramp_from_config
from simpletuner.gh200.ramp.schedule import RampError
from simpletuner.gh200.settings.problems import SettingsError

REPO = Path(__file__).resolve().parents[2]
FORK = Path(os.environ.get("GH200_FORK_TREE", REPO / "build" / "fork"))
TRAIN = FORK / "simpletuner" / "train.py"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SEEN = ("on", "unavailable", "in_memory")

UPSTREAM = {
    "model_family": "sdxl",
    "model_type": "lora",
    "pretrained_model_name_or_path": "no/such-model",
    "output_dir": "out",
    "optimizer": "torch-adamw",
    "learning_rate": 0.0001,
    "train_batch_size": 1,
    "max_train_steps": 2,
    "num_train_epochs": 0,
    "mixed_precision": "bf16",
    "report_to": "none",
    "data_backend_config": "datasets.json",
}
ENV_NAMES = {
    "model_family": "MODEL_FAMILY",
    "model_type": "MODEL_TYPE",
    "pretrained_model_name_or_path": "MODEL_NAME",
    "output_dir": "OUTPUT_DIR",
    "optimizer": "OPTIMIZER",
    "learning_rate": "LEARNING_RATE",
    "train_batch_size": "TRAIN_BATCH_SIZE",
    "max_train_steps": "MAX_NUM_STEPS",
    "num_train_epochs": "NUM_EPOCHS",
    "mixed_precision": "MIXED_PRECISION",
    "data_backend_config": "DATALOADER_CONFIG",
}
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
Launch = dict[str, Any]


def _flags(blocks: dict[str, Any], quote: str = "") -> list[str]:
    return [f"--{key}={quote}{json.dumps(value)}{quote}" for key, value in blocks.items()]


def _toml(config: dict[str, Any]) -> str:
    scalars = [f"{key} = {json.dumps(value)}" for key, value in config.items() if not isinstance(value, dict)]
    tables = [f"[{key}]\n{_toml(value)}" for key, value in config.items() if isinstance(value, dict)]
    return "\n".join([*scalars, *tables]) + "\n"


def _json_flag(folder: Path, blocks: dict[str, Any]) -> Launch:
    (folder / "my.json").write_text(json.dumps({**UPSTREAM, **blocks}))
    return {"argv": ["--config", "my.json"]}


def _toml_flag(folder: Path, blocks: dict[str, Any]) -> Launch:
    (folder / "my.toml").write_text(_toml({**UPSTREAM, **blocks}))
    return {"argv": ["--config=my.toml"]}


def _json_path(folder: Path, blocks: dict[str, Any]) -> Launch:
    (folder / "my.json").write_text(json.dumps({f"--{key}": value for key, value in {**UPSTREAM, **blocks}.items()}))
    return {"env": {"CONFIG_BACKEND": "json", "CONFIG_PATH": "my.json"}}


def _toml_file(folder: Path, blocks: dict[str, Any]) -> Launch:
    (folder / "config" / "config.toml").write_text(_toml({**UPSTREAM, **blocks}))
    return {"env": {"CONFIG_BACKEND": "toml"}}


def _env_file(folder: Path, blocks: dict[str, Any]) -> Launch:
    lines = [f"{ENV_NAMES[key]}={value}" for key, value in UPSTREAM.items() if key in ENV_NAMES]
    lines.append("TRAINER_EXTRA_ARGS=" + " ".join(["--report_to=none", *_flags(blocks, "'")]))
    (folder / "config" / "config.env").write_text("\n".join(lines) + "\n")
    return {"env": {"CONFIG_BACKEND": "env"}}


def _command_line(folder: Path, blocks: dict[str, Any]) -> Launch:
    plain = [f"--{key}={value}" for key, value in UPSTREAM.items()]
    return {"env": {"CONFIG_BACKEND": "cmd"}, "argv": [*plain, *_flags(blocks)]}


def _dictionary(folder: Path, blocks: dict[str, Any]) -> Launch:
    return {"kind": "trainer", "config": {**UPSTREAM, **blocks}}


def _job(folder: Path, blocks: dict[str, Any]) -> Launch:
    return {"kind": "job", "config": {f"--{key}": value for key, value in {**UPSTREAM, **blocks}.items()}}


WAYS: dict[str, Callable[[Path, dict[str, Any]], Launch]] = {
    "json-by-config-flag": _json_flag,
    "toml-by-config-flag": _toml_flag,
    "json-by-config-path": _json_path,
    "toml-file": _toml_file,
    "env-file": _env_file,
    "command-line": _command_line,
    "trainer-dict": _dictionary,
    "sdk-job": _job,
}
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


def _special_launches(folder: Callable[[str], Path]) -> dict[str, Launch]:
    launches: dict[str, Launch] = {}
    (folder("missing")).mkdir(parents=True)
    launches["missing"] = {"argv": ["--config", "absent.json"]}
    (folder("binary")).mkdir(parents=True)
    (folder("binary") / "my.json").write_bytes(bytes(range(256)))
    launches["binary"] = {"argv": ["--config", "my.json"]}
    (folder("override")).mkdir(parents=True)
    launches["override"] = _json_flag(folder("override"), BLOCKS)
    launches["override"]["argv"] += ["--max_train_steps", "7", '--cache_config={"cache_dir": "flag"}']
    (folder("big")).mkdir(parents=True)
    without = {key: value for key, value in UPSTREAM.items() if key != "data_backend_config"}
    (folder("big") / "my.json").write_text(json.dumps({**without, **BIG}))
    launches["big"] = {"argv": ["--config", "my.json"]}
    (folder("both")).mkdir(parents=True)
    launches["both"] = _json_flag(folder("both"), {"datasets": [{"id": "a"}]})
    (folder("off")).mkdir(parents=True)
    launches["off"] = _json_flag(folder("off"), {})
    for name, (sizes, _) in SIZES.items():
        folder(name).mkdir(parents=True)
        launches[name] = _json_flag(folder(name), RAMP | sizes)
    return launches


def _environment(**more: str) -> dict[str, str]:
    ours = ("CONFIG_", "SIMPLETUNER_", "GH200_", "ENV", "TRAINER_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    fixed = {"PYTHONPATH": str(FORK), "GH200_FORK_TREE": str(FORK), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**kept, **fixed, **more}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of every launch, by name."""
    base = tmp_path_factory.mktemp("loaders")
    launches: dict[str, Launch] = {}
    for label, blocks in (("good", BLOCKS), ("typo", TYPO)):
        for way, prepare in WAYS.items():
            name = f"{label}-{way}"
            (base / name / "config").mkdir(parents=True)
            (base / name / "datasets.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "x"}]')
            launches[name] = prepare(base / name, blocks)
    launches |= _special_launches(lambda name: base / name)
    for name, launch in launches.items():
        launch["before"] = sorted(path.name for path in (base / name).rglob("*"))
    (base / "launches.json").write_text(json.dumps(launches))
    driver = [sys.executable, __file__, str(base)]
    done = subprocess.run(driver, env=_environment(), cwd=base, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {name: json.loads((base / f"{name}.result").read_text()) for name in launches}
    for name, result in found.items():
        result["output"] = COLOUR.sub("", (base / f"{name}.output").read_text(errors="replace"))
        after = sorted(path.name for path in (base / name).rglob("*"))
        result["written"] = [item for item in after if item not in launches[name]["before"]]
        result["config"] = base / name / "my.json"
    return found


def _plain(result: dict[str, Any]) -> dict[str, Any]:
    runtime = result["runtime"]
    assert runtime, result["output"][-3000:]
    values = {path: item["value"] for path, item in runtime["values"].items()}
    return {"values": values, **{key: runtime[key] for key in SEEN}}


@pytest.mark.parametrize("way", WAYS)
def test_settings_are_the_same_whichever_way_they_come(way: str, results: dict[str, dict[str, Any]]) -> None:
    told = _plain(results[f"good-{way}"])
    assert told == _plain(results["good-trainer-dict"])
    assert told["values"]["gh200_optimizations.uvm_access_pattern"] == "balanced"
    assert told["values"]["cache_config.cache_dir"] == "cache/gh 200"
    assert told["values"]["gh200_optimizations.initial_effective_batch_size"] == 4


@pytest.mark.parametrize("way", WAYS)
def test_settings_typo_stops_every_way_before_models_load(way: str, results: dict[str, dict[str, Any]]) -> None:
    result = results[f"typo-{way}"]
    # Preflight may name the missing model too, before anything is loaded; nothing ever asks a hub for it.
    assert "HTTP" not in result["output"] and "Loading" not in result["output"].split("GH200 settings: 1 problem")[-1]
    assert result["written"] == [] and not result["runtime"]
    if way in {"trainer-dict", "sdk-job"}:
        assert result["error"] == "SettingsError" and "enable_uvm_hints" in result["message"]
        return
    assert result["exit"] == 2
    told = result["output"].strip().splitlines()[-8:]
    first = "This training cannot work" if "config-flag" in way else "GH200 settings: 1 problem"
    assert any(first in line for line in told), told
    assert any('Did you mean "enable_uvm_hints"?' in line for line in told), told
    assert "Traceback" not in result["output"]


@pytest.mark.parametrize(("name", "file"), [("missing", "absent.json"), ("binary", "my.json")])
def test_settings_file_that_cannot_be_used_is_never_replaced(name: str, file: str, results: dict[str, Any]) -> None:
    result = results[name]
    assert result["exit"] == 2 and result["written"] == []
    tail = "\n".join(result["output"].strip().splitlines()[-4:])
    assert file in tail and "fix:" in tail and "Traceback" not in result["output"]


def test_settings_flags_win_over_the_file(results: dict[str, dict[str, Any]]) -> None:
    result = results["override"]
    values = result["runtime"]["values"]
    assert result["max_train_steps"] == 7
    assert values["cache_config.cache_dir"] == {"value": "flag", "origin": "command line"}
    assert values["cache_config.persistent_cache"]["origin"] == "default"
    assert values["gh200_optimizations.uvm_access_pattern"]["origin"] == "config file my.json"


def test_settings_ten_megabytes_of_inline_datasets(results: dict[str, dict[str, Any]]) -> None:
    result = results["big"]
    assert result["datasets"] == len(BIG["datasets"]), result["output"][-3000:]
    assert [item for item in result["written"] if item.startswith("gh200-")] == []


def test_settings_inline_and_file_say_which_to_remove(results: dict[str, dict[str, Any]]) -> None:
    assert results["both"]["exit"] == 2 and "remove one of the two" in results["both"]["output"]


def test_settings_absent_leave_upstream_alone(results: dict[str, dict[str, Any]]) -> None:
    assert results["off"]["runtime"] == {} and "GH200" not in results["off"]["output"]


@pytest.mark.parametrize("name", SIZES)
def test_settings_sizes_mean_to_the_ramp_command_what_they_mean_to_training(name: str, results: dict[str, Any]) -> None:
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
def test_settings_config_flag_under_each_launcher(launcher: str, tmp_path: Path) -> None:
    command, code = LAUNCHERS[launcher]
    _json_flag(tmp_path, TYPO)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, "--config", "my.json"],
        env=_environment(PATH=path),
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
    assert sorted(item.name for item in tmp_path.iterdir()) == ["debug.log", "my.json"]


def test_settings_long_blocks_reach_the_child_of_a_job(tmp_path: Path) -> None:
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
    subprocess.run(
        [sys.executable, "-c", program],
        env=_environment(PATH=path, TMPDIR=str(tmp_path / "tmp")),
        cwd=tmp_path,
        capture_output=True,
        timeout=580,
    )
    assert len(json.loads((tmp_path / "out" / "gh200_datasets.json").read_text())) == len(BIG["datasets"])
    assert not list((tmp_path / "tmp").glob("gh200-*"))


# The driver -----------------------------------------------------------------------------------------------------------


def _run_launch(base: Path, name: str, launch: Launch) -> None:
    import runpy

    from simpletuner.helpers.training import trainer as trainer_module
    from simpletuner.helpers.training.state_tracker import StateTracker

    os.chdir(base / name)
    os.environ.update(launch.get("env", {}))
    sys.argv = [str(TRAIN), *launch.get("argv", [])]
    result: dict[str, Any] = {"exit": 0, "error": "", "message": ""}
    kinds: dict[str, Callable[[], object]] = {
        "train": lambda: runpy.run_path(str(TRAIN), run_name="__main__"),
        "trainer": lambda: trainer_module.Trainer(config=launch["config"]),
        "job": lambda: trainer_module.run_trainer_job(launch["config"]),
    }
    try:
        kinds[launch.get("kind", "train")]()
    except SystemExit as ended:
        result["exit"] = ended.code
    except Exception as error:
        result |= {"exit": 1, "error": type(error).__name__, "message": str(error)}
        traceback.print_exc()
    result["runtime"] = StateTracker.get_gh200_runtime_config()
    arguments = StateTracker.get_args()
    result["sizes"] = [getattr(arguments, key, None) for key in ("train_batch_size", "gradient_accumulation_steps")]
    result["max_train_steps"] = getattr(arguments, "max_train_steps", None)
    written = Path("out/gh200_datasets.json")
    result["datasets"] = len(json.loads(written.read_text())) if written.exists() else None
    (base / f"{name}.result").write_text(json.dumps(result))


def _drive(base: Path) -> None:
    import simpletuner.helpers.training.trainer  # noqa: F401  imported once, here

    for name, launch in json.loads((base / "launches.json").read_text()).items():
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with open(base / f"{name}.output", "wb", buffering=0) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            _run_launch(base, name, launch)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    _drive(Path(sys.argv[1]))
