"""Whether all ranks of a run have the same config and datasets, compared before anything is loaded."""

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

# Between the first rank and the last: all of them have just made their process group.
TIMEOUT_SECONDS = 120.0
_READ_SECONDS = 10.0
# Paths may differ between machines.
_PLACES = ("_dir", "_path", "_config", "_file")


class RankMismatch(GH200Error):
    """The ranks of one run were started with different things."""


@dataclass(frozen=True)
class RankReport:
    """The config of one rank, and the directories it does not find."""

    rank: int
    host: str
    values: Mapping[str, str]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"rank {self.rank} on {self.host}"


def check_ranks(
    accelerator: Any, config: Mapping[str, Any], datasets: Sequence[Any] | None, timeout: float = TIMEOUT_SECONDS
) -> None:
    """Every rank stops with the same error where they differ; nothing is drawn from any generator."""
    if accelerator.num_processes < 2:
        return
    values = dict(_flat("", {**config, "datasets": _by_id(datasets or config.get("datasets") or ())}))
    mine = RankReport(accelerator.process_index, socket.gethostname(), values, _missing(datasets or ()))
    everybody, silent = _exchange(mine, accelerator.num_processes, timeout)
    found = differences(everybody)
    if silent:
        raise RankMismatch(
            "Not all ranks of this run compare their configs.",
            why=f"no message from rank {', '.join(map(str, silent))} for {timeout:.0f} s: it was started without any "
            f"GH200 setting, from another version, or it is stuck; {mine.name} has some",
            fix="start every rank with the same config and the same version of the fork",
        )
    if found:
        raise RankMismatch(
            "The ranks of this run have different configs.",
            why="\n".join(found),
            fix="start every rank with the same config, on machines that all have its directories",
        )


def _exchange(mine: RankReport, ranks: int, timeout: float) -> tuple[list[RankReport], list[int]]:
    """The reports of the ranks, and the ranks without one; through a store, as a collective would wait for hours."""
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=timeout)))
    # A process may train several times; each rank counts for itself, and all come to the same number.
    here = f"gh200/ranks/{store.add(f'gh200/ranks/{mine.rank}', 1)}"
    store.set(f"{here}/{mine.rank}", json.dumps(asdict(mine)))
    until, heard, silent = time.monotonic() + timeout, [], []
    for rank in range(ranks):
        # After one timeout the others get no further time.
        if _has(store, f"{here}/{rank}", max(0.1, until - time.monotonic())):
            report = json.loads(store.get(f"{here}/{rank}"))
            heard.append(RankReport(**report | {"missing": tuple(report["missing"])}))
        else:
            silent.append(rank)
    # The store may live in one of these processes, which must not end before the others have read.
    if store.add(f"{here}/read", 1) == len(heard):
        store.set(f"{here}/all-read", "")
    with contextlib.suppress(RuntimeError):
        _has(store, f"{here}/all-read", _READ_SECONDS)
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
