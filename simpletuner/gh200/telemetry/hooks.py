"""What the Trainer calls: telemetry of a run begins, sees each optimizer step, and joins what upstream logs for it."""

from __future__ import annotations

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..config.dataset_file import micro_batch_size
from ..runtime import Run
from ..trackers import PREFIX, each_step
from .files import path_of
from .gpu import GpuMemory
from .loop_clock import LoopClock
from .reader import newest_record
from .record import Cost, Kind, NoiseMetrics, Record, WindowMetrics
from .recorder import Recorder
from .sources import host_memory, parts
from .tracker_config import TrackerConfig
from .tracker_values import tracker_values

logger = logging.getLogger("gh200.telemetry")
# How long a step may wait for its record: reading takes milliseconds, unless a driver hangs.
_STEP_WAIT = 1.0
# The first steps are slower than the rest; after so many the time of the others is estimated.
_MEASURED_STEPS = 3
_WANTED = frozenset({"train_loss"})
_MOST_POINTS = 32


class RunTelemetry:
    """Of one rank of one run."""

    def __init__(self, trainer: Any, run: Run) -> None:
        self._trainer, self._run = trainer, run
        accelerator = trainer.accelerator
        self._main: bool = accelerator.is_main_process
        self._facts = {
            "run": uuid.uuid4().hex[:12],
            "rank": accelerator.process_index,
            "ranks": accelerator.num_processes,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": time.time(),
        }
        directory = Path(trainer.config.output_dir)
        self._micro_batch = micro_batch_size(vars(trainer.config), int(trainer.config.train_batch_size))
        self.loop = LoopClock()
        self._recorder = Recorder(
            path_of(directory, accelerator.process_index), run.settings.telemetry_interval, self._read
        )
        device = run.hints.device
        self._gpu = GpuMemory(device) if device is not None else None
        self._problems: dict[str, str] = {}
        self._logged: dict[str, Any] = {}
        self._steps = 0
        self._joined: Record | None = None
        # First of all, so that it sees what the ramp adds to each step's entry.
        each_step(accelerator, self._step)
        TrackerConfig(accelerator)

    def start(self) -> None:
        """Once nothing can reject the run any more."""
        path = self._recorder.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._recorder.say("directory", f"{path.parent} cannot be made: {error.strerror}")
        self._run.at_end(self._recorder.end)
        self._recorder.start()

    def problem(self, what: str, why: str) -> None:
        """In every record from now on; said once."""
        self._recorder.say(what, f"{what}: {why}")
        self._problems[what] = why

    def _step(self, values: dict[str, Any]) -> dict[str, Any]:
        """After an optimizer step: whatever goes wrong here is telemetry's own trouble."""
        self.loop.micro_batch_ended()
        try:
            return self._seen(values)
        except Exception as error:
            self.problem("step", f"{type(error).__name__}: {error}")
            return values

    def _seen(self, values: dict[str, Any]) -> dict[str, Any]:
        # Not the whole entry: it has tensors that would live for a step longer.
        self._logged = {name: value for name, value in values.items() if name in _WANTED or name.startswith(PREFIX)}
        self._steps += 1
        last = self._trainer.state["global_step"] >= int(self._trainer.config.max_train_steps or 0) > 0
        if self._gpu is not None and (last or self._recorder.latest is not self._joined):
            self._gpu.ask_torch()
        if self._steps == _MEASURED_STEPS and self._main:
            self._log_estimate()
        if self._steps == 1 or last:
            self._recorder.now("last" if last else "first", _STEP_WAIT if self._main else 0.0)
        before, self._joined = self._joined, self._recorder.latest
        record = self._joined
        if not self._main or record is None or record is before:
            return values
        values = {**values, **tracker_values(record, before)}
        for rank in range(1, record.ranks):
            # Only the first rank has trackers; the others' newest records lie beside its own, where the directory is shared.
            newest = newest_record(path_of(self._recorder.path.parent, rank))
            if newest is not None and newest.time > record.began:
                values |= tracker_values(newest, None)
        return values

    def _log_estimate(self) -> None:
        """How long the rest takes, by the first micro-batches."""
        spent, done, config = self.loop.seconds(), self._trainer.state["global_step"], self._trainer.config
        total, size = int(config.max_train_steps or 0), int(config.gradient_accumulation_steps)
        count = getattr(self._trainer.gh200_ramp_scheduler, "micro_batches_for", lambda steps: steps * size)
        each = (spent.data + spent.compute + spent.other) / max(1, spent.micro_batches)
        logger.info(
            "GH200: about %.3g minutes to go, %.3g s a micro-batch", (count(total) - count(done)) * each / 60, each
        )

    def _read(self, kind: Kind, interval: float, cost: Cost) -> Record:
        trainer = self._trainer
        # Made after the Accelerator, and so after the first record.
        state = getattr(trainer, "state", None) or {}
        read = {title: self._try(title, source) for title, source in tuple(self._run.measured.items())}
        reports = {title: report for title, report in read.items() if report is not None}
        return Record(
            kind=kind,
            time=time.time(),
            interval=round(interval, 3),
            step=int(state.get("global_step") or 0),
            total_steps=int(trainer.config.max_train_steps or 0) or None,
            epoch=state.get("current_epoch"),
            loss=self._number("train_loss"),
            seconds=self.loop.seconds(),
            window=self._window(),
            noise=self._noise(),
            hbm=self._try("GPU memory", self._gpu.read) if self._gpu is not None else None,
            host_memory=self._try("memory of the process", host_memory),
            cost=cost,
            **parts(reports),
            **self._facts,
            problems=dict(self._problems),
        )

    def _try[RankReport](self, what: str, read: Callable[[], RankReport]) -> RankReport | None:
        """Each source alone, so that one that fails takes no other along."""
        try:
            return read()
        except Exception as error:
            self.problem(what, f"{type(error).__name__}: {error}")
            return None

    def _number(self, name: str) -> float | None:
        value = self._logged.get(name)
        return None if value is None else float(value)

    def _window(self) -> WindowMetrics:
        config, ranks = self._trainer.config, self._facts["ranks"]
        steps = int(config.gradient_accumulation_steps or 1)
        size = None if self._micro_batch is None else self._micro_batch * ranks * steps
        ramp = self._trainer.gh200_ramp_scheduler
        schedule = _thinned(ramp.outline()) if ramp is not None else None
        return WindowMetrics(accumulation_steps=steps, effective_batch_size=size, schedule=schedule)

    def _noise(self) -> NoiseMetrics | None:
        name = f"{PREFIX}gradient_noise_scale"
        scale = self._number(name)
        if scale is None:
            return None
        return NoiseMetrics(scale=scale, low=self._number(f"{name}_low"), high=self._number(f"{name}_high"))


def _thinned(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Few enough for every record; the first and the last stay."""
    every = -(-len(points) // _MOST_POINTS)
    return points if every <= 1 else [*points[:-1:every], points[-1]]
