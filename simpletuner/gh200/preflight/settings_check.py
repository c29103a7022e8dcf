"""What the fork's own settings and ramp say; an interpreter without pydantic cannot ask them, and the checks say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..errors import GH200Error

try:
    from ..config.dataset_file import in_memory_options
    from ..config.problems import SettingsError
    from ..config.schema import InMemory
    from ..config.sources import read_config_settings, read_settings
    from ..ramp.from_config import ramp_from
except ImportError as error:
    UNJUDGED = f"{error.name} is not installed in this interpreter"
else:
    UNJUDGED = ""

if TYPE_CHECKING:
    from ..config.schema import Settings
    from ..ramp.schedule import GH200GradientRamp

Texts = tuple[str, ...]


def judge_environment(environ: Mapping[str, str]) -> tuple[Texts, Texts]:
    """What is wrong with the fork's variables, and what is odd about them, as a run would judge them."""
    if UNJUDGED:
        return (), ()
    try:
        return (), read_settings({}, environ).notes
    except SettingsError as error:
        return tuple(str(problem) for problem in error.problems), ()


def judge_config(config: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Settings | None, Texts]:
    """The settings of a run with this config, or what is wrong with them."""
    if UNJUDGED:
        return None, ()
    try:
        return read_config_settings(config, environ), ()
    except SettingsError as error:
        return None, tuple(str(problem) for problem in error.problems)


def judge_ramp(
    settings: Settings | None, config: Mapping[str, object], processes: int
) -> tuple[GH200GradientRamp | None, str]:
    """The ramp of such a run and what is wrong with it; neither where none is asked for."""
    if settings is None or not settings.optimizations.enable_batch_size_rampup:
        return None, ""
    try:
        return ramp_from(settings.optimizations, config, processes), ""
    except SettingsError as error:
        return None, "; ".join(str(problem) for problem in error.problems)
    except GH200Error as error:
        return None, "; ".join(part for part in (error.what, error.where.replace("\n", "; ")) if part)


def staging_options(block: object) -> InMemory | None:
    """The `in_memory` block of a dataset; None where it cannot be judged, its defaults where it is wrong."""
    if UNJUDGED:
        return None
    try:
        return in_memory_options(block)
    except SettingsError:
        return InMemory()  # the settings name everything wrong with the block
