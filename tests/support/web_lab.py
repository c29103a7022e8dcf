"""Upstream's server in the built fork, and a client that speaks to it as the page does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gh200_lab.place import ROOT
from gh200_lab.web_server import PROGRAM, WebServer

FORK = ROOT / "build" / "fork"
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
            "id": "images",
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
OURS = ("$schema", "cache_config", "gh200_optimizations", "datasets")


class Server(WebServer):
    """One server for all tests of a session."""

    def __init__(self, directory: Path, tree: Path = FORK, program: str = PROGRAM) -> None:
        super().__init__(directory, tree, CONFIG, program)

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

    def read(self, name: str) -> dict[str, Any]:
        """A config as it is on disk."""
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
        """What the page submits: every value of the config it got as text, the revision among them."""
        config = json.loads(seen)["config"]
        named = {key if key.startswith("--") else f"--{key}": value for key, value in config.items()}
        texts = {
            key: value if isinstance(value, str) else json.dumps(value, indent=2)
            for key, value in named.items()
            if value is not None
        }
        return texts | {f"--{key}": text for key, text in changes.items()}

    def save(self, form: dict[str, str]) -> httpx.Response:
        """Submits a form as the page's Save does."""
        return self.http.post("/api/training/config", data=form)
