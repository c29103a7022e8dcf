"""Upstream's server in a built fork, as a process of its own, with one config open and nothing asked of a new user."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx

START_LIMIT = 400.0
# Where there is no GPU upstream queues a job for ever: here one is reported, and the child trains on the CPU.
PROGRAM = """
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


class NoServer(Exception):
    """It did not come up; with the end of its log."""


class WebServer:
    """It takes most of a minute to start. Its configs, its home and its log are in one directory."""

    def __init__(self, directory: Path, tree: Path, config: Any, program: str = PROGRAM) -> None:
        self.directory, self.configs = directory, directory / "configs"
        self.configs.mkdir(parents=True)
        self.write("mine", config)
        state = directory / "webui"
        state.mkdir()
        defaults = {"configs_dir": str(self.configs), "output_dir": str(directory), "active_config": "mine"}
        (state / "defaults.json").write_text(json.dumps(defaults))
        done = {"completed_version": 99, "completed_at": "2026-01-01", "value": ""}
        (state / "onboarding.json").write_text(json.dumps({"steps": dict.fromkeys(_ONBOARDING, done)}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.log = directory / "server.log"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SIMPLETUNER_")},
            "HOME": str(directory),
            "SIMPLETUNER_WEB_UI_CONFIG": str(state),
            "SIMPLETUNER_STATE_DIR": str(directory / "state"),
            "HF_HUB_OFFLINE": "1",
            # As .venv/bin/simpletuner does it: a job starts `accelerate` by name.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        }
        command = [sys.executable, "-c", program, "server"]
        with self.log.open("wb") as written:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                cwd=directory, env=environment | {"PYTHONPATH": str(tree)}, stdout=written, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120)

    def __enter__(self) -> Self:
        try:
            self.wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self) -> None:
        """Returns when the server answers."""
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.http.get("/api/configs/").status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        raise NoServer(f"no server after {START_LIMIT} s, or dead:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        """Ends the server and its jobs."""
        self.http.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def path(self, name: str) -> Path:
        """The file of a config."""
        return self.configs / f"{name}.json"

    def write(self, name: str, config: Any) -> None:
        """Writes a config."""
        self.path(name).write_text(json.dumps(config, indent=1), encoding="utf-8")
