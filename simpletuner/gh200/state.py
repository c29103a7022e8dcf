"""What StateTracker remembers for the fork: the raw config as it was loaded, and the runtime config made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .run import Run


class StateHooks:
    """Base class of upstream's StateTracker; stored here, so that the fork needs no import of upstream to read it."""

    _gh200_raw: ClassVar[dict[str, Any]] = {}
    _gh200_as_given: ClassVar[dict[str, Any]] = {}
    _gh200_origins: ClassVar[dict[str, str]] = {}
    _gh200_run: ClassVar[Run | None] = None

    @classmethod
    def set_raw_config(cls, raw: Mapping[str, Any] | None, origins: Mapping[str, str] | None = None) -> None:
        StateHooks._gh200_raw = dict(raw or {})
        StateHooks._gh200_origins = dict(origins or {})

    @classmethod
    def remember_as_given(cls, config: Mapping[str, Any]) -> None:
        """A config that is about to become a command line, which keeps neither its types nor what is nested in it."""
        StateHooks._gh200_as_given = dict(config)

    @classmethod
    def as_given(cls) -> dict[str, Any]:
        return StateHooks._gh200_as_given

    @classmethod
    def get_raw_config(cls) -> dict[str, Any]:
        return dict(StateHooks._gh200_raw)

    @classmethod
    def get_raw_config_origins(cls) -> dict[str, str]:
        return dict(StateHooks._gh200_origins)

    @classmethod
    def set_gh200_runtime_config(cls, run: Run | None) -> None:
        StateHooks._gh200_run = run

    @classmethod
    def get_gh200_runtime_config(cls) -> dict[str, Any]:
        """What is on, each value with its origin, and what was asked for but is not possible here; empty when off."""
        return StateHooks._gh200_run.snapshot() if StateHooks._gh200_run else {}
