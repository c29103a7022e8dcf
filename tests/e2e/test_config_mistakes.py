"""A mistake in a training config stops every loader with one error, also where another config lies in config/."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_methods import LAUNCH_METHODS, UPSTREAM, Launch, outcomes

pytestmark = pytest.mark.timeout(600)
OTHER = {**UPSTREAM, "output_dir": "other", "max_train_steps": 99}
# What is wrong, and the key the error has to name.
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt block": ({"gh200_optimisations": {"enable_uvm_hints": True}}, "gh200_optimisations"),
    "wrong type of block": ({"cache_config": "unified_memory"}, "cache_config"),
    "switch for a block": ({"gh200_optimizations": True}, "gh200_optimizations"),
    "misspelt flat key": ({"train_batch_sise": 2}, "train_batch_sise"),
    "wrong type of flat key": ({"max_train_steps": "many"}, "max_train_steps"),
}
FIRST_LINES = ("GH200 settings: 1 problem", "This training cannot work", "The training config cannot be used.")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    base = tmp_path_factory.mktemp("mistakes")
    launches: dict[str, Launch] = {}
    for mistake, (keys, _) in MISTAKES.items():
        for way, prepare in LAUNCH_METHODS.items():
            directory = base / f"{mistake}-{way}"
            (directory / "config").mkdir(parents=True)
            (directory / "datasets.json").write_text('[{"id": "a", "type": "local", "instance_data_dir": "x"}]')
            (directory / "config" / "config.json").write_text(json.dumps(OTHER))
            launches[directory.name] = prepare(directory, keys)
    return outcomes(base, launches)


@pytest.mark.parametrize("way", LAUNCH_METHODS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_settings_mistake_is_one_error_and_no_other_config_is_trained(
    mistake: str, way: str, results: dict[str, dict[str, Any]]
) -> None:
    result, key = results[f"{mistake}-{way}"], MISTAKES[mistake][1]
    reported = f"{result['output']}\n{result['message']}"
    assert result["exit"] in (1, 2) and key in reported, reported[-3000:]
    assert result["exit"] == 2 or result["error"], "train.py ends with 2, a call raises"
    assert not result["runtime"] and result["max_train_steps"] is None and "other" not in result["written"]
    if not result["error"]:
        assert sum(result["output"].count(line) for line in FIRST_LINES) == 1, reported[-3000:]
        assert key in result["output"][max(result["output"].find(line) for line in FIRST_LINES) :]
