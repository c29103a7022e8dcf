"""Metadata that is read entry by entry: to everybody the dict that upstream's JSON gives."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.start.columns import Columns, columns_of, keep_columns

pytestmark = pytest.mark.unit

ENTRY = {
    "original_size": [640, 480],
    "crop_coordinates": [0, 12],
    "aspect_ratio": 1.33,
    "name": "é\ud800\0",
    "none": None,
}


def entries(count: int = 40) -> dict[str, Any]:
    made = {f"/data/{number:03}.jpg": ENTRY | {"target_size": [number % 7, 1]} for number in range(count)}
    return made | {"odd\0name\ud800": {}, "/data/nested.jpg": {"bbox_entities": [{"label": "a", "bbox": [0.5, 1e-9]}]}}


def columns(folder: Path, metadata: dict[str, Any]) -> Columns:
    backend = Namespace(metadata_file=folder / "metadata.json")
    content = json.dumps(metadata).encode()
    keep_columns(backend, content, json.loads(content))
    found = columns_of(backend, content, {})
    assert found is not None
    return found


WHOLE: list[Callable[[dict[str, Any]], Any]] = [
    json.dumps,
    lambda found: json.dumps(found, indent=2),
    lambda found: json.dumps({"inside": [found]}),
    dict,
    lambda found: {**found},
    lambda found: dict(sorted(found.items())),
    lambda found: list(found.values()),
    list,
    len,
    bool,
    repr,
    copy.copy,
    copy.deepcopy,
    lambda found: pickle.loads(pickle.dumps(found)),
    lambda found: found.copy(),
    lambda found: found | {"more": {}},
    lambda found: {"less": {}} | found,
    lambda found: {"old": {}}.update(found),
    lambda found: list(reversed(found)),
    lambda found: found.popitem(),
    lambda found: isinstance(found, dict),
    lambda found: next(iter(found.values())),
]


@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_first_batch_columns_are_a_dict_to_whoever_takes_all(tmp_path: Path, number: int) -> None:
    found = columns(tmp_path, entries())
    assert WHOLE[number](found) == WHOLE[number](entries())
    # A dict of somebody else's that is filled from it has entries, not what stands for them.
    other: dict[str, Any] = {}
    other.update(columns(tmp_path, entries()))
    assert other == entries()


def test_first_batch_columns_are_equal_to_what_they_hold(tmp_path: Path) -> None:
    assert columns(tmp_path, entries()) == entries()
    assert entries() == columns(tmp_path, entries()) == columns(tmp_path, entries())
    assert columns(tmp_path, entries()) != entries(39)
    assert columns(tmp_path, entries()) != {**entries(), "/data/000.jpg": {}}


def step(draw: random.Random, metadata: dict[str, Any], path: str) -> Any:
    """One of the things upstream may do with its metadata."""
    kind = draw.choice(["get", "item", "in", "set", "delete", "pop", "default", "write", "update", "number", "absent"])
    if kind == "set":
        metadata[path] = {"new": 1}
    elif kind == "delete" and path in metadata:
        del metadata[path]
    elif kind == "pop":
        return metadata.pop(path, "nothing")
    elif kind == "default":
        return metadata.setdefault(path, {"default": 2})
    elif kind == "write" and isinstance(metadata.get(path), dict):
        metadata[path]["data_backend_id"] = "pictures"
    elif kind == "update":
        metadata.update({path: {"updated": 3}}, other={})
    elif kind == "number" and draw.random() < 0.05:
        metadata[path] = 5
    elif kind == "item":
        return metadata[path] if path in list(metadata) else None
    elif kind == "absent":
        return metadata.get(path + "?", 7)
    return metadata.get(path), path in metadata, len(metadata), list(metadata) if draw.random() < 0.1 else None


@pytest.mark.parametrize("seed", range(20))
def test_first_batch_columns_change_as_a_dict_does(tmp_path: Path, seed: int) -> None:
    found, plain = columns(tmp_path, entries()), entries()
    names, draws = [*plain, "/data/new.jpg"], random.Random(seed)
    for number in range(200):
        path = draws.choice(names)
        seeds = f"{seed}-{number}"
        assert step(random.Random(seeds), found, path) == step(random.Random(seeds), plain, path)
    assert json.dumps(found) == json.dumps(plain)


def test_first_batch_columns_give_all_threads_one_entry(tmp_path: Path) -> None:
    found = columns(tmp_path, entries(400))
    given: list[list[int]] = []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        given.append([id(found[path]) for path in found])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 8 and all(one == given[0] for one in given)


def test_first_batch_columns_belong_to_the_bytes_of_the_json(tmp_path: Path) -> None:
    columns(tmp_path, entries())
    backend = Namespace(metadata_file=tmp_path / "metadata.json")
    content = json.dumps(entries()).encode()
    assert columns_of(backend, content, {}) is not None
    assert columns_of(backend, content + b" ", {}) is None
    [file] = tmp_path.glob("*.gh200")
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:40], b"", whole + b"\0", whole[:90] + b"\xff" * 9 + whole[99:]):
        file.write_bytes(damaged)
        assert columns_of(backend, content, {}) is None
    file.write_bytes(whole)
    assert columns_of(backend, content, {}) == entries()


def test_first_batch_columns_outlive_the_name_of_their_file(tmp_path: Path) -> None:
    found = columns(tmp_path, entries())
    [file] = tmp_path.glob("*.gh200")
    file.unlink()
    assert found["/data/003.jpg"] == entries()["/data/003.jpg"]
    assert found == entries()


def test_first_batch_columns_that_were_overwritten_say_so(tmp_path: Path) -> None:
    found = columns(tmp_path, entries())
    [file] = tmp_path.glob("*.gh200")
    os.truncate(file, 10)
    with pytest.raises(GH200Error, match="cannot be read from"):
        found["/data/003.jpg"]


@pytest.mark.parametrize("odd", [{}, {"a": 1}, {"a": {}, "b": None}, {"a": [1]}])
def test_first_batch_columns_are_for_entries_that_are_dicts(tmp_path: Path, odd: dict[str, Any]) -> None:
    keep_columns(Namespace(metadata_file=tmp_path / "metadata.json"), b"", odd)
    assert not list(tmp_path.iterdir())
