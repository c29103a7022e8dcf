"""Every training config of this repository, read by the fork's own loader as `--config` gives it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from preloaded import Preloaded

from gh200_lab.place import environment

PARSE = """
import json, sys
from pathlib import Path
from simpletuner.helpers.configuration.loader import load_config
from simpletuner.gh200.preflight import startup
from simpletuner.gh200.state import StateHooks
# It would rightly stop: the models and images the examples name are the reader's.
startup.check_command_line = lambda argv: None
found = {}
names, answer = sys.argv[1:]
for path in json.loads(names):
    sys.argv = ["train.py", "--config", path]
    startup.take_config_flag()
    config = load_config(None, exit_on_error=True)
    found[path] = [config.model_family, config.max_train_steps, sorted(StateHooks.get_raw_config())]
Path(answer).write_text(json.dumps(found))
"""

pytestmark = pytest.mark.timeout(300)


def test_the_forks_loader_reads_every_training_config(tmp_path: Path, forked: Preloaded) -> None:
    lists = {"quickstart_datasets.json"}
    directory = tiny.FORK / "config"
    names = [
        f"config/{p.name}"
        for p in sorted(directory.iterdir())
        if p.suffix in (".json", ".toml") and p.name not in lists
    ]
    script, answer = tmp_path / "parse.py", tmp_path / "answer.json"
    script.write_text(PARSE)
    done = subprocess.run(
        [sys.executable, *forked.forked(str(script), json.dumps(names), str(answer))],
        cwd=tiny.FORK,
        env=environment(tiny.FORK),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(answer.read_text())
    assert set(found) == set(names) and len(names) >= 4
    family, steps, keys = found["config/flux_lora_gh200.toml"]
    assert (family, steps) == ("flux", 3000) and {"datasets", "cache_config", "gh200_optimizations"} <= set(keys)
