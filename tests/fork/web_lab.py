"""Upstream's server in the built fork, as a process of its own, and a client that speaks to it as the page does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gh200_lab.place import ROOT

FORK = ROOT / "build" / "fork"
START_LIMIT = 400.0
CONFIG: dict[str, Any] = {
    "$schema": "docs/gh200_config.schema.json",
    "model_family": "sdxl",
    "model_type": "lora",
    "lora_rank": 4,
    "pretrained_model_name_or_path": "model",
    "output_dir": "output",
    "optimizer": "adamw_bf16",
    "learning_rate": 0.0001,
    "train_batch_size": 1,
    "max_train_steps": 8,
    "num_train_epochs": 0,
    "tracker_project_name": "web",
    "cache_config": {"vae_cache_type": "unified_memory", "text_cache_type": "disk"},
    "gh200_optimizations": {
        "enable_batch_size_rampup": True,
        "initial_effective_batch_size": 1,
        "target_effective_batch_size": 4,
        "batch_rampup_steps": 8,
    },
    "datasets": [
        {
            "id": "pictures",
            "type": "in_memory",
            "in_memory": {"compression": "lz4", "memory_limit_gb": 1.5},
            "instance_data_dir": "images",
            "cache_dir_vae": "cache/vae",
            "caption_strategy": "filename",
            "resolution": 64,
            "notes_of_mine": {"kept": [1, {"deeper": None}]},
        },
        {"id": "text", "type": "local", "dataset_type": "text_embeds", "default": True, "cache_dir": "cache/text"},
    ],
}
# Where there is no GPU upstream queues a job for ever: here it is told of one, and the child trains on the CPU.
_PROGRAM = """
from simpletuner.simpletuner_sdk.server.services import local_gpu_allocator
local_gpu_allocator.detect_gpu_inventory = lambda: {"devices": [{"index": 0}], "count": 1}
from simpletuner.cli import main
main()
"""
# Upstream's questions to a new user lie over the page.
_ONBOARDING = (
    "default_configs_dir",
    "default_output_dir",
    "default_datasets_dir",
    "accelerate_defaults",
    "create_initial_environment",
)
OURS = ("$schema", "cache_config", "gh200_optimizations", "datasets")


class Server:
    """One server for all tests of a session: it takes most of a minute to start."""

    def __init__(self, folder: Path, tree: Path = FORK) -> None:
        self.folder, self.configs = folder, folder / "configs"
        self.configs.mkdir(parents=True)
        self.write("mine", CONFIG)
        state = folder / "webui"
        state.mkdir()
        defaults = {"configs_dir": str(self.configs), "output_dir": str(folder), "active_config": "mine"}
        (state / "defaults.json").write_text(json.dumps(defaults))
        done = {"completed_version": 99, "completed_at": "2026-01-01", "value": ""}
        (state / "onboarding.json").write_text(json.dumps({"steps": dict.fromkeys(_ONBOARDING, done)}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.log = folder / "server.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")},
            "HOME": str(folder),
            "SIMPLETUNER_WEB_UI_CONFIG": str(state),
            "SIMPLETUNER_STATE_DIR": str(folder / "state"),
            "HF_HUB_OFFLINE": "1",
            # As .venv/bin/simpletuner does it: a job starts `accelerate` by name.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        command = [sys.executable, "-c", _PROGRAM, "server"]
        with self.log.open("wb") as written:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=folder, env=environment | {"PYTHONPATH": str(tree)}, stdout=written, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)

    def wait(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                if self.http.get("/api/configs/").status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise AssertionError(f"no server after {START_LIMIT} s:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        self.http.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def descendants(self) -> dict[int, list[str]]:
        """Every process the server has started, and those they have, with its command line."""
        found: dict[int, list[str]] = {}
        pids = [self.process.pid]
        while pids:
            for path in Path(f"/proc/{pids.pop()}/task").glob("*/children"):
                try:
                    children = [int(word) for word in path.read_text().split()]
                    found |= {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in children}
                except OSError:
                    continue
                pids += children
        return found

    def path(self, name: str) -> Path:
        return self.configs / f"{name}.json"

    def write(self, name: str, config: Any) -> None:
        self.path(name).write_text(json.dumps(config, indent=1), encoding="utf-8")

    def read(self, name: str) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.path(name).read_text(encoding="utf-8"))
        return loaded

    def show(self, name: str, config: dict[str, Any] | None = None) -> str:
        """A new browser that opens this config: the answer its page is filled from."""
        if config is not None:
            self.write(name, config)
        assert self.http.post(f"/api/configs/{quote(name, safe='')}/activate").status_code == 200
        answer = self.http.get(f"/api/configs/{quote(name, safe='')}", params={"t": 1})
        assert answer.status_code == 200, answer.text
        return answer.text

    @staticmethod
    def form(seen: str, **changes: str) -> dict[str, str]:
        """What the page submits without a tab of ours: every value it knows as text, and the answer it came from."""
        config = json.loads(seen)["config"]
        named = {key if key.startswith("--") else f"--{key}": value for key, value in config.items()}
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, indent=2)
            for key, value in named.items()
            if value is not None
        }
        return texts | {f"--{key}": text for key, text in changes.items()} | {"gh200_seen": seen}

    def save(self, form: dict[str, str]) -> httpx.Response:
        return self.http.post("/api/training/config", data=form)
