"""Datasets written inside the training config, and the `in_memory` block of any dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..errors import GH200Error
from ..files import write_whole
from .keys import DATASETS_FILE_KEY, IN_MEMORY, plain_key
from .problems import Problem, SettingsError, join_path, nearest, problems_of, shown
from .profile import CHOSEN, staged_by_profile
from .schema import InMemory

INLINE_FILE_NAME = "gh200_datasets.json"
# Keys of v1: files are staged in the order of the listing, and no run waits for another.
_REMOVED = {"partial_order", "patience_seconds"}
# Caches of upstream's: written by the run, so nothing of them could be staged.
_CACHE_TYPES = ("text_embeds", "image_embeds", "conditioning_image_embeds", "distillation_cache")


class DatasetReader:
    """Checks the datasets of a run; collects problems, notes, the in-memory options by id, and the inline list."""

    def __init__(self, raw: Mapping[str, object], dataset_file: list[object] | None, *, profile: bool = False) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.in_memory: dict[str, InMemory] = {}
        self.inline_json: str | None = None
        inline = self._inline(raw)
        if inline is not None:
            self._check_inline(inline, raw)
        if profile:
            self._stage_by_profile([*(inline or ()), *(dataset_file or ())])
        in_file = {index: entry for index, entry in enumerate(dataset_file or ()) if isinstance(entry, Mapping)}
        for index, entry in in_file.items():
            self._check_in_memory(entry, join_path(DATASETS_FILE_KEY, index))
        self._check_ids_of_file(list(in_file.values()))

    def _stage_by_profile(self, entries: list[object]) -> None:
        given = {id(entry) for entry in entries}
        chosen = [entry for entry in staged_by_profile(entries) if id(entry) not in given]
        self.in_memory |= {str(entry["id"]): in_memory_options(entry[IN_MEMORY]) for entry in chosen}
        if chosen:
            names = ", ".join(str(entry["id"]) for entry in chosen)
            self.notes.append(f"{CHOSEN}in RAM where they take at most half of what is free, else from disk: {names}")

    def _inline(self, raw: Mapping[str, object]) -> list[object] | None:
        datasets, older = raw.get("datasets"), raw.get("data_backend")
        if datasets is None:
            return None if older is None else self._older_spelling(older)
        if older is not None:
            text = 'older spelling beside "datasets"; move it there as one more entry'
            self.problems.append(Problem("data_backend", text))
        if isinstance(datasets, list) and datasets:
            return datasets
        text = f"must be a list with at least one dataset; got {shown(datasets)}"
        self.problems.append(Problem("datasets", text))
        return None

    def _older_spelling(self, entry: object) -> list[object] | None:
        if not isinstance(entry, Mapping):
            self._no_block("data_backend", entry)
            return None
        if entry.get("type") != IN_MEMORY:
            text = f'must be "{IN_MEMORY}"; got {shown(entry.get("type"))}. Other datasets belong in "datasets"'
            self.problems.append(Problem("data_backend.type", text))
            return None
        name = Path(str(entry.get("instance_data_dir", ""))).name or IN_MEMORY
        self.notes.append('"data_backend" is the older spelling; write it as one entry of "datasets"')
        return [{"id": name, **entry}]

    def _check_inline(self, entries: list[object], raw: Mapping[str, object]) -> None:
        key = "datasets" if raw.get("datasets") is not None else "data_backend"
        if raw.get(DATASETS_FILE_KEY):
            text = f'{key} is given in the training config too; remove one of the two, "{DATASETS_FILE_KEY}" or "{key}"'
            self.problems.append(Problem(DATASETS_FILE_KEY, text))
        seen: dict[str, str] = {}
        for index, entry in enumerate(entries):
            path = join_path(key, index) if key == "datasets" else key
            if not isinstance(entry, Mapping):
                self._no_block(path, entry)
                continue
            self._check_id(entry, path, seen)
            self._check_in_memory(entry, path)
        self.inline_json = json.dumps(entries, indent=1, ensure_ascii=True)

    def _no_block(self, path: str, entry: object) -> None:
        self.problems.append(Problem(path, f"must be a block of keys (a JSON object); got {shown(entry)}"))

    def _check_id(self, entry: Mapping[str, object], path: str, seen: dict[str, str]) -> None:
        name = entry.get("id")
        if not isinstance(name, str) or not name.strip():
            self.problems.append(Problem(join_path(path, "id"), f"must be text, not empty; got {shown(name)}"))
        elif name in seen:
            self.problems.append(Problem(join_path(path, "id"), f"{shown(name)} is the id of {seen[name]} already"))
        else:
            seen[name] = path

    def _check_ids_of_file(self, entries: list[Mapping[str, object]]) -> None:
        """Upstream's own datasets may share an id; staged ones are looked up by it."""
        on = [entry for entry in entries if not entry.get("disabled") and not entry.get("disable")]
        names = [str(entry.get("id")) for entry in on]
        for name in dict.fromkeys(str(entry.get("id")) for entry in on if entry.get("type") == IN_MEMORY):
            if (count := names.count(name)) > 1:
                self.problems.append(Problem(DATASETS_FILE_KEY, f"the id {shown(name)} is given to {count} datasets"))

    def _check_in_memory(self, entry: Mapping[str, object], path: str) -> None:
        kind = entry.get("type")
        if kind != IN_MEMORY:
            self._check_other_type(entry, path, kind)
            return
        for key, value in entry.items():
            inner = join_path(path, key)
            if plain_key(key) in InMemory.model_fields:
                self.problems.append(Problem(inner, f'belongs inside the dataset\'s "{IN_MEMORY}" block'))
            elif key != IN_MEMORY and isinstance(value, Mapping) and (hint := _hint(str(key))):
                self.problems.append(Problem(inner, f"unknown block.{hint}"))
        if entry.get("dataset_type") in _CACHE_TYPES:
            text = f'{shown(entry["dataset_type"])} is a cache: use "cache_config" with "unified_memory" for it'
            self.problems.append(Problem(join_path(path, "dataset_type"), text))
        elif not entry.get("instance_data_dir"):
            self.problems.append(
                Problem(join_path(path, "instance_data_dir"), "missing; the directory to stage in RAM")
            )
        block = entry.get(IN_MEMORY)
        for key in sorted(_REMOVED & block.keys()) if isinstance(block, Mapping) else ():
            self.notes.append(f'"{join_path(path, IN_MEMORY)}.{key}" is no longer a key and has no effect; remove it')
        try:
            self.in_memory[str(entry.get("id", ""))] = in_memory_options(entry.get(IN_MEMORY), path)
        except SettingsError as error:
            self.problems += error.problems

    def _check_other_type(self, entry: Mapping[str, object], path: str, kind: object) -> None:
        # false keeps a dataset out of the profile's choice.
        if entry.get(IN_MEMORY) not in (None, False):
            text = f'only has a meaning with "type": "{IN_MEMORY}"; this dataset has the type {shown(kind)}'
            self.problems.append(Problem(join_path(path, IN_MEMORY), text))
        # "memory" is a backend of upstream's own.
        if isinstance(kind, str) and kind != "memory" and (hint := _hint(kind)):
            self.problems.append(Problem(join_path(path, "type"), f"{shown(kind)} is no dataset type.{hint}"))


def in_memory_options(block: object, dataset: str = "") -> InMemory:
    """The checked `in_memory` block of a dataset, whoever hands it over; None is a dataset without one."""
    try:
        if isinstance(block, Mapping):
            block = {key: value for key, value in block.items() if key not in _REMOVED}
        return InMemory.model_validate({} if block is None else block)
    except ValidationError as error:
        raise SettingsError(problems_of(error, InMemory, join_path(dataset, IN_MEMORY))) from error


def _hint(word: str) -> str:
    return nearest(word.lower(), [IN_MEMORY], cutoff=0.8)


def entries_of_file(path: object) -> list[object] | None:
    """The list in upstream's dataset file; None where upstream itself will complain about the file."""
    if not isinstance(path, str) or not path:
        return None
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return entries if isinstance(entries, list) else None


# Datasets that make no micro-batches: caches, and what is read beside the samples of another dataset.
_WITHOUT_BATCHES = (*_CACHE_TYPES, "conditioning", "eval")


def batch_sizes(config: Mapping[str, Any], usual: int) -> dict[str, int]:
    """Samples in a micro-batch of one rank, by training dataset; one that names none has the usual size."""
    entries = config.get("datasets") or entries_of_file(config.get("data_backend_config")) or ()
    found = {}
    for entry in entries if isinstance(entries, Sequence) else ():
        if isinstance(entry, Mapping) and not entry.get("disabled") and not entry.get("disable"):
            size = str(entry.get("train_batch_size") or usual)
            if entry.get("dataset_type", "image") not in _WITHOUT_BATCHES and size.isdigit():
                found[str(entry.get("id"))] = int(size)
    return found


def micro_batch_size(config: Mapping[str, Any], usual: int) -> int | None:
    """Samples in every micro-batch of one rank; None where datasets have different sizes."""
    sizes = {*batch_sizes(config, usual).values()} or {usual}
    return sizes.pop() if len(sizes) == 1 else None


def write_inline_datasets(text: str, directory: str) -> Path:
    """The inline datasets as the file upstream's factory reads; replaced in one step, as every rank writes it."""
    target = Path(directory) / INLINE_FILE_NAME
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise GH200Error(
            "The inline datasets could not be written to the file upstream reads them from.",
            where=str(target),
            why=str(error),
            fix="make output_dir writable, or use a dataset file with data_backend_config",
        ) from error
    return target
