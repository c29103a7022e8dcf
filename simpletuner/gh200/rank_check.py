"""Whether all ranks of a run were told the same: configs and datasets, compared before anything is loaded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from .errors import GH200Error

# Seconds between the first rank that is here and the last: all of them have just met to make their process group.
PATIENCE = 120.0
_LAST_WORDS = 10.0
# Machines may keep things in different places, each file of them its own.
_PLACES = ("_dir", "_path", "_config", "_file")


class RankMismatch(GH200Error):
    """The ranks of one run were started with different things."""


@dataclass(frozen=True)
class RankReport:
    """What one rank was told, and what it finds."""

    rank: int
    host: str
    values: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.host}"


def check_ranks(
    accelerator: Any, config: Mapping[str, Any], datasets: Sequence[Any] | None, patience: float = PATIENCE
) -> None:
    """Every rank stops with the same error where they differ; nothing is drawn from any generator."""
    if accelerator.num_processes < 2:
        return
    values = dict(_flat("", {**config, "datasets": _by_id(datasets or config.get("datasets") or ())}))
    mine = RankReport(accelerator.process_index, socket.gethostname(), values, _missing(datasets or ()))
    everybody, silent = _hear(mine, accelerator.num_processes, patience)
    found = differences(everybody)
    if silent:
        raise RankMismatch(
            "Not all ranks of this run compare what they were told.",
            why=f"nothing was heard of rank {', '.join(map(str, silent))} for {patience:.0f} s: it was started without any "
            f"GH200 setting, from another version, or it is stuck; {mine.name} has some",
            fix="start every rank with the same config and the same version of the fork",
        )
    if found:
        raise RankMismatch(
            "The ranks of this run were not told the same.",
            why="\n".join(found),
            fix="start every rank with the same config, on machines that all have its directories",
        )


def _hear(mine: RankReport, ranks: int, patience: float) -> tuple[list[RankReport], list[int]]:
    """What each rank was told, and who says nothing: asked where the ranks met, as a collective would wait for hours."""
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=patience)))
    # A process may train several times; each rank counts for itself, and all come to the same number.
    here = f"gh200/ranks/{store.add(f'gh200/ranks/{mine.rank}', 1)}"
    store.set(f"{here}/{mine.rank}", json.dumps(asdict(mine)))
    until, heard, silent = time.monotonic() + patience, [], []
    for rank in range(ranks):
        # Who was waited for in vain was given all the time there is; the rest is either here or silent too.
        if _has(store, f"{here}/{rank}", max(0.1, until - time.monotonic())):
            told = json.loads(store.get(f"{here}/{rank}"))
            heard.append(RankReport(told["rank"], told["host"], told["values"], tuple(told["missing"])))
        else:
            silent.append(rank)
    # The store may live in one of these processes, which must not end before the others have read.
    if store.add(f"{here}/read", 1) == len(heard):
        store.set(f"{here}/all-read", "")
    with contextlib.suppress(RuntimeError):
        _has(store, f"{here}/all-read", _LAST_WORDS)
    return heard, silent


def _has(store: Store, key: str, seconds: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=seconds))
    except DistStoreError:
        return False
    return True


def differences(everybody: Sequence[RankReport]) -> list[str]:
    """One line per key that is not everywhere what the first rank has, and per directory that is not everywhere."""
    first, found = everybody[0], []
    for other in everybody[1:]:
        keys = [key for key in sorted({*first.values, *other.values}) if not key.endswith(_PLACES)]
        for key in keys:
            here, there = (one.values.get(key, "not set") for one in (first, other))
            if here != there:
                found.append(f"{key}: {here} for {first.name}, {there} for {other.name}")
    found += [f"{other.name} has no directory {directory}" for other in everybody for directory in other.missing]
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
    directories = [
        str(entry["instance_data_dir"]) for entry in datasets if isinstance(entry, Mapping) and _is_local(entry)
    ]
    return tuple(directory for directory in directories if not os.path.isdir(os.path.expanduser(directory)))


def _is_local(entry: Mapping[str, Any]) -> bool:
    return entry.get("type", "local") in ("local", "in_memory") and bool(entry.get("instance_data_dir"))
