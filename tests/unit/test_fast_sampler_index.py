"""The index of unseen samples beside the lists it stands for; buckets whose lists are changed under it."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

import pytest

from simpletuner.gh200.start.unseen import BLOCK, CountedList, UnseenIndex, counted


class Lists:
    """What the index must equal: the unseen occurrences in a plain list."""

    def __init__(self, source: list[str], positions: list[int]) -> None:
        self.left = [(position, source[position]) for position in positions]

    def consume(self, path: str) -> None:
        place = next((number for number, (_, image) in enumerate(self.left) if image == path), None)
        if place is not None:
            del self.left[place]

    def paths(self) -> list[str]:
        return ["/data/" + image for _, image in self.left]


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 5])
def test_fast_sampler_index_is_the_list_it_stands_for(count: int) -> None:
    rng = random.Random(count)
    source = [f"{rng.randrange(count)}.png" for _ in range(count)]
    positions = sorted(rng.sample(range(count), k=count - count // 5))
    index, lists = UnseenIndex(source, {}, positions, lambda image: "/data/" + image), Lists(source, positions)
    while lists.left:
        now = index.now()
        assert len(now) == len(lists.left)
        state = random.getstate()
        drawn = random.sample(now, k=min(4, len(now)))
        after = random.getstate()
        random.setstate(state)
        assert drawn == random.sample(lists.paths(), k=min(4, len(lists.left)))
        assert random.getstate() == after
        before = lists.paths() if rng.random() < 0.05 else None
        for path in [*drawn, "/data/none.png", *rng.choices(drawn, k=2)] * rng.choice([1, 1, 30]):
            index.consume(path.removeprefix("/data/"))
            lists.consume(path.removeprefix("/data/"))
        if before is not None:
            assert (list(now), now[0], now[-1], now[1:3]) == (before, before[0], before[-1], before[1:3]), (
                "as it was then"
            )
    assert len(index.now()) == 0 and list(index.now()) == []
    with pytest.raises(IndexError):
        index.now()[0]


def test_a_counted_list_is_a_list_to_everybody_else() -> None:
    images = CountedList(["a", "b"])
    assert images == ["a", "b"] and isinstance(images, list) and json.dumps({"x": images}) == '{"x": ["a", "b"]}'
    for other in (pickle.loads(pickle.dumps(images)), copy.deepcopy(images), copy.copy(images)):
        assert type(other) is list and other == images


CHANGES: list[Any] = [
    lambda images: images.append("c"),
    lambda images: images.extend(["c"]),
    lambda images: images.insert(0, "c"),
    lambda images: images.remove("a"),
    lambda images: images.pop(),
    lambda images: images.clear(),
    lambda images: images.sort(reverse=True),
    lambda images: images.reverse(),
    lambda images: images.__setitem__(0, "c"),
    lambda images: images.__setitem__(slice(0, 1), ["c", "d"]),
    lambda images: images.__delitem__(0),
    lambda images: images.__iadd__(["c"]),
    lambda images: images.__imul__(2),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
@pytest.mark.parametrize("held", [False, True])
def test_every_change_of_a_bucket_is_seen(number: int, held: bool) -> None:
    buckets = {"1.0": ["a", "b"]}
    mine = buckets["1.0"] if held else None
    source = counted(buckets, "1.0")
    assert (type(source) is list) is held, "a list that somebody else can still change stays in its place"
    seen: dict[str, int] = {}
    index = UnseenIndex(source, seen, [0, 1], str)
    assert index.is_current(buckets["1.0"], seen) and not index.is_current(buckets["1.0"], {})
    CHANGES[number](mine if mine is not None else buckets["1.0"])
    assert not index.is_current(buckets["1.0"], seen)


def test_a_bucket_that_was_replaced_or_changed_back_is_current_as_upstream_says() -> None:
    buckets: dict[str, list[str]] = {"1.0": ["a", "b"]}
    seen: dict[str, int] = {}
    index = UnseenIndex(counted(buckets, "1.0"), seen, [0, 1], str)
    buckets["1.0"].append("c")
    buckets["1.0"].pop()
    assert index.is_current(buckets["1.0"], seen)
    buckets["1.0"] = ["a", "b"]
    assert index.is_current(buckets["1.0"], seen)
    buckets["1.0"][0] = "c"
    assert not index.is_current(buckets["1.0"], seen)
    assert counted(buckets, "none") == []
