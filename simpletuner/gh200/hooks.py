"""What the patches call: one line per site of upstream, loaded when the site is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from .state import StateHooks
from .trainer import TrainerHooks

__all__ = ["StateHooks", "TrainerHooks"]


def config_arguments(mapping: Mapping[str, object], words: list[str]) -> list[str]:
    from .config.arguments import config_arguments as arguments

    return arguments(mapping, words)


def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    from .config.arguments import incoming_arguments as arguments

    return arguments(input_args)


def take_config_flag() -> None:
    """Before train.py imports anything of upstream's: `--config FILE`."""
    from .preflight.startup import take_config_flag as take

    take()


def train_command() -> None:
    """Before `simpletuner` parses its command line."""
    from .config.train_command import train_command as rewrite

    rewrite()


def dataset_entries(entries: list[dict[str, Any]], factory: Any) -> list[dict[str, Any]]:
    from .backends.ram.hooks import dataset_entries as as_local
    from .backends.scan.directories import absolute_directories
    from .backends.tensors.directories import directories_for_run

    return directories_for_run(absolute_directories(as_local(entries)), factory)


def backend_builders(builders: dict[str, Any]) -> dict[str, Any]:
    from .backends.builders import backend_builders as with_ours

    return with_ours(builders)


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
    from .backends.tensors.hooks import placed_latent as place

    return place(latent)


def moved_together(latents: list[Any]) -> list[Any]:
    if StateHooks._gh200_run is None:
        return latents
    from .backends.tensors.hooks import moved_together as move

    return move(latents)


def known_finite(tensor: Any) -> bool:
    from .backends.tensors.hooks import known_finite as known

    return known(tensor)


def metadata_backend(backend: Any) -> Any:
    if StateHooks._gh200_run is None:
        return backend
    from .backends.scan.scan import metadata_backend as scanned

    return scanned(backend)


def web_fields(registry: Any) -> None:
    from .web.fields import register

    register(registry)


def web_store(store: Any) -> None:
    from .web.server import ConfigFiles

    ConfigFiles(store).take_over(store)


def web_plan(plan: Any) -> None:
    from .web.server import DatasetPlan

    DatasetPlan().take_over(plan)


def web_page(tabs: Any, router: Any) -> Any:
    from .web.server import extend_server

    extend_server(tabs.templates.env, router)
    return tabs
