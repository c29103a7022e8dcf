"""What StateTracker keeps for the fork: the raw config as it was loaded, and the runtime config made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .runtime import Run


class StateHooks:
    """Base class of upstream's StateTracker; stored here, so that the fork needs no import of upstream to read it."""

    _gh200_raw: ClassVar[dict[str, Any]] = {}
    _gh200_arguments: ClassVar[tuple[list[str], dict[str, Any]]] = ([], {})
    _gh200_config_file: ClassVar[tuple[Path | None, dict[str, str]]] = (None, {})
    _gh200_origins: ClassVar[dict[str, str]] = {}
    _gh200_run: ClassVar[Run | None] = None

    @classmethod
    def set_raw_config(cls, raw: Mapping[str, Any] | None, origins: Mapping[str, str] | None = None) -> None:
        """The config as it was loaded, and where each key came from."""
        StateHooks._gh200_raw = dict(raw or {})
        StateHooks._gh200_origins = dict(origins or {})

    @classmethod
    def set_arguments(cls, words: Sequence[str], config: Mapping[str, Any]) -> None:
        """The config that has become these command-line arguments, which keep neither its types nor its nesting."""
        StateHooks._gh200_arguments = (list(words), dict(config))

    @classmethod
    def config_of_arguments(cls, words: Sequence[str]) -> dict[str, Any] | None:
        """The config that became these arguments; None where it is another."""
        known, config = StateHooks._gh200_arguments
        return dict(config) if known and list(words) == known else None

    @classmethod
    def set_config_file(cls, path: Path, origins: Mapping[str, str]) -> None:
        """The file named with --config, and where each key of the run came from: that file, or the command line."""
        StateHooks._gh200_config_file = (path, dict(origins))

    @classmethod
    def get_config_file(cls) -> tuple[Path | None, dict[str, str]]:
        """The file of --config and the origin of each key."""
        return StateHooks._gh200_config_file

    @classmethod
    def get_raw_config(cls) -> dict[str, Any]:
        """A copy of the config as it was loaded."""
        return dict(StateHooks._gh200_raw)

    @classmethod
    def get_raw_config_origins(cls) -> dict[str, str]:
        """Where each key of it came from."""
        return dict(StateHooks._gh200_origins)

    @classmethod
    def set_gh200_runtime_config(cls, run: Run | None) -> None:
        """The run of this process."""
        StateHooks._gh200_run = run

    @classmethod
    def get_gh200_runtime_config(cls) -> dict[str, Any]:
        """What is on, each value with its origin, and what was asked for but is not possible here; empty when off."""
        return StateHooks._gh200_run.snapshot() if StateHooks._gh200_run else {}
