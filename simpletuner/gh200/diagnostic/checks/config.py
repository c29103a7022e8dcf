"""Checks of a training config: will it fit on this machine, and is everything there that it names."""

from __future__ import annotations

from ...preflight.config import Config, staging_problems
from ..facts import Facts
from ..result import FAIL, PASS, SKIP, WARN, Result, gb
from .software import USE_VENV

NO_CONFIG = "no --config was given"
UNREADABLE = "the settings have problems (see config_settings)"


def _read(facts: Facts) -> Config | Result:
    """The config, or why this interpreter cannot tell what its blocks say."""
    config = facts.config
    if config is None:
        return Result(SKIP, NO_CONFIG)
    return Result(SKIP, config.unjudged, USE_VENV) if config.unjudged else config


def _judged(facts: Facts) -> Config | Result:
    """The config, or why nothing that comes from the checked settings can be told."""
    config = _read(facts)
    return Result(SKIP, UNREADABLE) if isinstance(config, Config) and config.problems else config


def config_settings(facts: Facts) -> Result:
    if facts.config is not None and facts.config.problems:
        return Result(FAIL, "; ".join(facts.config.problems))
    config = _judged(facts)
    if isinstance(config, Result):
        return config
    return Result(PASS, "; ".join((f"{config.path} is accepted", *config.notes)))


def config_preflight(facts: Facts) -> Result:
    """What no other check here names: upstream's keys, the model, buckets and windows, checkpoints' disk."""
    found = facts.preflight
    if found is None or facts.config is None:
        return Result(SKIP, NO_CONFIG)
    if found.unasked:
        return Result(SKIP, found.unasked, USE_VENV)
    staged = [item for item in facts.config.datasets if item.in_memory]
    wrong, _ = staging_problems(staged, facts.host.room_bytes)
    elsewhere = {*facts.config.problems, *facts.config.missing, facts.config.ramp_problem, *wrong}
    problems = [text for text in found.problems if text not in elsewhere]
    if problems:
        return Result(FAIL, "; ".join(problems))
    unknown = [f"not checked: {text}" for text in found.not_checked]
    if found.warnings:
        return Result(WARN, "; ".join((*found.warnings, *unknown)))
    return Result(PASS, "; ".join((*found.told, *unknown)) or "nothing speaks against it")


def config_paths(facts: Facts) -> Result:
    if facts.config is None:
        return Result(SKIP, NO_CONFIG)
    if facts.config.missing:
        return Result(FAIL, "; ".join(facts.config.missing))
    return Result(PASS, ", ".join(item.folder for item in facts.config.datasets) or "no local dataset folder")


def config_datasets(facts: Facts) -> Result:
    config = _read(facts)
    if isinstance(config, Result):
        return config
    staged = [item for item in config.datasets if item.in_memory]
    if not staged:
        return Result(SKIP, "no dataset of type in_memory")
    if not any(item.files for item in staged):
        return Result(SKIP, "no folder of an in-memory dataset has files (see config_paths)")
    room, need = facts.host.room_bytes, sum(item.estimated_bytes for item in staged)
    wrong, partial = staging_problems(staged, room)
    if wrong:
        return Result(WARN if partial else FAIL, "; ".join(wrong))
    files = sum(item.files for item in staged)
    return Result(PASS, f"{files} files need about {gb(need)} of RAM, {gb(room)} can be had")


def config_caches(facts: Facts) -> Result:
    config = _judged(facts)
    if isinstance(config, Result):
        return config
    caches = config.caches
    if caches is None:
        return Result(SKIP, "no cache in unified memory is asked for")
    staged = sum(item.estimated_bytes for item in config.datasets)
    hbm = sum(gpu.memory_bytes or 0 for gpu in facts.gpus.devices[:1])
    room = max(0, facts.host.room_bytes - staged) + hbm
    limit = min(room, caches.memory_limit_bytes if caches.memory_limit_bytes is not None else room)
    if not caches.latent_bytes:
        text = f"{' and '.join(caches.kinds)}: their size cannot be told here"
        return Result(PASS, f"{text}; {gb(limit)} can be had, what does not fit is read from disk")
    guess = f"latents about {gb(caches.latent_bytes)} (16 channels, bf16, a rough guess)"
    shown = f"{guess}, text embeddings cannot be told; {gb(limit)} can be had"
    if caches.latent_bytes > limit:
        return Result(WARN, f"{shown}: what does not fit is read from disk at every step")
    return Result(PASS, shown)


def config_oversubscription(facts: Facts) -> Result:
    config = _judged(facts)
    if isinstance(config, Result):
        return config
    if config.caches is None:
        return Result(SKIP, "no cache in unified memory is asked for")
    hbm = facts.gpus.devices[0].memory_bytes if facts.gpus.devices else None
    if not hbm:
        return Result(SKIP, f"ratio {config.caches.ratio:g}; no CUDA device whose memory it could be a multiple of")
    bound, possible = int(config.caches.ratio * hbm), hbm + facts.host.room_bytes
    shown = (
        f"ratio {config.caches.ratio:g} x {gb(hbm)} HBM = {gb(bound)}; HBM and host together can give {gb(possible)}"
    )
    return Result(WARN if bound > possible else PASS, shown)


def config_ramp(facts: Facts) -> Result:
    config = _judged(facts)
    if isinstance(config, Result):
        return config
    if config.ramp_problem:
        return Result(FAIL, config.ramp_problem)
    if config.ramp is None:
        return Result(SKIP, "no ramp is asked for")
    processes = f"with {config.processes} process{'es' if config.processes > 1 else ''}"
    return Result(PASS, "; ".join((f"{config.ramp}, {processes}", *config.ramp_notes)))


def config_codecs(facts: Facts) -> Result:
    config = _read(facts)
    if isinstance(config, Result):
        return config
    asked = sorted({item.compression for item in config.datasets if item.compression})
    if not asked:
        return Result(SKIP, "no compression is asked for")
    problems = sorted({item.codec_problem for item in config.datasets if item.codec_problem})
    if problems and facts.software.torch is None:
        return Result(SKIP, f"{'; '.join(problems)} Neither is torch: not the training environment", USE_VENV)
    return Result(FAIL, "; ".join(problems)) if problems else Result(PASS, f"{', '.join(asked)} installed")
