"""Whether all ranks of a run were told the same: configs, datasets and clocks, compared before anything is loaded."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate.utils import gather_object

from .errors import GH200Error

logger = logging.getLogger("gh200.settings")

# Seconds; a checkpoint's date and the age of a cache entry mean nothing beyond.
CLOCKS_APART = 30.0
# Machines may keep things in different places, each file of them its own.
_PLACES = ("_dir", "_path", "_config", "_file")


class RanksDiffer(GH200Error):
    """The ranks of one run were started with different things."""


@dataclass(frozen=True)
class Told:
    """What one rank was told, and what it finds."""

    rank: int
    host: str
    values: Mapping[str, str]
    missing: tuple[str, ...]
    clock: float

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def check_ranks(accelerator: Any, config: Mapping[str, Any], datasets: Sequence[Any] | None) -> None:
    """Every rank stops with the same error where they differ; nothing is drawn from any generator."""
    if accelerator is None or accelerator.num_processes < 2:
        return
    accelerator.wait_for_everyone()
    values = dict(_flat("", {**config, "datasets": _by_id(datasets or config.get("datasets") or ())}))
    mine = Told(accelerator.process_index, socket.gethostname(), values, _missing(datasets or ()), time.time())
    everybody: list[Told] = gather_object([mine])
    found = differences(everybody)
    if found:
        raise RanksDiffer(
            "The ranks of this run were not told the same.",
            why="\n".join(found),
            fix="start every rank with the same config, on machines that all have its folders",
        )
    apart = max(one.clock for one in everybody) - min(one.clock for one in everybody)
    if apart > CLOCKS_APART and accelerator.is_main_process:
        early, late = (pick(everybody, key=lambda one: one.clock).name for pick in (min, max))
        logger.warning(
            "GH200: the clocks of %s and %s are %.0f s apart: dates of files and logs mislead.", early, late, apart
        )


def differences(everybody: Sequence[Told]) -> list[str]:
    """One line per key that is not everywhere what the first rank has, and per folder that is not everywhere."""
    first, found = everybody[0], []
    for other in everybody[1:]:
        keys = [key for key in sorted({*first.values, *other.values}) if not key.endswith(_PLACES)]
        for key in keys:
            here, there = (one.values.get(key, "not set") for one in (first, other))
            if here != there:
                found.append(f"{key}: {here} for {first.name}, {there} for {other.name}")
    found += [f"{other.name} has no folder {folder}" for other in everybody for folder in other.missing]
    return found


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(f"{path}.{str(key).lstrip('-')}".lstrip("."), item)
    else:
        yield path, json.dumps(value, default=str)


def _by_id(datasets: Any) -> Any:
    if not isinstance(datasets, (list, tuple)):
        return datasets
    return {
        str(entry.get("id", place)) if isinstance(entry, Mapping) else str(place): entry
        for place, entry in enumerate(datasets)
    }


def _missing(datasets: Sequence[Any]) -> tuple[str, ...]:
    folders = [str(entry["instance_data_dir"]) for entry in datasets if isinstance(entry, Mapping) and _is_local(entry)]
    return tuple(folder for folder in folders if not os.path.isdir(os.path.expanduser(folder)))


def _is_local(entry: Mapping[str, Any]) -> bool:
    return entry.get("type", "local") in ("local", "in_memory") and bool(entry.get("instance_data_dir"))
