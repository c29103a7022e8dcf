"""Machines made of recorded answers, and the check of a report against its JSON Schema."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jsonschema import Draft202012Validator

from simpletuner.gh200.cli import doctor as diagnostic
from simpletuner.gh200.config.blocks import loaded_config
from simpletuner.gh200.diagnostic.checks.table import Finding
from simpletuner.gh200.diagnostic.facts import Facts
from simpletuner.gh200.diagnostic.machine import Machine, Ran
from simpletuner.gh200.memory.driver import BindingsMissing, CudaError, DeviceAttribute, DriverUnavailable

REPO = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "diagnostic_fixtures"
MACHINES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())


class NvmlError(Exception):
    pass


class RecordedNvml:
    """pynvml by function name; what was not recorded is not supported, as on an older driver."""

    NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_GET_STATUS = 170, 171

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def nvmlInit(self) -> None:
        if "error" in self._answers:
            raise NvmlError(self._answers["error"])

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self._answers["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Mapping[str, Any]:
        return self._answers["devices"][index]

    def nvmlDeviceGetFieldValues(self, handle: Mapping[str, Any], fields: list[tuple[int, int]]) -> list[Any]:
        field, scope = fields[0]
        value = handle.get("fields", {}).get(str(field), {}).get(str(scope))
        return [SimpleNamespace(nvmlReturn=0 if value is not None else 3, value=SimpleNamespace(uiVal=value))]

    def __getattr__(self, name: str) -> Any:
        def answer(handle: Mapping[str, Any] | None = None) -> Any:
            found = (self._answers if handle is None else handle).get(name)
            if found is None:
                raise NvmlError("Not Supported")
            return SimpleNamespace(**found) if isinstance(found, dict) else found

        return answer


class RecordedDriver:
    """The part of the driver layer that the facts use."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self.version, self.device_count = answers["version"], len(answers["attributes"])

    def device_name(self, device: int) -> str:
        return self._answers["names"][device]

    def device_uuid(self, device: int) -> str:
        if "uuids" not in self._answers:
            raise CudaError("cuDeviceGetUuid", "CUDA_ERROR_NOT_SUPPORTED")
        return self._answers["uuids"][device]

    def device_attribute(self, attribute: DeviceAttribute, device: int) -> int:
        return self._answers["attributes"][device][str(int(attribute))]


def _run(answers: Mapping[str, Any]) -> Any:
    def run(command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None) -> Ran:
        if command[0] == "nvidia-smi":
            return Ran(**answers["nvidia_smi"])
        assert command[0] == sys.executable
        if "FACTS" in command[2]:
            if "error" in answers["torch"]:
                return Ran(1, errors=f"Traceback ...\n{answers['torch']['error']}\n")
            return Ran(0, "FACTS " + json.dumps(answers["torch"]))
        rejection = answers.get("allocator_rejects", "")
        return Ran(1, errors=f"Traceback ...\nValueError: {rejection}\n") if rejection else Ran(0, "ACCEPTED\n")

    return run


def _no_driver(answers: Mapping[str, Any]) -> DriverUnavailable:
    kind = BindingsMissing if answers.get("bindings_missing") else DriverUnavailable
    return kind(answers["unavailable"])


def machine_in(directory: Path, fork: Path | None = None) -> Machine:
    answers = json.loads((directory / "answers.json").read_text())
    nvml, driver = answers["nvml"], answers["driver"]
    return Machine(
        root=directory,
        environ=answers["environ"],
        architecture=answers["architecture"],
        kernel=answers["kernel"],
        page_size=answers["page_size"],
        cpus=frozenset(answers["cpus"]),
        python=tuple(answers["python"]),
        package=(fork or directory) / "simpletuner",
        run=_run(answers),
        nvml=lambda: nvml["missing"] if "missing" in nvml else RecordedNvml(nvml),
        driver=lambda: _no_driver(driver) if "unavailable" in driver else RecordedDriver(driver),
        filesystem=lambda path: tuple(answers["shm"]) if answers["shm"] else None,
        installed=answers["packages"].get,
        importable=lambda name: answers["torch"] is not None if name == "torch" else True,
    )


def changed(tmp_path: Path, name: str, files: Mapping[str, str] | None = None, **answers: Any) -> Machine:
    """A copy of a recorded machine with some files and answers of its own; with a built fork beside it."""
    directory = tmp_path / name
    shutil.copytree(FIXTURES / name, directory)
    for path, text in (files or {}).items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    recorded = json.loads((directory / "answers.json").read_text())
    (directory / "answers.json").write_text(json.dumps(merged(recorded, answers)))
    package = directory / "simpletuner"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "4.10.1"\n')
    (directory / "setup.py").write_text('needs = ["torch>=2.13.0"]\n')
    return machine_in(directory)


def merged(old: Any, new: Any) -> Any:
    """Dicts by key, lists by place where the new one is a dict of places; everything else is replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: merged(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, dict):
        return [merged(item, new[place]) if place in new else item for place, item in enumerate(old)]
    return new


def diagnose(machine: Machine, *words: str) -> tuple[Facts, dict[str, Finding]]:
    options = diagnostic.parser().parse_args(["--skip-allocation", "--quiet", *words])
    config = loaded_config(options.config) if options.config else None
    facts, findings = diagnostic.diagnose(machine, options, config)
    return facts, {finding.id: finding for finding in findings}


def schema_errors(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Where a value departs from a JSON Schema."""
    Draft202012Validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)]
