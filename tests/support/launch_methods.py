"""Every method of launching a training, driven in the real fork.

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

REPO = Path(__file__).resolve().parents[2]
FORK = Path(os.environ.get("GH200_FORK_TREE", REPO / "build" / "fork"))
TRAIN = FORK / "simpletuner" / "train.py"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")

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
Launch = dict[str, Any]


def _flags(blocks: dict[str, Any], quote: str = "") -> list[str]:
    return [f"--{key}={quote}{json.dumps(value)}{quote}" for key, value in blocks.items()]


def _toml(config: dict[str, Any]) -> str:
    scalars = [f"{key} = {json.dumps(value)}" for key, value in config.items() if not isinstance(value, dict)]
    tables = [f"[{key}]\n{_toml(value)}" for key, value in config.items() if isinstance(value, dict)]
    return "\n".join([*scalars, *tables]) + "\n"


def json_flag(directory: Path, blocks: dict[str, Any]) -> Launch:
    (directory / "my.json").write_text(json.dumps({**UPSTREAM, **blocks}))
    return {"argv": ["--config", "my.json"]}


def _toml_flag(directory: Path, blocks: dict[str, Any]) -> Launch:
    (directory / "my.toml").write_text(_toml({**UPSTREAM, **blocks}))
    return {"argv": ["--config=my.toml"]}


def _json_path(directory: Path, blocks: dict[str, Any]) -> Launch:
    (directory / "my.json").write_text(json.dumps({f"--{key}": value for key, value in {**UPSTREAM, **blocks}.items()}))
    return {"env": {"CONFIG_BACKEND": "json", "CONFIG_PATH": "my.json"}}


def _toml_file(directory: Path, blocks: dict[str, Any]) -> Launch:
    (directory / "config" / "config.toml").write_text(_toml({**UPSTREAM, **blocks}))
    return {"env": {"CONFIG_BACKEND": "toml"}}


def _env_file(directory: Path, blocks: dict[str, Any]) -> Launch:
    lines = [f"{ENV_NAMES[key]}={value}" for key, value in UPSTREAM.items() if key in ENV_NAMES]
    lines.append("TRAINER_EXTRA_ARGS=" + " ".join(["--report_to=none", *_flags(blocks, "'")]))
    (directory / "config" / "config.env").write_text("\n".join(lines) + "\n")
    return {"env": {"CONFIG_BACKEND": "env"}}


def _command_line(directory: Path, blocks: dict[str, Any]) -> Launch:
    plain = [f"--{key}={value}" for key, value in UPSTREAM.items()]
    return {"env": {"CONFIG_BACKEND": "cmd"}, "argv": [*plain, *_flags(blocks)]}


def _dictionary(directory: Path, blocks: dict[str, Any]) -> Launch:
    return {"kind": "trainer", "config": {**UPSTREAM, **blocks}}


def _job(directory: Path, blocks: dict[str, Any]) -> Launch:
    return {"kind": "job", "config": {f"--{key}": value for key, value in {**UPSTREAM, **blocks}.items()}}


LAUNCH_METHODS: dict[str, Callable[[Path, dict[str, Any]], Launch]] = {
    "json-by-config-flag": json_flag,
    "toml-by-config-flag": _toml_flag,
    "json-by-config-path": _json_path,
    "toml-file": _toml_file,
    "env-file": _env_file,
    "command-line": _command_line,
    "trainer-dict": _dictionary,
    "sdk-job": _job,
}


def environment(**more: str) -> dict[str, str]:
    ours = ("CONFIG_", "SIMPLETUNER_", "GH200_", "ENV", "TRAINER_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    fixed = {"PYTHONPATH": str(FORK), "GH200_FORK_TREE": str(FORK), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**kept, **fixed, **more}


def outcomes(base: Path, launches: dict[str, Launch]) -> dict[str, dict[str, Any]]:
    """What became of every launch, by name; each ran in its own directory below `base`."""
    for name, launch in launches.items():
        launch["before"] = sorted(path.name for path in (base / name).rglob("*"))
    (base / "launches.json").write_text(json.dumps(launches))
    driver = [sys.executable, __file__, str(base)]
    done = subprocess.run(driver, env=environment(), cwd=base, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {name: json.loads((base / f"{name}.result").read_text()) for name in launches}
    for name, result in found.items():
        result["output"] = COLOUR.sub("", (base / f"{name}.output").read_text(errors="replace"))
        after = sorted(path.name for path in (base / name).rglob("*"))
        result["written"] = [item for item in after if item not in launches[name]["before"]]
        result["config"] = base / name / "my.json"
    return found


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
    result["attributes"] = sorted(vars(arguments)) if arguments is not None else []
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
