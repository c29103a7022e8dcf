"""Every training config of this repository, read by the fork's own loader as `--config` gives it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tiny

from gh200_lab.place import environment

PARSE = """
import json, sys
from simpletuner.helpers.configuration.loader import load_config
from simpletuner.gh200.preflight import start
from simpletuner.gh200.state import StateHooks
# It would rightly stop: the models and pictures the examples name are the reader's.
start.check_command_line = lambda argv: None
found = {}
for path in json.loads(sys.argv[1]):
    sys.argv = ["train.py", "--config", path]
    config = load_config(None, exit_on_error=True)
    found[path] = [config.model_family, config.max_train_steps, sorted(StateHooks.get_raw_config())]
print("FOUND " + json.dumps(found))
"""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def test_the_forks_loader_reads_every_training_config() -> None:
    lists = {"quickstart_datasets.json"}
    folder = tiny.FORK / "config"
    names = [
        f"config/{p.name}" for p in sorted(folder.iterdir()) if p.suffix in (".json", ".toml") and p.name not in lists
    ]
    done = subprocess.run(
        [sys.executable, "-c", PARSE, json.dumps(names)],
        cwd=tiny.FORK,
        env=environment(tiny.FORK),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found = json.loads(line.removeprefix("FOUND "))
    assert set(found) == set(names) and len(names) >= 4
    family, steps, keys = found["config/flux_lora_gh200.toml"]
    assert (family, steps) == ("flux", 3000) and {"datasets", "cache_config", "gh200_optimizations"} <= set(keys)
