"""A config through every loader, the contract's names, and the config keys with their defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_methods import LAUNCH_METHODS, UPSTREAM
from tiny import FORK

from gh200_lab.pages import diagnostic, settings
from gh200_lab.place import ROOT, environment
from tests.golden.records import Records, resolved

pytestmark = [pytest.mark.fork, pytest.mark.timeout(900)]

BLOCKS = {
    "gh200_optimizations": {
        "preflight": False,  # it would stop a run whose model does not exist
        "enable_uvm_hints": True,
        "uvm_access_pattern": "balanced",
        "enable_batch_size_rampup": True,
        "initial_effective_batch_size": 1,
        "target_effective_batch_size": 4,
        "batch_rampup_steps": 8,
    },
    "cache_config": {"vae_cache_type": "unified_memory", "cache_dir": "cache/gh 200", "persistent_cache": False},
}
TYPO = {"gh200_optimizations": {"enable_uvm_hint": True}}
LAUNCHED = [*LAUNCH_METHODS, "web-job"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each launch, and the contract's names: one process, a child for each launch."""
    base = tmp_path_factory.mktemp("golden-loaders")
    launches = {}
    for kind, blocks in (("good", BLOCKS), ("typo", TYPO)):
        for way in LAUNCHED:
            directory = base / f"{kind}-{way}"
            (directory / "config").mkdir(parents=True)
            (directory / "datasets.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "x"}]')
            launches[directory.name] = (
                _web_job(directory, blocks) if way == "web-job" else LAUNCH_METHODS[way](directory, blocks)
            )
    (base / "missing").mkdir()
    launches["missing"] = {"argv": ["--config", "absent.json"]}
    (base / "launches.json").write_text(json.dumps(launches))
    driver = [sys.executable, "-P", str(Path(__file__).with_name("launches.py")), str(base)]
    done = subprocess.run(
        [*driver, str(FORK / "simpletuner" / "train.py")],
        env=environment(FORK, CUDA_VISIBLE_DEVICES=""),
        cwd=base,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read = {name: json.loads((base / f"{name}.result").read_text()) for name in launches}
    for name, result in read.items():
        result["output"] = (base / f"{name}.output").read_text(errors="replace")
    return {"contract": json.loads((base / "contract.json").read_text()), "launches": read}


def _web_job(directory: Path, blocks: dict[str, Any]) -> dict[str, Any]:
    config = {**UPSTREAM, **blocks}
    (directory / "configs").mkdir()
    (directory / "configs" / "mine.json").write_text(json.dumps(config))
    (directory / "webui").mkdir()
    defaults = {"configs_dir": str(directory / "configs"), "output_dir": str(directory), "active_config": "mine"}
    (directory / "webui" / "defaults.json").write_text(json.dumps(defaults))
    variables = {"SIMPLETUNER_WEB_UI_CONFIG": str(directory / "webui"), "HOME": str(directory)}
    return {"kind": "web", "env": variables, "config": config}


def ours(result: dict[str, Any]) -> dict[str, Any]:
    """The raw config's part that the config named: a loader may add upstream's own defaults."""
    return {key: result["raw"].get(key) for key in (*BLOCKS, "max_train_steps", "learning_rate")}


def runtime(result: dict[str, Any]) -> dict[str, Any]:
    reported = result["runtime"]
    assert reported, result["output"][-3000:]
    values = {path: item["value"] for path, item in reported["values"].items()}
    return {"values": values, "on": sorted(reported["on"]), "keys": sorted(reported)}


@pytest.mark.parametrize("way", LAUNCHED)
def test_config_through_each_loader(way: str, results: dict[str, Any], golden: Records) -> None:
    result = results["launches"][f"good-{way}"]
    golden.check("config", f"raw by {way}", ours(result))
    golden.check("config", f"runtime by {way}", runtime(result))


@pytest.mark.parametrize("way", LAUNCHED)
def test_exit_code_of_a_misspelt_key(way: str, results: dict[str, Any], golden: Records) -> None:
    result = results["launches"][f"typo-{way}"]
    golden.check("exit-codes", f"misspelt key by {way}", result["exit"])
    assert result["runtime"] == {} and "enable_uvm_hints" in result["output"], result["output"][-3000:]


def test_exit_code_of_a_missing_file(results: dict[str, Any], golden: Records) -> None:
    golden.check("exit-codes", "missing config file", results["launches"]["missing"]["exit"])


def test_names_of_the_contract(results: dict[str, Any], golden: Records) -> None:
    golden.check("contract", "names", results["contract"])


def test_config_keys_and_their_defaults(golden: Records) -> None:
    schema = settings.schema()
    golden.check("keys", "config", resolved(schema, schema["$defs"]))


@pytest.mark.parametrize("report", ["diagnostic", "acceptance"])
def test_schema_of_a_report(report: str, golden: Records) -> None:
    schema = json.loads(diagnostic.documents()[f"gh200_{report}.schema.json"])
    golden.check("keys", f"{report} report", resolved(schema, schema["$defs"]))


def test_variables_of_the_environment_script(golden: Records, tmp_path: Path) -> None:
    """Sourced by an operator whose shell has none of them, on a machine with a GPU."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = "env -i HOME=/ PATH=\"$PATH\" bash -c 'source scripts/setup_gh200_env.sh >/dev/null 2>&1; env'"
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )
    ours = [line for line in done.stdout.splitlines() if line.startswith(("SIMPLETUNER_", "GH200_", "ACCELERATE_"))]
    golden.check("keys", "environment script", sorted(line for line in ours if os.sep not in line))
