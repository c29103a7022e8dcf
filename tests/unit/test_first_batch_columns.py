"""Metadata that is read entry by entry: to everybody the dict that upstream's JSON gives."""

from __future__ import annotations

import copy
import json
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from simpletuner.gh200.start.columns import Columns, columns_of
from simpletuner.gh200.start.shared import has_none, metadata_from
from simpletuner.gh200.start.text import AT_ONCE

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
    return made | {"odd\0name\ud800": {"only": 1}, "/data/é \\.jpg": {"boxes": [[0.5, 1e-9], []], "of": {"a": {}}}}


def columns(metadata: dict[str, Any]) -> Columns:
    found = columns_of(json.dumps(metadata).encode(), {})
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
def test_first_batch_columns_are_a_dict_to_whoever_takes_all(number: int) -> None:
    found = columns(entries())
    assert WHOLE[number](found) == WHOLE[number](entries())
    # A dict of somebody else's that is filled from it has entries, not what stands for them.
    other: dict[str, Any] = {}
    other.update(columns(entries()))
    assert other == entries()


def test_first_batch_columns_are_equal_to_what_they_hold() -> None:
    assert columns(entries()) == entries()
    assert entries() == columns(entries()) == columns(entries())
    assert columns(entries()) != entries(39)
    assert columns(entries()) != {**entries(), "/data/000.jpg": {}}


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
def test_first_batch_columns_change_as_a_dict_does(seed: int) -> None:
    found, plain = columns(entries()), entries()
    names, draws = [*plain, "/data/new.jpg"], random.Random(seed)
    for number in range(200):
        path = draws.choice(names)
        seeds = f"{seed}-{number}"
        assert step(random.Random(seeds), found, path) == step(random.Random(seeds), plain, path)
    assert json.dumps(found) == json.dumps(plain)


def test_first_batch_columns_give_all_threads_one_entry() -> None:
    found = columns(entries(400))
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


PLAIN = b'{"/a.jpg": {"x": [1, 2], "y": "z"}, "/b.jpg": {"x": [1, 2]}}'


def test_first_batch_columns_keep_one_text_for_what_is_equal() -> None:
    made = columns(entries(4000))
    rows = list(dict.values(made))
    assert len(rows) == 4002 and len(set(map(id, rows))) == 9, "seven sizes, and two odd ones"
    one, other = made["/data/000.jpg"], made["/data/007.jpg"]
    assert one == other and one is not other and one["original_size"] is not other["original_size"]
    strings = {"/a.jpg": "".join(["/a", ".jpg"])}
    assert next(iter(columns_of(PLAIN, strings) or [])) is strings["/a.jpg"]


ODD = [
    *(b"", b"{}", b"[]", b"null", b"5", b'"a"', b"\xff", b'{"a": 1}', b'{"a": {}}', b'{"a": null, "b": {"c": 1}}'),
    *(b'{"a": [1], "b": {"c": 1}}', b'{"a": {"c": 1}, "b": 5, "d": {"c": 1}}', b'{"a": {"c": 1}, "b": {}}'),
    *(b'{"a": {"c": {"d": 1}, "e": 2}}', b'{"a": {"c": [{"d": 1}, {"e": 2}]}, "b": {"c": 1}}'),
    *(PLAIN + b" ", PLAIN[:-1], PLAIN[:-2], PLAIN[1:], PLAIN + b"}", PLAIN.replace(b", ", b","), PLAIN * 2),
    *(PLAIN.replace(b"2]", b"2"), PLAIN.replace(b'"z"', b'"}, "'), PLAIN.replace(b"/b.jpg", b"/a.jpg")),
    *(PLAIN.replace(b"/b", b"}, /b"), PLAIN.replace(b"/b.jpg", b"/b}, "), PLAIN.replace(b"/b", b'\\": {\\"')),
    *(PLAIN.replace(b"/b", b"\n"), PLAIN.replace(b"/b", "é".encode()), PLAIN.replace(b"/b", b"\\u00e9\\ud83d\\ude00")),
    *(PLAIN.replace(b"[1, 2]", b"NaN"), PLAIN.replace(b'"x"', b'"x\\u00e9"'), PLAIN.replace(b'"y": "z"', b'"x": 3')),
    *(
        PLAIN.replace(b'"z"', b'"a, \\"b"'),
        PLAIN.replace(b'"z"', b'", "'),
        PLAIN.replace(b'"z"', b'{"k": [1, {"m": 2}]}'),
    ),
]


def parsed(content: bytes, read: Callable[[bytes], Any]) -> Any:
    try:
        return json.dumps(read(content))
    except (ValueError, UnicodeDecodeError) as error:
        return type(error)


@pytest.mark.parametrize("content", ODD)
def test_first_batch_columns_of_anything_are_what_json_makes_of_it(content: bytes) -> None:
    assert parsed(content, lambda given: metadata_from(given, {})) == parsed(content, json.loads)


@pytest.mark.parametrize("seed", range(10))
def test_first_batch_columns_of_spoilt_files_are_what_json_makes_of_them(seed: int) -> None:
    draw, content = random.Random(seed), json.dumps(entries(6)).encode()
    for _ in range(300):
        spoilt = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 5])):
            at = draw.randrange(len(spoilt))
            spoilt[at : at + draw.randrange(3)] = draw.choice(
                [b"", b'"', b"{", b"}", b"]", b", ", b'": {"', b'}, "', b"\\"]
            )
        assert parsed(bytes(spoilt), lambda given: metadata_from(given, {})) == parsed(bytes(spoilt), json.loads)


def test_first_batch_columns_longer_than_a_piece_are_whole() -> None:
    many = {f"/data/{number:06}.jpg": ENTRY | {"number": number} for number in range(3 * AT_ONCE // 200)}
    assert json.dumps(columns(many)) == json.dumps(many)


def test_first_batch_columns_know_whether_any_picture_has_boxes() -> None:
    found = columns(entries())
    assert found.has_none("bbox_entities") and not found.has_none("boxes") and not found.has_none("crop_coordinates")
    found["/data/new.jpg"] = {"bbox_entities": []}
    assert not found.has_none("bbox_entities")
    assert has_none({"a": {"b": 1}}, "c") and not has_none({"a": {"c": 1}}, "c") and not has_none(None, "c")
