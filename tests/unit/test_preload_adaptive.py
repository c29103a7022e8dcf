"""Adaptive prefetch as a rule: traces in, depths out; and off it changes nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gh200_lab.memory_run import begin_memory_run, held
from simpletuner.gh200.caches.adaptive import WINDOW, AdaptiveDepth, BatchWatch, Decision, Observation, decide
from simpletuner.gh200.settings.cache_options import CacheOptions
from tests.unit.unified_lab import unified

LATE = Observation(resident=False, waited=0.3, step=1.0)
IN_TIME = Observation(resident=True, waited=0.0, step=1.0)
SLOW_DISK = Observation(resident=True, waited=0.6, step=1.0)
QUIET = Observation(resident=False, waited=0.0, step=1.0)


def depths(start: int, bound: int, trace: list[Observation]) -> list[int]:
    adaptive = AdaptiveDepth(start, bound)
    seen = []
    for one in trace:
        adaptive.observe(one)
        seen.append(adaptive.depth)
    return seen[WINDOW - 1 :: WINDOW]


def test_preload_adaptive_prefetch_follows_invented_traces() -> None:
    assert depths(0, 3, [LATE] * WINDOW * 5) == [1, 2, 3, 3, 3]
    assert depths(2, 3, [IN_TIME] * WINDOW * 4) == [1, 0, 0, 0]
    assert depths(2, 3, [SLOW_DISK] * WINDOW * 3) == [1, 0, 0], "moving earlier does not make a disk faster"
    assert depths(1, 3, [QUIET] * WINDOW * 3) == [1, 1, 1]
    assert depths(0, 2, [*[LATE] * WINDOW, *[IN_TIME] * WINDOW, *[LATE] * WINDOW * 2]) == [1, 0, 1, 2]


def test_preload_adaptive_prefetch_says_why() -> None:
    decision = decide(1, [LATE] * 10, 2)
    assert decision.depth == 2 and "wait for data that is not there: 0% of 10 batches" in decision.reason
    assert "the bound" in decide(2, [LATE] * 10, 2).reason
    assert decide(1, [LATE] * 3, 2) == Decision(1, "3 batches are too few to judge")
    adaptive = AdaptiveDepth(0, 1)
    for _ in range(2 * WINDOW):
        adaptive.observe(LATE)
    assert adaptive.report()["decisions"] == {"deeper": 1, "kept": 1} and "wait" in adaptive.report()["reason"]


SEEN = st.builds(Observation, resident=st.booleans(), waited=st.floats(0, 1e6), step=st.floats(0, 1e6))


@given(depth=st.integers(-3, 9), seen=st.lists(SEEN, max_size=40), bound=st.integers(0, 4))
def test_preload_adaptive_prefetch_stays_within_its_bound(depth: int, seen: list[Observation], bound: int) -> None:
    decision = decide(depth, seen, bound)
    assert 0 <= decision.depth <= bound and decision.reason and decision == decide(depth, list(seen), bound)
    assert abs(decision.depth - max(0, min(depth, bound))) <= 1


def test_preload_adaptive_prefetch_is_off_unless_asked_for() -> None:
    begin_memory_run(unified())
    assert held().watch is None and "adaptive_prefetch" not in held().report()["caches"]
    begin_memory_run(unified(adaptive_prefetch=True, prefetch=False))
    assert held().watch is None
    begin_memory_run(unified(adaptive_prefetch=True))
    watch = held().watch
    assert isinstance(watch, BatchWatch) and watch.moves
    for number in range(WINDOW + 1):
        watch.entry(resident=True)
        watch.micro_batch_begins(0.0)
        assert watch.moves == (number < WINDOW)
    assert held().report()["caches"]["adaptive_prefetch"]["depth"] == 0
    begin_memory_run(CacheOptions())
