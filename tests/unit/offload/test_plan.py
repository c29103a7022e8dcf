"""The planner's invariants, over any sizes; and the placements its pages show."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simpletuner.gh200.offload import plan as module
from simpletuner.gh200.offload.cost import Link, Traffic
from simpletuner.gh200.offload.plan import (
    EMA,
    GRADIENTS,
    HBM,
    KINDS,
    OPTIMIZER,
    REMOTE,
    STREAMED,
    WEIGHTS,
    Capacity,
    DoesNotFit,
    Need,
    Plan,
    cheapest_change,
    lower_bound,
    make_plan,
    managed_traffic,
    possible_changes,
)

GB = 10**9
SIZES = st.integers(0, 400 * GB)
NEEDS = st.builds(
    Need,
    weights=SIZES,
    gradients=SIZES,
    optimizer=SIZES,
    ema=SIZES,
    activations=st.integers(0, 100 * GB),
    largest=st.integers(0, GB),
    scratch=st.integers(0, 50 * GB),
    streamable=st.booleans(),
    window=st.integers(1, 16),
    clipped=st.booleans(),
)
CAPACITIES = st.builds(Capacity, hbm=st.integers(GB, 288 * GB), host=st.integers(0, 1000 * GB))


def in_hbm(found: Plan) -> int:
    return sum(found.need.of(kind) for kind, place in found.places.items() if place == HBM)


@given(NEEDS, CAPACITIES)
def test_nothing_relies_on_eviction(need: Need, capacity: Capacity) -> None:
    found = make_plan(need, capacity)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    assert in_hbm(found) + 2 * found.bucket + need.activations <= found.hbm <= capacity.hbm
    assert sum(need.of(kind) for kind in KINDS) - in_hbm(found) == found.host <= capacity.host


@given(NEEDS, CAPACITIES)
def test_every_kind_has_one_place_and_weights_are_in_hbm(need: Need, capacity: Capacity) -> None:
    found = make_plan(need, capacity)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    assert tuple(found.places) == KINDS and found.places[WEIGHTS] == HBM
    assert found.places[OPTIMIZER] in (HBM, STREAMED if need.streamable else REMOTE)
    assert all(found.places[kind] == HBM for kind in KINDS if not need.of(kind))
    assert found.offloads == (found.host > 0)


@given(NEEDS, CAPACITIES)
def test_what_fits_stays_in_hbm_and_costs_nothing(need: Need, capacity: Capacity) -> None:
    whole = sum(need.of(kind) for kind in KINDS) + max(need.activations, need.scratch)
    found = make_plan(need, replace(capacity, hbm=max(capacity.hbm, whole)))
    assert isinstance(found, Plan) and not found.offloads and found.seconds == 0 and found.bucket == 0


@given(NEEDS, CAPACITIES)
def test_no_other_placement_that_fits_is_faster(need: Need, capacity: Capacity) -> None:
    found = make_plan(need, capacity)
    others = [
        module.placed(need, capacity, set(away))
        for count in range(4)
        for away in combinations((GRADIENTS, OPTIMIZER, EMA), count)
        if all(need.of(kind) for kind in away)
    ]
    fitting = [other for other in others if other.hbm <= capacity.hbm and other.host <= capacity.host]
    assert isinstance(found, Plan) == bool(fitting)
    if isinstance(found, Plan):
        assert found.seconds <= min(other.seconds for other in fitting)


@given(NEEDS, CAPACITIES)
def test_the_missing_bytes_are_enough_or_the_other_memory_is_named(need: Need, capacity: Capacity) -> None:
    short = make_plan(need, capacity)
    assume(isinstance(short, DoesNotFit))
    assert isinstance(short, DoesNotFit) and short.missing > 0
    # Buckets grow with HBM, by less than its hundredth.
    key, more = (
        ("hbm", short.missing + short.missing // 100 + 2 * module.LARGEST_BUCKET)
        if short.where == "HBM"
        else (
            "host",
            short.missing,
        )
    )
    again = make_plan(need, replace(capacity, **{key: getattr(capacity, key) + more}))
    assert isinstance(again, Plan) or again.where != short.where


@given(NEEDS, CAPACITIES, st.integers(1, 50 * GB))
def test_more_memory_never_costs_time(need: Need, capacity: Capacity, more: int) -> None:
    found = make_plan(need, capacity)
    assume(isinstance(found, Plan))
    assert isinstance(found, Plan)
    larger = make_plan(need, replace(capacity, host=capacity.host + more))
    assert isinstance(larger, Plan) and larger.seconds <= found.seconds


@given(NEEDS, CAPACITIES)
def test_streamed_kinds_move_the_lower_bound(need: Need, capacity: Capacity) -> None:
    found = make_plan(replace(need, streamable=True), capacity)
    assume(isinstance(found, Plan) and found.places[GRADIENTS] == HBM)
    assert isinstance(found, Plan)
    assert found.traffic.bytes == lower_bound(found)
    assert found.traffic.remote_in == found.traffic.migrated == 0


@given(NEEDS, CAPACITIES, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_a_named_change_makes_the_run_fit(
    need: Need, capacity: Capacity, checkpointing: bool, whole: bool, bf16: bool, lora: bool
) -> None:
    changes = list(possible_changes(need, checkpointing=checkpointing, whole=whole, bf16_state=bf16, lora=lora))
    change = cheapest_change(changes, capacity)
    if change is not None:
        assert isinstance(make_plan(change.need, capacity), Plan)
        before = changes[: changes.index(change)]
        assert all(isinstance(make_plan(other.need, capacity), DoesNotFit) for other in before)


BILLION = 10**9
GH200 = Capacity(hbm=96 * GB, host=480 * GB)


def full(parameters: int, ema: bool = False, **changes: int) -> Need:
    need = Need(weights=4 * parameters, gradients=4 * parameters, optimizer=8 * parameters, activations=10 * GB)
    return replace(need, ema=4 * parameters if ema else 0, largest=GB // 4, **changes)


@pytest.mark.parametrize(
    ("need", "away"),
    [
        (full(2 * BILLION), set()),
        (full(6 * BILLION), {OPTIMIZER}),
        (full(9 * BILLION, ema=True), {OPTIMIZER, EMA}),
        (full(12 * BILLION, ema=True), {GRADIENTS, OPTIMIZER, EMA}),
    ],
)
def test_full_fine_tuning_in_fp32_on_96_gb(need: Need, away: set[str]) -> None:
    found = make_plan(need, GH200)
    assert isinstance(found, Plan)
    assert {kind for kind, place in found.places.items() if place != HBM} == away


def test_weights_beyond_hbm_do_not_fit_and_the_cheapest_change_is_named() -> None:
    need = full(30 * BILLION)
    short = make_plan(need, Capacity(96 * GB, 2000 * GB))
    assert isinstance(short, DoesNotFit) and short.where == "HBM" and short.missing > 20 * GB
    changes = list(possible_changes(need, checkpointing=True, whole=True, bf16_state=False, lora=False))
    change = cheapest_change(changes, Capacity(96 * GB, 2000 * GB))
    assert change is not None and "bf16" in change.text and "mixed_precision" in change.text


def test_too_little_cpu_memory_is_named_as_such() -> None:
    short = make_plan(full(12 * BILLION, ema=True), Capacity(96 * GB, 100 * GB))
    assert isinstance(short, DoesNotFit) and short.where == "CPU memory" and short.missing > 0


def test_all_and_state_migrate_where_they_exceed_hbm_and_a_plan_does_not() -> None:
    need = full(12 * BILLION, ema=True, scratch=48 * GB)
    found = make_plan(need, GH200)
    assert isinstance(found, Plan) and found.traffic.migrated == 0
    state = managed_traffic(need, GH200.hbm, everything=False)
    # Counted for a model of this size: 499 GB in and as many out.
    assert 400 * GB < state.migrated < 600 * GB
    assert state.seconds(GH200.link) > 4 * found.seconds
    assert managed_traffic(full(1 * BILLION), GH200.hbm, everything=True) == Traffic()


def test_seconds_at_the_published_speeds() -> None:
    found = make_plan(full(9 * BILLION), GH200)
    assert isinstance(found, Plan)
    # 72 GB in and out at once: the slower direction decides.
    assert found.seconds == pytest.approx(72 / 297)
    slow = make_plan(full(9 * BILLION), replace(GH200, link=Link(37.5e9, 29.7e9, "measured")))
    assert isinstance(slow, Plan) and slow.seconds == pytest.approx(10 * found.seconds)


def test_the_description_has_places_and_seconds() -> None:
    found = make_plan(full(6 * BILLION), GH200)
    assert isinstance(found, Plan)
    assert all(kind in found.describe() for kind in KINDS)
    assert "estimated" in found.describe() and "s per optimizer step" in found.describe()
