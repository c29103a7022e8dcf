"""Every file in config/ is read by the parser it is for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from gh200_lab.place import ROOT
from simpletuner.gh200.config.sources import read_settings

CONFIG = ROOT / "config"
DATASET_LISTS = {"quickstart_datasets.json"}
TRAINING = [
    path for path in sorted(CONFIG.iterdir()) if path.suffix in (".json", ".toml") and path.name not in DATASET_LISTS
]


def load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text()) if path.suffix == ".toml" else json.loads(path.read_text())


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.name)
def test_accelerate_reads_its_configs(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert config.mixed_precision == "bf16"
    assert config.num_processes == config.num_machines


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_the_settings_accept_our_training_configs(path: Path) -> None:
    raw = load(path)
    settings = read_settings(raw, {})
    assert not settings.notes
    assert settings.uses_unified_memory("vae") == ("cache_config" in raw)
    assert bool(settings.in_memory) == ("datasets" in raw)


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.name)
def test_no_path_in_a_config_is_absolute(path: Path) -> None:
    def strings(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for item in value.values() for text in strings(item)]
        if isinstance(value, list):
            return [text for item in value for text in strings(item)]
        return [value] if isinstance(value, str) else []

    assert not [text for text in strings(load(path)) if text.startswith(("/", "~"))]


def test_quick_start_without_features_is_the_same_training(path: Path = CONFIG / "quickstart.json") -> None:
    on, off = load(path), load(CONFIG / "quickstart_off.json")
    ours = {"datasets", "cache_config", "gh200_optimizations", "data_backend_config", "gradient_accumulation_steps"}
    assert {key: on[key] for key in on if key not in ours} == {key: off[key] for key in off if key not in ours}
    entries = [
        {key: value for key, value in entry.items() if key not in ("type", "in_memory")} for entry in on["datasets"]
    ]
    plain = json.loads((CONFIG / "quickstart_datasets.json").read_text())
    assert entries == [{key: value for key, value in entry.items() if key != "type"} for entry in plain]
