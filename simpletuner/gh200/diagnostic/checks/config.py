"""Checks of a training config: will it fit on this machine, and is everything there that it names."""

from __future__ import annotations

from ...preflight.config import Caches, Config, staging_problems
from ..facts import Facts
from ..status import FAIL, PASS, SKIP, WARN, Result, gb
from .declare import Group, Skipped
from .software import SETUP, USE_VENV

CONFIG = Group("config")

NO_CONFIG = "no --config was given"
UNREADABLE = "the settings have problems (see config_settings)"


def _given(facts: Facts) -> Config:
    if facts.config is None:
        raise Skipped(NO_CONFIG)
    return facts.config


def _read(facts: Facts) -> Config:
    """The config, where this interpreter can read its blocks."""
    config = _given(facts)
    if config.unjudged:
        raise Skipped(config.unjudged, USE_VENV)
    return config


def _judged(facts: Facts) -> Config:
    """The config, where its settings are right."""
    config = _read(facts)
    if config.problems:
        raise Skipped(UNREADABLE)
    return config


def _caches(facts: Facts) -> Caches:
    caches = _judged(facts).caches
    if caches is None:
        raise Skipped("no cache in unified memory is asked for")
    return caches


@CONFIG.check(FAIL, "correct these keys; docs/SETTINGS.md explains each")
def config_settings(facts: Facts) -> Result:
    """Are the fork's settings right?"""
    config = _read(facts)
    if config.problems:
        return Result(FAIL, "; ".join(config.problems))
    return Result(PASS, "; ".join((f"{config.path} is accepted", *config.notes)))


@CONFIG.check(FAIL, "correct what is named; python -m simpletuner.gh200.preflight CONFIG says the same in seconds")
def config_preflight(facts: Facts) -> Result:
    """Can this training work: upstream's keys, model, buckets, disk?"""
    # What no other check here names: upstream's keys, the model, buckets and windows, checkpoints' disk.
    config, found = _given(facts), facts.preflight
    if found is None or found.unasked:
        raise Skipped(found.unasked if found else NO_CONFIG, USE_VENV)
    wrong, _ = staging_problems([item for item in config.datasets if item.in_memory], facts.host.room_bytes)
    elsewhere = {*config.problems, *config.missing, config.ramp_problem, *wrong}
    problems = [text for text in found.problems if text not in elsewhere]
    if problems:
        return Result(FAIL, "; ".join(problems))
    unknown = [f"not checked: {text}" for text in found.not_checked]
    if found.warnings:
        return Result(WARN, "; ".join((*found.warnings, *unknown)))
    return Result(PASS, "; ".join((*found.told, *unknown)) or "nothing speaks against it")


@CONFIG.check(FAIL, "create or mount them, or correct the path; relative ones start at the working directory")
def config_paths(facts: Facts) -> Result:
    """Are its directories and files there?"""
    config = _given(facts)
    if config.missing:
        return Result(FAIL, "; ".join(config.missing))
    return Result(PASS, ", ".join(item.folder for item in config.datasets) or "no local dataset directory")


@CONFIG.check(
    FAIL,
    "raise memory_limit_gb where RAM allows, set in_memory.on_limit to partial, add compression for uncompressed "
    "files, or use a machine with more memory",
)
def config_datasets(facts: Facts) -> Result:
    """Do the in-memory datasets fit into RAM?"""
    config = _read(facts)
    staged = [item for item in config.datasets if item.in_memory]
    if not staged:
        return Result(SKIP, "no dataset of type in_memory")
    if not any(item.files for item in staged):
        return Result(SKIP, "no directory of an in-memory dataset has files (see config_paths)")
    available, need = facts.host.room_bytes, sum(item.estimated_bytes for item in staged)
    wrong, partial = staging_problems(staged, available)
    if wrong:
        return Result(WARN if partial else FAIL, "; ".join(wrong))
    files = sum(item.files for item in staged)
    return Result(PASS, f"{files} files need about {gb(need)} of RAM, {gb(available)} can be had")


@CONFIG.check(WARN, "free memory, or raise cache_config.memory_limit_gb")
def config_caches(facts: Facts) -> Result:
    """Do the caches fit into unified memory?"""
    caches = _caches(facts)
    staged = sum(item.estimated_bytes for item in _given(facts).datasets)
    hbm = sum(gpu.memory_bytes or 0 for gpu in facts.gpus.devices[:1])
    available = max(0, facts.host.room_bytes - staged) + hbm
    limit = min(available, caches.memory_limit_bytes if caches.memory_limit_bytes is not None else available)
    if not caches.latent_bytes:
        text = f"{' and '.join(caches.kinds)}: their size is unknown here"
        return Result(PASS, f"{text}; {gb(limit)} can be had, what does not fit is read from disk")
    guess = f"latents about {gb(caches.latent_bytes)} (16 channels, bf16, a rough guess)"
    shown = f"{guess}, text embeddings unknown; {gb(limit)} can be had"
    if caches.latent_bytes > limit:
        return Result(WARN, f"{shown}: what does not fit is read from disk at every step")
    return Result(PASS, shown)


@CONFIG.check(WARN, "lower uvm_oversubscription_ratio to what RAM allows, or free memory; RAM bounds it anyway")
def config_oversubscription(facts: Facts) -> Result:
    """Can the oversubscription ratio be reached?"""
    ratio = _caches(facts).ratio
    hbm = facts.gpus.devices[0].memory_bytes if facts.gpus.devices else None
    if not hbm:
        return Result(SKIP, f"ratio {ratio:g}; no CUDA device whose memory it could be a multiple of")
    bound, possible = int(ratio * hbm), hbm + facts.host.room_bytes
    shown = f"ratio {ratio:g} x {gb(hbm)} HBM = {gb(bound)}; HBM and host together can give {gb(possible)}"
    return Result(WARN if bound > possible else PASS, shown)


@CONFIG.check(FAIL, "correct these settings; docs/RAMP.md explains them")
def config_ramp(facts: Facts) -> Result:
    """Can the accumulation ramp be built?"""
    config = _judged(facts)
    if config.ramp_problem:
        return Result(FAIL, config.ramp_problem)
    if config.ramp is None:
        return Result(SKIP, "no ramp is asked for")
    processes = f"with {config.processes} process{'es' if config.processes > 1 else ''}"
    return Result(PASS, "; ".join((f"{config.ramp}, {processes}", *config.ramp_notes)))


@CONFIG.check(FAIL, f"pip install the package named, or use another codec; {SETUP}")
def config_codecs(facts: Facts) -> Result:
    """Are the codecs installed?"""
    config = _read(facts)
    asked = sorted({item.compression for item in config.datasets if item.compression})
    if not asked:
        return Result(SKIP, "no compression is asked for")
    problems = sorted({item.codec_problem for item in config.datasets if item.codec_problem})
    if problems and facts.software.torch is None:
        return Result(SKIP, f"{'; '.join(problems)} Neither is torch: not the training environment", USE_VENV)
    return Result(FAIL, "; ".join(problems)) if problems else Result(PASS, f"{', '.join(asked)} installed")
