"""The methods upstream's Trainer inherits from the fork; each does nothing when no GH200 setting is present."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
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

    def _gh200_reject_config(self, error: Exception, exit_on_error: bool) -> NoReturn:
        """Ends the run: SimpleTuner would train the config that lies in config/ instead of the one it cannot load."""
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
        from .backends.scan.dummy_scheduler import provide
        from .console import tidy_console

        provide()
        runtime.end()
        settings = self._read_gh200_settings()
        if not settings.asked:
            return
        tidy_console()
        self._begin_gh200_run(settings)
        self._write_gh200_datasets(settings)

    def _read_gh200_settings(self) -> Any:
        """Takes our blocks out of the arguments; the settings of the whole config."""
        from .config.arguments import remove_blocks, typed_config
        from .config.dataset_file import entries_of_file
        from .config.sources import read_settings
        from .preflight.memory_estimate import with_chosen_offload

        remove_blocks(self.config, StateHooks.get_raw_config())
        raw = typed_config(StateHooks.get_raw_config(), self.config)
        StateHooks.set_raw_config(raw, StateHooks.get_raw_config_origins())
        dataset_file = entries_of_file(getattr(self.config, "data_backend_config", None))
        settings = read_settings(raw, os.environ, StateHooks.get_raw_config_origins(), dataset_file)
        return with_chosen_offload(settings, raw, os.environ)

    def _begin_gh200_run(self, settings: Any) -> None:
        """Checks config and machine, locks the output directory, begins the run and logs its settings."""
        from . import runtime
        from .backends.ram.registry import StagedDatasets
        from .backends.tensors.hooks import report_caches, upstream_prefetches
        from .config.cache_options import CacheOptions
        from .preemption.hooks import listen_for_signals
        from .preflight.output_lock import claim_output
        from .preflight.startup import check_run
        from .summary import print_end_block

        check_run(StateHooks.get_raw_config(), getattr(self.config, "data_backend_config", None), "the training config")
        options = CacheOptions.from_settings(settings, upstream_prefetches=upstream_prefetches(self.config))
        release_output = claim_output(getattr(self.config, "output_dir", None), os.environ)
        run = runtime.begin(settings, options)
        run.at_end(release_output)
        run.at_end(lambda: print_end_block(self.config, StateHooks.get_config_file()[0]))
        report_caches(run)
        _or_without(run, "checkpoint_on_signal", runtime.PREEMPTION, lambda: listen_for_signals(run))
        run.part(StagedDatasets).exit_on_error = self.gh200_exit_on_error
        runtime.log(run)

    def _write_gh200_datasets(self, settings: Any) -> None:
        """Datasets of the config itself become the dataset file that SimpleTuner reads."""
        from .config.dataset_file import write_inline_datasets

        if settings.inline_datasets is not None:
            path = write_inline_datasets(settings.inline_datasets, self.config.output_dir)
            self.config.data_backend_config = str(path)

    def _start_gh200_features(self) -> None:
        """Starts what needs the Accelerator, before SimpleTuner's step maths, which the ramp changes."""
        if self.accelerator is None:
            return
        from . import runtime
        from .telemetry.step_log import follow

        run = runtime.current()
        if run is not None:
            self._bind_gh200_device(run)
        # Before the ramp, so that both get what it adds to each step's entry.
        self._create_gh200_telemetry(run)
        follow(self)
        try:
            if run is not None:
                self._place_gh200_memory(run)
            self._build_gh200_ramp(run)
        except GH200Error as error:
            self._end_gh200(error)
        if self._gh200_telemetry is not None:
            self._gh200_telemetry.start()

    def _bind_gh200_device(self, run: Any) -> None:
        """The device of the hints, the CPUs beside it, and a bound where it allocates from the CPU's memory."""
        from .memory.affinity import bind_beside
        from .memory.hbm import bound_one_pool

        run.hints.settle_on(self.accelerator.device)
        bind_beside(run.hints.device)
        if run.hints.device is not None and bound_one_pool(run.hints.device):
            _skip_memory_query(run)

    def _create_gh200_telemetry(self, run: Any) -> None:
        self._gh200_telemetry = None
        if run is not None and run.settings.telemetry_interval:
            from .telemetry.hooks import RunTelemetry

            self._gh200_telemetry = RunTelemetry(self, run)

    def _place_gh200_memory(self, run: Any) -> None:
        """Compares the ranks; while the GPU is idle, decides where caches live; begins torch's pools."""
        from . import runtime
        from .config.dataset_file import entries_of_file
        from .offload.hooks import begin_pools
        from .rank_check import check_ranks

        datasets = entries_of_file(getattr(self.config, "data_backend_config", None))
        check_ranks(self.accelerator, StateHooks.get_raw_config(), datasets)
        if run.options.kinds:
            from .backends.tensors.hooks import decide_placement
            from .preflight.config import latent_batch

            keys = ("resolution", "resolution_type", "train_batch_size")
            config = {key: getattr(self.config, key, None) for key in keys}
            decide_placement(run, self.accelerator.device, *latent_batch(datasets or [], config))
        _or_without(run, "managed_memory", runtime.MANAGED, lambda: begin_pools(self, run))

    def _build_gh200_ramp(self, run: Any) -> None:
        """Builds the ramp and installs the overrides of preemption."""
        from . import runtime
        from .preemption.hooks import join_trainer
        from .ramp.apply import build_ramp

        self.gh200_ramp_scheduler = build_ramp(self, run.settings if run is not None else None)
        join_trainer(self)
        if run is not None and self.gh200_ramp_scheduler is not None:
            run.report_on(runtime.RAMP, self.gh200_ramp_scheduler.describe())

    def _gh200_training_begins(self, step: int) -> int:
        """All caches are built: frees what is not read any more, accepts signals; the count of micro-batches so far."""
        if StateHooks._gh200_run is None:
            return step
        from .backends.ram.hooks import caches_built
        from .backends.tensors.hooks import training_begins
        from .preemption.hooks import accept_signals

        caches_built(self.config)
        training_begins()
        step = accept_signals(step)
        self._gh200_step = step if self._gh200_ramp is None else self._gh200_ramp.first_micro_step(step)
        LoopCount(self)
        return self._gh200_step

    def _gh200_count_micro_batch(self) -> None:
        """The loop counts a micro-batch, or the end of an epoch, and waits for it; a preempted run ends here."""
        from .preemption.hooks import stop_if_requested

        stop_if_requested()
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


def _skip_memory_query(run: Any) -> None:
    """SimpleTuner takes the size of the GPU's memory from nvidia-smi; in one pool that is "[N/A]", and it would stop."""
    checks: Any = import_module("simpletuner.helpers.training.default_settings.safety_check")
    version, checks.cuda_version = checks.cuda_version, None
    run.at_end(lambda: setattr(checks, "cuda_version", version))


def _or_without(run: Any, key: str, feature: str, start: Callable[[], None]) -> None:
    """What only the profile chose is left out, with the reason, where it is not possible."""
    try:
        start()
    except GH200Error as error:
        if not run.settings.is_chosen(key):
            raise
        run.report_unavailable(feature, error.why or error.what)


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
        self._trainer._gh200_count_micro_batch()
