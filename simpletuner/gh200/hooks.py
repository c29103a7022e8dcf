"""What the patches call: each function calls the one of the same name in the module its decorator names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from typing import Any

from .state import StateHooks
from .trainer import TrainerHooks

__all__ = ["StateHooks", "TrainerHooks"]


def calls[**P, R](module: str, *, in_a_run: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Imports the module at the first call. With `in_a_run`, returns the first argument while no run is active."""

    def decorate(hook: Callable[P, R]) -> Callable[P, R]:
        @wraps(hook)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if in_a_run and StateHooks._gh200_run is None:
                unchanged: Any = args[0]
                return unchanged  # type: ignore[no-any-return]
            callee: Callable[P, R] = getattr(import_module(f"{__package__}.{module}"), hook.__name__)
            return callee(*args, **kwargs)

        return call

    return decorate


@calls("config.arguments")
def config_arguments(mapping: Mapping[str, object], words: list[str]) -> list[str]:
    """Checks our blocks of a config that becomes a command line."""
    raise NotImplementedError


@calls("config.arguments")
def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    """Keeps the config as it was given, before the arguments are parsed."""
    raise NotImplementedError


@calls("preflight.startup")
def take_config_flag() -> None:
    """Reads `--config FILE` before train.py imports anything of SimpleTuner."""


@calls("cli.main")
def command_line() -> None:
    """Answers `simpletuner gh200`; completes the arguments of `simpletuner train` and `simpletuner server`."""


@calls("backends.entries")
def dataset_entries(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    """The dataset entries as SimpleTuner shall see them."""
    raise NotImplementedError


@calls("backends.builders")
def backend_builders(upstream: dict[str, Any]) -> dict[str, Any]:
    """SimpleTuner's builders of data backends, and ours."""
    raise NotImplementedError


@calls("backends.ram.media_paths")
def audio_loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """A loader of audio that opens files of datasets in RAM there."""
    raise NotImplementedError


@calls("backends.tensors.hooks")
def placed_latent(latent: Any) -> Any | None:
    """A cached latent that needs no copy to pinned memory; None for all others."""
    raise NotImplementedError


@calls("backends.tensors.hooks", in_a_run=True)
def moved_together(latents: list[Any]) -> list[Any]:
    """The latents of a complete batch, moved to the GPU in one copy or prefetch."""
    raise NotImplementedError


@calls("backends.tensors.hooks")
def known_finite(tensor: Any) -> bool:
    """Whether a latent was checked for NaN and infinity when it was cached."""
    raise NotImplementedError


@calls("backends.scan.scan", in_a_run=True)
def metadata_backend(backend: Any) -> Any:
    """A dataset's metadata backend, with the scan overridden."""
    raise NotImplementedError


@calls("web.fields")
def register_fields(registry: Any) -> None:
    """Registers our config keys as fields of the web UI."""


@calls("web.server")
def extend_config_store(store: Any) -> None:
    """Overrides how the web UI lists and writes one directory of configs."""


@calls("web.datasets")
def extend_dataset_plan(plan: Any) -> None:
    """Overrides how the web UI reads datasets in RAM."""


@calls("web.origin")
def guard_app(app: Any) -> None:
    """Rejects requests that pages of other sites send to the web UI."""


@calls("web.server")
def extend_server(tabs: Any, router: Any) -> Any:
    """Adds our routes and sections to the web UI; returns the tabs."""
    raise NotImplementedError
