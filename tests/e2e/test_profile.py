"""The profile "auto" in the real fork: through every loader, and in a training that stays bit-identical."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import job_inputs
import pytest
import tiny
from launch_methods import LAUNCH_METHODS, Launch, outcomes
from preloaded import Preloaded, preloaded

from gh200_lab.tiny.run import Run, weights

pytestmark = pytest.mark.timeout(900)
AUTO = {"gh200_optimizations": "auto"}
VAE = "models--madebyollin--sdxl-vae-fp16-fix"
STEPS = {"max_train_steps": 4, "gradient_accumulation_steps": 2, "checkpoint_step_interval": 4}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of a config with "auto" by every loader; preflight accepts it, the weights are no model."""
    base = tmp_path_factory.mktemp("profile-loaders")
    launches: dict[str, Launch] = {}
    for way, prepare in LAUNCH_METHODS.items():
        directory = base / way
        (directory / "config").mkdir(parents=True)
        (directory / "datasets.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "x"}]')
        job_inputs.images(directory / "x", [(64, 64)] * 2)
        job_inputs.model(directory / "no/such-model")
        (directory / "hub/hub" / VAE / "snapshots/one").mkdir(parents=True)
        launches[way] = prepare(directory, AUTO)
        launches[way].setdefault("env", {})["HF_HOME"] = str(directory / "hub")
    return outcomes(base, launches)


@pytest.mark.parametrize("way", LAUNCH_METHODS)
def test_auto_passes_every_loader(way: str, loaded: dict[str, dict[str, Any]]) -> None:
    runtime = loaded[way]["runtime"]
    assert runtime, loaded[way]["output"][-3000:]
    values = {path: item["value"] for path, item in runtime["values"].items()}
    assert values["gh200_optimizations.profile"] == "auto"
    assert values["cache_config.vae_cache_type"] == values["cache_config.text_cache_type"] == "unified_memory"
    assert values["gh200_optimizations.checkpoint_on_signal"] is True
    assert values["gh200_optimizations.managed_memory"] == "off"
    assert set(runtime["in_memory"]) == {"a"}
    assert values == {path: item["value"] for path, item in loaded["trainer-dict"]["runtime"]["values"].items()}
    assert "(auto: every step reads latents)" in loaded[way]["output"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tiny.Lab]:
    with preloaded(tmp_path_factory.mktemp("forked")) as place:
        yield tiny.Lab(tmp_path_factory.mktemp("profile"), Preloaded(place=place))


def bits(run: Run) -> tuple[list[str], list[str], dict[str, str]]:
    return run.micro_losses(), run.updates(), weights(run.output / "checkpoint-4")


def test_a_training_with_auto_is_bit_identical_and_shows_what_it_chose(lab: tiny.Lab) -> None:
    plain = lab.watched("plain", cold=True, **STEPS)
    chosen = lab.watched("auto", cold=True, **STEPS, **AUTO)
    assert plain.code == chosen.code == 0, chosen.text[-4000:]
    assert bits(chosen) == bits(plain)
    assert "GH200" not in plain.text and "GH200 settings of this run" in chosen.text
    assert chosen.text.count("(auto: ") >= 7 and "Staged 24 files" in chosen.text
    assert (Path(chosen.output) / "gh200_telemetry.rank0.jsonl").is_file()
