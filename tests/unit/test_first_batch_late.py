"""What is filled when somebody looks into it is to everybody the dict, the list or the file that it stands for."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200.start import native
from simpletuner.gh200.start.columns import columns_from, columns_of
from simpletuner.gh200.start.late import LateDict, LateList
from simpletuner.gh200.start.record import digest_of, stats_of
from simpletuner.gh200.start.text import AT_ONCE, PackedPaths, packed, packed_from_json

pytestmark = pytest.mark.unit

ITEMS = {f"/data/{number}.jpg": number for number in range(6)}
# What needs no look inside, or is made of what does.
UNTOUCHED = {
    *("__class__", "__class_getitem__", "__delattr__", "__dir__", "__doc__", "__format__", "__getattribute__"),
    *("__getstate__", "__hash__", "__init__", "__init_subclass__", "__new__", "__reduce__", "__setattr__"),
    *("__sizeof__", "__str__", "__subclasshook__", "fromkeys"),
}


def late_dict(count: int | None = None) -> LateDict:
    return LateDict(ITEMS.items, count)


def late_list(count: int | None = None) -> LateList:
    return LateList(lambda: iter(ITEMS), count)


@pytest.mark.parametrize("kind, late", [(dict, LateDict), (list, LateList)])
def test_first_batch_late_has_an_answer_for_all_that_its_kind_is_asked(kind: type, late: type) -> None:
    order = {"__lt__", "__le__", "__gt__", "__ge__"} if kind is dict else set()
    own = {name for part in late.__mro__[: late.__mro__.index(kind)] for name in vars(part)}
    assert set(dir(kind)) - own <= UNTOUCHED | order


OF_BOTH: list[Callable[[Any], Any]] = [
    *(list, sorted, set, tuple, len, bool, repr, str, json.dumps, copy.copy, copy.deepcopy, max, dict.fromkeys),
    lambda found: json.dumps({"inside": [found]}, indent=2),
    lambda found: pickle.loads(pickle.dumps(found)),
    lambda found: [*found],
    lambda found: "".join(found),
    lambda found: list(reversed(found)),
    lambda found: "/data/3.jpg" in found and "/data/9.jpg" not in found,
    lambda found: (found.clear(), list(found), len(found), not found)[1:],
    lambda found: found.copy(),
    lambda found: list(zip(found, range(9), strict=False)),
    lambda found: f"{found}",
]
OF_DICTS: list[Callable[[Any], Any]] = [
    dict,
    lambda found: {**found},
    lambda found: found["/data/2.jpg"] + found.get("/data/1.jpg"),
    lambda found: (found.pop("/data/2.jpg"), found.popitem(), dict(found)),
    lambda found: (found.update(a=1), found.setdefault("b", 2), found.setdefault("/data/0.jpg", 3), dict(found)),
    lambda found: (found.__setitem__("a", 1), found.__delitem__("/data/4.jpg"), list(found.items())),
    lambda found: (found | {"a": 1}, {"a": 1} | found, list(found.keys()), list(found.values())),
    lambda found: (lambda other: (other.update(found), other))({"a": 1}),
    lambda found: (lambda other: other | found)(late_dict()),
    lambda found: (found == ITEMS, ITEMS == found, found != {}, found == late_dict(), {} == found),  # noqa: SIM300
    lambda found: found.keys() - {"/data/1.jpg"},
]
OF_LISTS: list[Callable[[Any], Any]] = [
    lambda found: (found[0], found[-1], found[1:3], found.index("/data/2.jpg"), found.count("/data/2.jpg")),
    lambda found: (found.append("a"), found.extend("bc"), found.insert(0, "d"), found.remove("a"), list(found)),
    lambda found: (found.pop(), found.sort(), found.reverse(), list(found)),
    lambda found: (found.__setitem__(0, "a"), found.__delitem__(1), list(found)),
    lambda found: (found + ["a"], ["a"] + found, found * 2, 2 * found),  # noqa: RUF005
    lambda found: (lambda other: (other.extend(found), other.__iadd__(found), other))(["a"]),
    lambda found: (lambda other: (other.__setitem__(slice(0, 1), found), other))(["a", "b"]),
    lambda found: (found == list(ITEMS), list(ITEMS) == found, found != [], ["a"] > found),  # noqa: SIM300
    lambda found: found == late_list() and found + late_list(),
]


@pytest.mark.parametrize("count", [None, len(ITEMS)])
@pytest.mark.parametrize("number", range(len(OF_BOTH) + len(OF_DICTS)))
def test_first_batch_late_dict_is_a_dict(number: int, count: int | None) -> None:
    ask = [*OF_BOTH, *OF_DICTS][number]
    assert ask(late_dict(count)) == ask(dict(ITEMS))


@pytest.mark.parametrize("count", [None, len(ITEMS)])
@pytest.mark.parametrize("number", range(len(OF_BOTH) + len(OF_LISTS)))
def test_first_batch_late_list_is_a_list(number: int, count: int | None) -> None:
    ask = [*OF_BOTH, *OF_LISTS][number]
    assert ask(late_list(count)) == ask(list(ITEMS))


def test_first_batch_late_is_filled_once_and_for_all_threads() -> None:
    calls: list[int] = []
    ready, seen = threading.Barrier(8), []

    def fill() -> Any:
        calls.append(1)
        return ((str(number), number) for number in range(20_000))

    found = LateDict(fill, 20_000)
    assert len(found) == 20_000 and found and found.pending and not calls

    def ask() -> None:
        ready.wait()
        seen.append(found.get("19999"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [19_999] * 8 and len(calls) == 1 and not found.pending


ODD = ["a.jpg", ".jpg", "..x", "noext", "a.b.jpg", "...", "a.", " ", 'q"uote.jpg', "back\\slash.jpg", "line\nbreak.png"]
ODD += ["é.webp", "日本.jpg", os.fsdecode(b"\xff\xfe.jpg"), "\x7f.jpg", ".hidden.jpg", "a..jpg", "x" * 250 + ".jpg"]


def of(folders: dict[str, list[str]]) -> tuple[PackedPaths, list[str]]:
    paths = PackedPaths()
    for folder, names in folders.items():
        paths.add(folder, packed(names))
    return paths, [folder + name for folder, names in folders.items() for name in names]


@pytest.mark.parametrize("seed", range(10))
def test_first_batch_packed_paths_are_the_paths(seed: int) -> None:
    draw = random.Random(seed)
    many = [f"{number:07}.jpg" for number in range(draw.choice([1, 40, AT_ONCE // 12, AT_ONCE // 4]))]
    folders = {"/one/": ODD[: draw.randrange(len(ODD))], "/none/": [], "/ü\\/": many, "/last/": draw.sample(ODD, 3)}
    found, paths = of({folder: folders[folder] for folder in draw.sample(list(folders), draw.randrange(1, 5))})
    assert list(found) == paths and found.count == len(paths)
    assert found.digest == digest_of(paths) == sha256("\0".join(paths).encode(errors="surrogateescape")).digest()
    text = b"".join(found.joined(b'": false, "'))
    assert text == '": false, "'.join(paths).encode(errors="surrogateescape")
    written = '{"' + text.decode("ascii") + '": false}' if found.plain() and paths else None
    assert written in (None, json.dumps(dict.fromkeys(paths, False)))
    assert found.plain() == all(json.dumps(path) == f'"{path}"' for path in paths)
    again = packed_from_json(json.dumps(dict.fromkeys(paths, False)))
    assert again == (packed(paths) if found.plain() and paths else None)


ODD_JSON = [
    "",
    "{}",
    "[]",
    "null",
    '{"a": true}',
    '{"a": false, "b": true}',
    '{"a":false}',
    '{"a": false} ',
    '{"a": 0}',
]
ODD_JSON += [
    '{"\\u0000": false}',
    '{"a\0b": false}',
    '{"a\n": false}',
    '{"é": false}',
    '{"a": false, "b": {}}',
    '{"": false}',
]
ODD_JSON += ['{"a": false, "b', '": false}', '{": false}', '{"a": [{"b": false, "c": false}]}', '{"a": {"b": false}']


@pytest.mark.parametrize("text", ODD_JSON)
def test_first_batch_what_is_not_plainly_a_listing_is_left_to_json(text: str) -> None:
    assert packed_from_json(text) is None


def caption_place(picture: str) -> tuple[str, str]:
    """As upstream forms it: `os.path.splitext` of the picture, and the suffix."""
    folder, name = os.path.split(os.path.splitext(picture)[0] + ".txt")
    return folder + "/", name


def test_first_batch_caption_stats_are_those_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "WORTH_IT", 1)
    folders = {os.path.join(tmp_path, folder, ""): ODD for folder in ("a", "b.c", "ü")} | {"/nowhere/": []}
    names = [name for name in ODD if name not in (".", "..")]
    for folder in list(folders)[:3]:
        os.mkdir(folder)
        for number, name in enumerate(names):
            caption = "".join(caption_place(folder + name))
            Path(caption).write_text("x" * number)
            os.utime(caption, ns=(1, 10**18 + 7 * number))
    found, paths = of(folders)
    told = native.caption_stats(found)
    assert told is not None and list(told) == list(stats_of(map(caption_place, paths)))
    assert native.caption_stats(of({"": paths})[0]) == told
    os.unlink("".join(caption_place(paths[-1])))
    with pytest.raises(OSError):
        native.caption_stats(found)
    os.symlink("nowhere", "".join(caption_place(paths[-1])))
    with pytest.raises(OSError):
        native.caption_stats(found)


def test_first_batch_caption_stats_are_left_to_python_where_they_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = of({"/nowhere/": ["a.jpg"]})
    assert native.caption_stats(found) is None
    monkeypatch.setattr(native, "WORTH_IT", 1)
    monkeypatch.setattr(native, "_compiled", lambda: 1 / 0)
    assert native.caption_stats(found) is None


@pytest.mark.parametrize("seed", range(10))
def test_first_batch_columns_that_were_kept_are_the_same_in_the_same_order(seed: int) -> None:
    draw = random.Random(seed)
    metadata = {f"/data/{number}.jpg": {"size": [number % 5, 1], "of": str(number % 3)} for number in range(50)}
    metadata = dict(draw.sample(list(metadata.items()), 50)) | {os.fsdecode(b"/odd \xff"): {"a": None}}
    made = columns_of(json.dumps(metadata).encode(), {})
    assert made is not None
    kept = made.kept()
    assert kept is not None
    again = columns_from(kept)
    assert all(type(value) is int for value in dict.values(again))
    path = draw.choice(list(metadata))
    assert again[path] == metadata[path] and again.has_none("boxes") and not again.has_none("size")
    assert json.dumps(again) == json.dumps(metadata)
    assert made["/data/1.jpg"] and made.kept() is None, "somebody may have written into what was read"


@pytest.mark.parametrize("path", ["a\0b", "", "\ud800"])
def test_first_batch_columns_with_paths_that_no_file_has_are_not_kept(path: str) -> None:
    for metadata in ({path: {"a": 1}}, {path: {"a": 1}, "/b.jpg": {"a": 1}}):
        made = columns_of(json.dumps(metadata).encode(), {})
        assert made is not None
        kept = made.kept()
        assert kept is None or columns_from(kept) == metadata
