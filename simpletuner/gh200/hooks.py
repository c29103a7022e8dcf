"""What the patches call: one line per site of upstream, loaded when the site is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .state import StateHooks
from .trainer import TrainerHooks

__all__ = ["StateHooks", "TrainerHooks"]


def config_arguments(mapping: Mapping[str, object], words: list[str]) -> list[str]:
    """Checks our blocks of a config that becomes a command line."""
    from .config import arguments

    return arguments.config_arguments(mapping, words)


def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    """Keeps the config as it was given, before the arguments are parsed."""
    from .config import arguments

    return arguments.incoming_arguments(input_args)


def take_config_flag() -> None:
    """Before train.py imports anything of upstream's: `--config FILE`."""
    from .preflight import startup

    startup.take_config_flag()


def train_command() -> None:
    """Before `simpletuner` parses its command line."""
    from .config import train_arguments

    train_arguments.train_command()


def dataset_entries(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    """The dataset entries as SimpleTuner shall see them."""
    from .backends.ram import hooks
    from .backends.scan.directories import absolute_directories
    from .backends.tensors.directories import directories_for_run

    return directories_for_run(absolute_directories(hooks.dataset_entries(entries)), factory)


def backend_builders(upstream: dict[str, Any]) -> dict[str, Any]:
    """SimpleTuner's builders of data backends, and ours."""
    from .backends import builders

    return builders.backend_builders(upstream)


def audio_loader(load: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream opens audio of a local dataset by path, past its data backend."""

    # Who imports a loader before the run begins has the same one: the run is looked up when it is called.
    @wraps(load)
    def from_ram(*given: Any, **named: Any) -> Any:
        if StateHooks._gh200_run is None:
            return load(*given, **named)
        from .backends.ram.media_paths import in_ram

        # A path to bytes in RAM leads there as long as it is referred to.
        opened = [in_ram(value) for value in given]
        by_name = {name: in_ram(value) for name, value in named.items()}
        return load(*opened, **by_name)

    return from_ram


def placed_latent(latent: Any) -> Any | None:
    """A cached latent that needs no copy to pinned memory; None for all others."""
    from .backends.tensors import hooks

    return hooks.placed_latent(latent)


def moved_together(latents: list[Any]) -> list[Any]:
    """The latents of a complete batch, moved to the GPU in one copy or prefetch."""
    if StateHooks._gh200_run is None:
        return latents
    from .backends.tensors import hooks

    return hooks.moved_together(latents)


def known_finite(tensor: Any) -> bool:
    """Whether a latent was checked for NaN and infinity when it was cached."""
    from .backends.tensors import hooks

    return hooks.known_finite(tensor)


def metadata_backend(backend: Any) -> Any:
    """A dataset's metadata backend, with the scan overridden."""
    if StateHooks._gh200_run is None:
        return backend
    from .backends.scan import scan

    return scan.metadata_backend(backend)


def web_fields(registry: Any) -> None:
    """Registers our config keys as fields."""
    from .web.fields import register

    register(registry)


def web_store(store: Any) -> None:
    from .web.server import ConfigFiles

    ConfigFiles(store).install(store)


def web_plan(plan: Any) -> None:
    from .web.server import DatasetPlan

    DatasetPlan().install(plan)


def web_page(tabs: Any, router: Any) -> Any:
    from .web.server import extend_server

    extend_server(tabs.templates.env, router)
    return tabs
