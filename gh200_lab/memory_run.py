"""A run that has only its memory part: what benches and tests need of one, without a Trainer."""

from __future__ import annotations

from simpletuner.gh200.backends.tensors import hooks
from simpletuner.gh200.backends.tensors.store import CacheStore
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.schema import Settings
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.runtime import Run, begin, current


def begin_memory_run(options: CacheOptions, settings: Settings | None = None) -> Run:
    """Begin a run that has no Trainer."""
    run = begin(settings or read_settings({}, {}), options)
    hooks.report_caches(run)
    return run


def tensor_caches() -> hooks.TensorCaches:
    """The caches of the current run."""
    run = current()
    assert run is not None
    return run.part(hooks.TensorCaches)


def store() -> CacheStore:
    """The open cache store of the current run."""
    return tensor_caches().opened()
