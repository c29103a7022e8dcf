"""What the patches call: one line per site of upstream, loaded when the site is reached."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from .state import StateHooks
from .trainer import TrainerHooks

__all__ = ["StateHooks", "TrainerHooks"]


def outgoing_config(mapping: Mapping[str, object]) -> Mapping[str, object]:
    from .settings.transport import outgoing_config as pack

    return pack(mapping)


def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    from .settings.transport import incoming_arguments as unpack

    return unpack(input_args)


def config_from_command_line(args: Namespace | dict[str, object] | None) -> Namespace | dict[str, object] | None:
    from .settings.transport import config_from_command_line as load

    loaded = load(args)
    if loaded is not args:
        from .preflight.start import check_command_line

        check_command_line(sys.argv[1:])
    return loaded


def config_file_argument(extra_args: list[str]) -> str | None:
    from .settings.transport import config_file_argument as find

    return find(extra_args)


def train_command() -> None:
    """Before `simpletuner` parses its command line."""
    from .settings.train_command import train_command_line

    sys.argv[:] = train_command_line(sys.argv)


def dataset_entries(entries: list[dict[str, Any]], args: Any) -> list[dict[str, Any]]:
    from .caches.dirs import directories_for_run
    from .datasets.sites import dataset_entries as as_local

    return directories_for_run(as_local(entries), args)


def made_entries(entries: list[dict[str, Any]], args: Any) -> list[dict[str, Any]]:
    """All datasets of the run, those among them that upstream has added."""
    from .caches.dirs import directories_of_made

    return directories_of_made(entries, args)


def local_backend(config: Any, backend: Any) -> Any:
    from .datasets.sites import any_in_memory, is_in_memory

    if not any_in_memory():
        return backend
    from .datasets.backend import local_backend as staged
    from .datasets.backend import watched_backend as watched

    return staged(config, backend) if is_in_memory(config) else watched(config, backend)


def in_ram(source: Any) -> Any:
    """A path to the bytes in RAM for what upstream is about to open by path; what is not in RAM stays what it is."""
    if StateHooks._gh200_run is None:
        return source
    from .datasets.media import in_ram as found

    return found(source)


def rebuild_backend(representation: Mapping[str, Any], backend: Any) -> Any:
    from .datasets.sites import REPRESENTATION_KEY

    if REPRESENTATION_KEY not in representation:
        return backend
    from .datasets.backend import GH200InMemoryBackend

    return GH200InMemoryBackend.from_instance_representation(dict(representation))


def attach_cache_tier(cache: Any, attribute: str, kind: Any) -> None:
    from .caches.sites import attach_cache_tier as attach

    attach(cache, attribute, kind)


def placed_latent(latent: Any) -> Any | None:
    from .caches.sites import placed_latent as place

    return place(latent)


def moved_together(latents: list[Any]) -> list[Any]:
    if StateHooks._gh200_run is None:
        return latents
    from .caches.sites import moved_together as move

    return move(latents)


def known_finite(tensor: Any) -> bool:
    from .caches.sites import known_finite as known

    return known(tensor)


def pinning_impossible(mps_available: bool) -> bool:
    from .memory.pinning import pinning_impossible as impossible

    return impossible(mps_available)


def scan_workers(
    backend: Any,
    workers: list[Any],
    files: Any,
    known: set[str],
    statistics: dict[str, Any] | None = None,
    progress: Any = None,
) -> list[Any]:
    if StateHooks._gh200_run is None:
        return workers
    from .start.sites import scan_workers as scan

    return scan(backend, workers, files, known, statistics, progress)


def unseen_index(sampler: Any, bucket: Any, positions: list[int]) -> Any | None:
    if StateHooks._gh200_run is None:
        return None
    from .start.sites import unseen_index as index

    return index(sampler, bucket, positions)


def unseen_samples(index: Any) -> Any | None:
    if StateHooks._gh200_run is None:
        return None
    from .start.sites import unseen_samples as samples

    return samples(index)


def captions_once(backend: Any, images: Any, asked: dict[str, Any]) -> Any:
    if StateHooks._gh200_run is None:
        return images
    from .start.sites import captions_once as once

    return once(backend, images, asked)


def caption_of(backend: Any, image: Any, read: Callable[[], Any]) -> Any:
    captions = None if StateHooks._gh200_run is None else getattr(backend, "_gh200_captions", None)
    return read() if captions is None else captions.caption(image, read)


def relative_path(path: Any, root: Any) -> str | None:
    if StateHooks._gh200_run is None:
        return None
    from .start.relative import relative_path as relative

    return relative(path, root)


def walked(backend: Any, top: Any) -> Any | None:
    if StateHooks._gh200_run is None:
        return None
    from .start.sites import walked as walk

    return walk(backend, top)


def listed(backend: Any, top: Any, extensions: Any) -> Any | None:
    if StateHooks._gh200_run is None:
        return None
    from .start.sites import listed as whole

    return whole(backend, top, extensions)


def folder_to_hold(held: dict[str, Any], dataset: str, folder: Any) -> Any:
    if StateHooks._gh200_run is None:
        return folder
    from .start.sites import folder_to_hold as unheld

    return unheld(held, dataset, folder)


def nothing_new(backend: Any, files: Any) -> bool:
    if StateHooks._gh200_run is None:
        return False
    from .start.sites import nothing_new as placed

    return placed(backend, files)


def buckets_to_check(backend: Any, files: Any, buckets: Any) -> Any:
    if StateHooks._gh200_run is None:
        return buckets
    from .start.sites import buckets_to_check as unchecked

    return unchecked(backend, files, buckets)


def files_to_match(files: Any, extensions: Any, root: str, matching: list[str]) -> Any:
    if StateHooks._gh200_run is None:
        return files
    from .start.sites import files_to_match as unmatched

    return unmatched(files, extensions, root, matching)


def latent_folder(subfolders: str) -> str:
    if StateHooks._gh200_run is None or "//" not in subfolders:
        return subfolders
    from .start.sites import latent_folder as folder

    return folder(subfolders)


def files_to_name(cache: Any, files: Any) -> Any:
    if StateHooks._gh200_run is None:
        return files
    from .start.sites import files_to_name as unnamed

    return unnamed(cache, files)


def names_without_suffix(cut: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return cut()
    from .start.sites import names_without_suffix as without

    return without(cut)


def pictures_to_match(cache: Any, pictures: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return pictures()
    from .start.sites import pictures_to_match as unmatched

    return unmatched(cache, pictures)


def latents_to_match(pictures: Any, latents: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return latents()
    from .start.sites import latents_to_match as unmatched

    return unmatched(pictures, latents)


def caches_to_match(cache: Any, files: Any, matched: list[str]) -> Any:
    if StateHooks._gh200_run is None:
        return files
    from .start.sites import caches_to_match as unmatched

    return unmatched(cache, files, matched)


def nothing_left(cache: Any, files: Any) -> bool:
    if StateHooks._gh200_run is None:
        return False
    from .start.sites import nothing_left as nothing

    return nothing(cache, files)


def embeds_established(factory: Any, backend: Any, made: Any) -> bool:
    if StateHooks._gh200_run is None:
        return False
    from .start.sites import embeds_established as established

    return established(factory, backend, made)


def embeds_checked(factory: Any, backend: Any, made: Any, check: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return check()
    from .start.sites import embeds_checked as checked

    return checked(factory, backend, made, check)


def metadata_from(backend: Any, content: Any, read: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return read()
    from .start.sites import metadata_from as shared

    return shared(backend, content, read)


def with_boxes(backend: Any) -> Any | None:
    if StateHooks._gh200_run is None:
        return backend
    from .start.sites import with_boxes as boxed

    return boxed(backend)


def metadata_complete(backend: Any, paths: set[str]) -> bool:
    if StateHooks._gh200_run is None:
        return False
    from .start.sites import metadata_complete as complete

    return complete(backend, paths)


def written_at_once(data: Any, file: Any) -> bool:
    if StateHooks._gh200_run is None:
        return False
    from .start.sites import written_at_once as write

    return write(data, file)


def read_at_once(file: Any, read: Callable[[], Any]) -> Any:
    if StateHooks._gh200_run is None:
        return read()
    from .start.sites import read_at_once as load

    return load(file, read)


def provide_dummy_scheduler() -> None:
    from .start.dummy_scheduler import provide

    provide()


def web_fields(registry: Any) -> None:
    from .web.fields import register

    register(registry)


def web_bundle(bundle: Any, form: Any) -> Any:
    from .web.saving import completed_bundle as completed

    return completed(bundle, form)


def web_update(store: Any, name: str, config: Any) -> Any:
    from .web.saving import completed_update as completed

    return completed(store, name, config)


def web_save(form: Any, service: Any) -> None:
    from .web.saving import check_save as check

    check(form, service)


def web_written(store: Any, name: str, config: Any) -> Any:
    from .web.saving import about_to_write as checked

    return checked(store, name, config)


def web_training_config(data: Any) -> bool:
    from .web.blocks import is_training_config as training

    return training(data)


def web_validation(result: Any, store: Any, config: Any) -> Any:
    from .web.sites import validation

    return validation(result, store, config)


def web_page(tabs: Any, router: Any) -> Any:
    from .web.page import Page

    return Page(router).take(tabs)


def web_backend_type(name: str) -> str:
    from .web.datasets import backend_type as local

    return local(name)


def web_plan(path: Any, datasets: Any) -> Any:
    from .web.datasets import kept_plan as kept

    return kept(path, datasets)


def web_readable(datasets: Any) -> Any:
    from .web.datasets import readable

    return readable(datasets)
