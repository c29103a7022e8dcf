"""Run as a program: the contract's names, and what becomes of a config in every loader, each in a forked child.

It imports the trainer once. Its results are JSON files beside the launches.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# The names in the operators' documents, and where they are found.
NAMES = {
    "simpletuner.gh200": (
        "gh200_uvm_enabled",
        "set_uvm_hint_override",
        "prefer_cpu_residency",
        "prefer_gpu_residency",
        "prefetch_to_device",
        "optimize_batch_for_gh200",
        "GH200InMemoryBackend",
        "GH200GradientRamp",
    ),
    "simpletuner.gh200.uvm": ("gh200_uvm_enabled", "set_uvm_hint_override", "optimize_batch_for_gh200"),
    "simpletuner.gh200.in_memory_backend": ("GH200InMemoryBackend",),
    "simpletuner.helpers.training.trainer": (
        "Trainer._configure_gh200_runtime",
        "Trainer._apply_dynamic_gradient_accumulation",
        "Trainer.gh200_ramp_scheduler",
    ),
    "simpletuner.helpers.training.state_tracker": (
        "StateTracker.set_raw_config",
        "StateTracker.get_raw_config",
        "StateTracker.set_gh200_runtime_config",
        "StateTracker.get_gh200_runtime_config",
    ),
    "simpletuner.helpers.data_backend.builders.in_memory": ("InMemoryBackendBuilder",),
}


def signatures() -> dict[str, Any]:
    """Each name as it is called: its parameters with their defaults, without annotations."""
    from importlib import import_module

    found: dict[str, Any] = {}
    for module, names in NAMES.items():
        for name in names:
            value: Any = import_module(module)
            for part in name.split("."):
                value = getattr(value, part)
            found[f"{module}.{name}"] = _parameters(value) if callable(value) else repr(value)
    return found


def _parameters(value: Any) -> list[str]:
    parameters = inspect.signature(value).parameters.values()
    return [str(parameter.replace(annotation=inspect.Parameter.empty)) for parameter in parameters]


def registered_builder() -> str:
    from simpletuner.helpers.data_backend.builders import create_backend_builder

    return type(create_backend_builder("in_memory", None)).__name__


def _web_job(config: dict[str, Any]) -> None:
    """As the page submits it: the file on the server, and a form of texts."""
    from simpletuner.helpers.training.trainer import run_trainer_job
    from simpletuner.simpletuner_sdk.server.services.training_service import build_config_bundle

    texts = {f"--{key}": value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
    run_trainer_job(build_config_bundle(texts).complete_config)


def _launch(train: str, launch: dict[str, Any]) -> dict[str, Any]:
    from simpletuner.helpers.training import trainer
    from simpletuner.helpers.training.state_tracker import StateTracker

    os.environ.update(launch.get("env", {}))
    sys.argv = [train, *launch.get("argv", [])]
    ways: dict[str, Callable[[], object]] = {
        "train": lambda: runpy.run_path(train, run_name="__main__"),
        "trainer": lambda: trainer.Trainer(config=launch["config"]),
        "job": lambda: trainer.run_trainer_job(launch["config"]),
        "web": lambda: _web_job(launch["config"]),
    }
    exit_code: object = 0
    try:
        ways[launch.get("kind", "train")]()
    except SystemExit as ended:
        exit_code = ended.code
    except Exception as error:
        exit_code = type(error).__name__
        traceback.print_exc()
    return {
        "exit": exit_code,
        "raw": StateTracker.get_raw_config(),
        "runtime": StateTracker.get_gh200_runtime_config(),
    }


def main(base: Path, train: str) -> None:
    import simpletuner.helpers.training.trainer  # noqa: F401  imported once, here

    (base / "contract.json").write_text(json.dumps({"signatures": signatures(), "in_memory": registered_builder()}))
    for name, launch in json.loads((base / "launches.json").read_text()).items():
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with (base / f"{name}.output").open("wb", buffering=0) as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            os.chdir(base / name)
            result = _launch(train, launch)
            (base / f"{name}.result").write_text(json.dumps(result, default=str))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
