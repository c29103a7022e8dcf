"""A run that has only its memory part: what benches and tests need of one, without a Trainer."""

from __future__ import annotations

from simpletuner.gh200.caches import sites
from simpletuner.gh200.caches.store import CacheStore
from simpletuner.gh200.run import Run, begin, current
from simpletuner.gh200.settings.cache_options import CacheOptions
from simpletuner.gh200.settings.schema import Settings
from simpletuner.gh200.settings.sources import read_settings


def begin_memory_run(options: CacheOptions, settings: Settings | None = None) -> Run:
    run = begin(settings or read_settings({}, {}), options)
    sites.begin(run)
    return run


def held() -> sites.HeldCaches:
    run = current()
    assert run is not None
    return run.part(sites.HeldCaches)


def store() -> CacheStore:
    return held().opened()
