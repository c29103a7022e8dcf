"""Adaptive prefetch: it goes on where it helps, pauses where it does not, and never costs more than none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gh200_lab.memory_run import begin_memory_run, tensor_caches
from simpletuner.gh200.backends.tensors.batch_prefetch import WINDOW, AdaptivePrefetch
from simpletuner.gh200.config.cache_options import CacheOptions
from tests.support.fake_cache_backend import unified


def test_adaptive_prefetch_goes_on_while_batches_are_in_time() -> None:
    adaptive = AdaptivePrefetch()
    for _ in range(20 * WINDOW):
        adaptive.batch(late=False)
        assert adaptive.moves
    assert adaptive.report() == {"moves": True, "batches": 20 * WINDOW, "late": 0, "pauses": 0}


def test_adaptive_prefetch_pauses_where_batches_are_late_and_tries_again() -> None:
    adaptive = AdaptivePrefetch()
    seen = []
    for _ in range(6 * WINDOW):
        seen.append(adaptive.moves)
        adaptive.batch(late=adaptive.moves)
    assert seen == ([True] * WINDOW + [False] * WINDOW) * 3 and adaptive.report()["pauses"] == 3


def waited(step: float, move: float, faults: float, batches: int, adaptive: AdaptivePrefetch | None) -> float:
    """Seconds steps wait for pages: those that were moved cost what is left of their way, the others their faults."""
    now = free = total = 0.0
    for _ in range(batches):
        late = adaptive is not None and adaptive.moves and free > now
        if adaptive is not None and adaptive.moves and not late:
            free = now + move
            wait = min(faults, max(0.0, free - (now + step)))
        else:
            wait = faults
        if adaptive is not None:
            adaptive.batch(late=late)
        total += wait
        now += step + wait
    return total


TIMES = st.floats(0.0, 10.0)


@given(step=TIMES, move=TIMES, faults=TIMES)
def test_adaptive_prefetch_never_ends_slower_than_none(step: float, move: float, faults: float) -> None:
    off = waited(step, move, faults, 10 * WINDOW, None)
    assert waited(step, move, faults, 10 * WINDOW, AdaptivePrefetch()) <= off


def test_adaptive_prefetch_is_off_unless_asked_for() -> None:
    begin_memory_run(unified())
    assert tensor_caches().adaptive is None and "adaptive_prefetch" not in tensor_caches().report()["caches"]
    begin_memory_run(unified(adaptive_prefetch=True, prefetch=False))
    assert tensor_caches().adaptive is None
    begin_memory_run(unified(adaptive_prefetch=True))
    assert tensor_caches().report()["caches"]["adaptive_prefetch"]["moves"] is True
    begin_memory_run(CacheOptions())
