"""Telemetry of a run on the second of two devices: its measurements are that device's, and reading them does not synchronise."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run, store  # noqa: E402
from simpletuner.gh200.config.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.config.sources import read_settings  # noqa: E402
from simpletuner.gh200.offload import hooks as pools  # noqa: E402
from simpletuner.gh200.runtime import Run, end  # noqa: E402
from simpletuner.gh200.telemetry.hooks import RunTelemetry  # noqa: E402
from simpletuner.gh200.telemetry.reader import read_directory  # noqa: E402
from simpletuner.gh200.telemetry.record import Record  # noqa: E402

DEVICE = torch.device("cuda:1")
MB = 1 << 20
LOG = Path(os.environ["CUDA_SIM_LOG"])
CACHES = {"vae_cache_type": "unified_memory", "placement": "managed"}
ASKED = {"telemetry_interval": 3600, "enable_uvm_hints": True, "managed_memory": "state"}


class Trainer:
    """What telemetry and the pools meet of upstream's."""

    def __init__(self, directory: Path) -> None:
        kind = SimpleNamespace(value="NO")
        self.accelerator = SimpleNamespace(
            device=DEVICE, distributed_type=kind, is_main_process=True, process_index=1, num_processes=2, trackers=[],
            log=lambda values, step=None: None,
        )  # fmt: skip
        self.config = SimpleNamespace(
            output_dir=str(directory), gradient_accumulation_steps=2, train_batch_size=3, max_train_steps=9
        )
        self.gh200_ramp_scheduler: Any = None
        self.optimizer: Any = None
        self.state: dict[str, Any] = {}

    def move_models(self) -> None: ...

    def init_prepare_models(self) -> None: ...

    def init_ema_model(self) -> None: ...


def begun(directory: Path) -> tuple[Run, RunTelemetry, pools.ManagedMemory]:
    settings = read_settings({"gh200_optimizations": ASKED, "cache_config": CACHES}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.settle_on(DEVICE)
    trainer = Trainer(directory)
    telemetry = RunTelemetry(trainer, run)
    pools.begin_pools(trainer, run)
    telemetry.start()
    memory = run.measured["Managed memory"].__self__  # type: ignore[attr-defined]
    return run, telemetry, memory


def step(telemetry: RunTelemetry, number: int) -> None:
    telemetry._trainer.state["global_step"] = number
    telemetry._step({"train_loss": 0.5})


def read(telemetry: RunTelemetry) -> Record:
    found = telemetry._recorder.now("interval", 30.0)
    assert found is not None and found.problems == {}, found
    return found


def check_measurements_are_those_of_the_runs_own_device() -> None:
    with tempfile.TemporaryDirectory() as name:
        _, telemetry, _ = begun(Path(name))
        step(telemetry, 2)
        before = read(telemetry)
        kept = torch.ones(32 * MB, dtype=torch.uint8, device=DEVICE)
        elsewhere = torch.ones(64 * MB, dtype=torch.uint8, device="cuda:0")
        step(telemetry, 3)
        after = read(telemetry)
        end()
        assert before.hbm is not None and after.hbm is not None and after.hbm.device == 1 and after.hbm.name
        assert before.hbm.cuda_free_bytes is not None and after.hbm.cuda_free_bytes is not None
        assert 32 * MB <= before.hbm.cuda_free_bytes - after.hbm.cuda_free_bytes < 64 * MB, (before.hbm, after.hbm)
        assert after.hbm.total_bytes == 256 * MB and after.hbm.free_bytes == after.hbm.cuda_free_bytes
        assert after.hbm.used_bytes == after.hbm.total_bytes - after.hbm.free_bytes
        assert (after.hbm.allocated_bytes or 0) - (before.hbm.allocated_bytes or 0) == kept.numel() < elsewhere.numel()
        telemetry = read_directory(Path(name))
        assert list(telemetry.ranks) == [1] and telemetry.missing == (0,) and telemetry.first.latest.kind == "end"


def check_only_the_trainings_thread_asks_torchs_allocator() -> None:
    """It answers with the GIL kept, and may have to wait for whoever allocates."""
    asked, whole = [], torch.cuda.memory_stats

    def seen(*args: Any, **kwargs: Any) -> Any:
        asked.append(threading.current_thread())
        return whole(*args, **kwargs)

    with tempfile.TemporaryDirectory() as name, mock.patch.object(torch.cuda, "memory_stats", seen):
        _, telemetry, _ = begun(Path(name))
        for number in range(1, 10):
            step(telemetry, number)
            read(telemetry)
        end()
    assert asked and set(asked) == {threading.main_thread()}, asked


def check_managed_memory_is_reported_by_kind_and_side() -> None:
    with tempfile.TemporaryDirectory() as name:
        _, telemetry, memory = begun(Path(name))
        with memory.pool("optimizer").here():
            state = torch.ones(3 * MB, dtype=torch.uint8, device=DEVICE)
        with memory.pool("weights").here():
            weights = torch.ones(2 * MB, dtype=torch.uint8, device=DEVICE)
        store().arena("device").hold(torch.ones(MB, dtype=torch.uint8))
        managed = read(telemetry).managed
        assert managed is not None and managed.kinds["optimizer state"] >= state.numel()
        assert managed.kinds["weights"] >= weights.numel() and managed.kinds["caches"] >= MB
        assert managed.bytes == sum(managed.kinds.values()) == sum(managed.prefers.values())
        assert managed.prefers["gpu"] == managed.kinds["weights"], managed
        assert managed.prefers["cpu"] == managed.kinds["optimizer state"] + managed.kinds["caches"]
        assert managed.prefetched == {"neither": managed.bytes} and managed.limit_bytes
        del state, weights
        end()


def check_reading_waits_for_no_gpu() -> None:
    with tempfile.TemporaryDirectory() as name:
        _, telemetry, _ = begun(Path(name))
        read(telemetry)
        before = LOG.stat().st_size
        for _ in range(5):
            read(telemetry)
        calls = LOG.read_bytes()[before:].decode()
        end()
        assert calls.count("cuMemGetInfo") >= 5, calls[-2000:]
        assert "Synchronize" not in calls and "cuMemcpy" not in calls, calls[-2000:]
