"""The methods upstream's Trainer inherits from the fork; each does nothing when no GH200 setting is present."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from .errors import GH200Error, stop
from .overrides import Overrides, override
from .state import StateHooks


class TrainerHooks:
    """Base class of upstream's Trainer."""

    config: Any
    accelerator: Any = None
    state: Any
    gh200_ramp_scheduler: Any = None
    gh200_exit_on_error: bool = False
    _gh200_ramp: Any = None
    _gh200_noise: Any = None
    _gh200_telemetry: Any = None
    _gh200_step: int = 0
    _gh200_epoch: object = None

    def _configure_gh200_runtime(self, exit_on_error: bool = False) -> None:
        """Checks the settings once the config is complete and before the Accelerator exists."""
        self.gh200_exit_on_error = exit_on_error
        try:
            self._start_gh200_runtime()
        except GH200Error as error:
            self._end_gh200(error)

    def _gh200_config_rejected(self, error: Exception, exit_on_error: bool) -> NoReturn:
        """A config that cannot be loaded ends the run: upstream would train the one that lies in config/ instead."""
        from .config.arguments import rejected

        self.gh200_exit_on_error = exit_on_error
        self._end_gh200(error if isinstance(error, GH200Error) else rejected(error))

    def _end_gh200(self, error: GH200Error) -> NoReturn:
        # Old releases of train.py print what is raised and report success, so there the process ends here.
        if self.gh200_exit_on_error:
            stop(error)
        raise error

    def _start_gh200_runtime(self) -> None:
        from . import runtime
        from .backends.ram.registry import StagedDatasets
        from .backends.scan.dummy_scheduler import provide
        from .backends.tensors import hooks as cache_sites
        from .config.arguments import remove_blocks, typed_config
        from .config.cache_options import CacheOptions
        from .config.dataset_file import entries_of_file, write_inline_datasets
        from .config.sources import read_settings
        from .console import tidy_console
        from .preemption.hooks import begin as listen_for_signals
        from .preflight.output_lock import claim_output
        from .preflight.startup import check_run

        provide()
        runtime.end()
        remove_blocks(self.config, StateHooks.get_raw_config())
        raw = typed_config(StateHooks.get_raw_config(), self.config)
        StateHooks.set_raw_config(raw, StateHooks.get_raw_config_origins())
        dataset_file = entries_of_file(getattr(self.config, "data_backend_config", None))
        settings = read_settings(raw, os.environ, StateHooks.get_raw_config_origins(), dataset_file)
        if not settings.asked:
            return
        tidy_console()
        check_run(raw, getattr(self.config, "data_backend_config", None), "the training config")
        prefetches = cache_sites.upstream_prefetches(self.config)
        options = CacheOptions.from_settings(settings, upstream_prefetches=prefetches)
        let_go = claim_output(getattr(self.config, "output_dir", None), os.environ)
        started = runtime.begin(settings, options)
        started.at_end(let_go)
        cache_sites.begin(started)
        listen_for_signals(started)
        started.part(StagedDatasets).exit_on_error = self.gh200_exit_on_error
        runtime.log(started)
        if settings.inline_datasets is not None:
            path = write_inline_datasets(settings.inline_datasets, self.config.output_dir)
            self.config.data_backend_config = str(path)

    def _prepare_gh200_ramp(self) -> None:
        """Builds the ramp: after the Accelerator, whose process count it needs, and before upstream's step maths."""
        if self.accelerator is None:
            return
        from . import runtime
        from .config.dataset_file import entries_of_file
        from .memory.affinity import bind_beside
        from .offload.hooks import begin as begin_pools
        from .preemption.hooks import join
        from .ramp.apply import build_ramp
        from .rank_check import check_ranks
        from .telemetry import step_log

        current = runtime.current()
        if current is not None:
            current.hints.settle_on(self.accelerator.device)
            bind_beside(current.hints.device)
        # First, so that both get what the ramp adds to each step's entry.
        self._prepare_gh200_telemetry(current)
        step_log.follow(self)
        try:
            if current is not None:
                datasets = entries_of_file(getattr(self.config, "data_backend_config", None))
                check_ranks(self.accelerator, StateHooks.get_raw_config(), datasets)
                self._place_gh200_caches(current, datasets or [])
                begin_pools(self, current)
            self.gh200_ramp_scheduler = build_ramp(self, current.settings if current is not None else None)
            join(self)
        except GH200Error as error:
            self._end_gh200(error)
        if current is not None and self.gh200_ramp_scheduler is not None:
            current.report_on(runtime.RAMP, self.gh200_ramp_scheduler.describe())
        if self._gh200_telemetry is not None:
            self._gh200_telemetry.start()

    def _prepare_gh200_telemetry(self, current: Any) -> None:
        self._gh200_telemetry = None
        if current is not None and current.settings.telemetry_interval:
            from .telemetry.hooks import RunTelemetry

            self._gh200_telemetry = RunTelemetry(self, current)

    def _place_gh200_caches(self, current: Any, datasets: list[Any]) -> None:
        """While the GPU is still idle: how held latents will get there."""
        if not current.options.kinds:
            return
        from .backends.tensors.hooks import device_known
        from .preflight.config import latent_batch

        keys = ("resolution", "resolution_type", "train_batch_size")
        config = {key: getattr(self.config, key, None) for key in keys}
        device_known(current, self.accelerator.device, *latent_batch(datasets, config))

    def _gh200_first_micro_step(self, step: int) -> int:
        """Training begins: all caches are built, the micro-batch counter starts."""
        if StateHooks._gh200_run is None:
            return step
        from .backends.ram.hooks import caches_built
        from .backends.tensors.hooks import training_begins
        from .preemption.hooks import training_begins as may_leave

        caches_built(self.config)
        training_begins()
        step = may_leave(step)
        self._gh200_step = step if self._gh200_ramp is None else self._gh200_ramp.first_micro_step(step)
        LoopCount(self)
        return self._gh200_step

    def _gh200_batch_wanted(self) -> None:
        """The loop counts a micro-batch, or the end of an epoch, and waits for it."""
        from .preemption.hooks import leave_if_asked

        leave_if_asked()
        self._gh200_step += 1
        if self._gh200_telemetry is not None:
            self._gh200_telemetry.loop.batch_wanted()

    def _gh200_begin_micro_batch(self, batch: Any, step: int) -> None:
        """Right before a micro-batch is accumulated; `step` is the loop's own count of them."""
        if StateHooks._gh200_run is None:
            return
        self._gh200_step = step
        if self._gh200_telemetry is not None:
            self._gh200_telemetry.loop.micro_batch_begins()
        from .backends.ram.hooks import epoch_started
        from .backends.tensors.hooks import micro_batch_begins
        from .memory.batch import optimize_batch_for_gh200

        micro_batch_begins(self.state["global_step"])
        self._apply_dynamic_gradient_accumulation()
        if self._gh200_noise is not None:
            self._gh200_noise.begin(batch)
        if self.state["current_epoch"] != self._gh200_epoch:
            self._gh200_epoch = self.state["current_epoch"]
            epoch_started()
        optimize_batch_for_gh200(batch)

    def _apply_dynamic_gradient_accumulation(self) -> None:
        """Opens the next window of the ramp where the last one has closed."""
        if self._gh200_ramp is not None:
            self._gh200_ramp.begin()

    def _gh200_window_closed(self, verdict: bool) -> bool:
        """`step % accumulation == 0`; with windows of changing size the question is whether one just closed."""
        return verdict if self._gh200_ramp is None else bool(self.accelerator.sync_gradients)


class LoopCount(Overrides):
    """Upstream looks for its signals right before it counts a micro-batch and fetches it."""

    upstream_class, feature = "Trainer", "the count of micro-batches"

    def __init__(self, trainer: TrainerHooks) -> None:
        super().__init__()
        self._trainer = trainer
        self.install(trainer)

    @override
    def _exit_on_signal(self) -> None:
        self.upstream._exit_on_signal()
        self._trainer._gh200_batch_wanted()
