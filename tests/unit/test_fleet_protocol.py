"""The meeting of ranks, driven through every order of its steps: three processes, each of which may die at any point.

The processes run on the table the code runs on; locks, words and records are a model of the kernel's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simpletuner.gh200.datasets.protocol import FIRST, LAST, TABLE, WITH_CLAIM, Came, Step, Word, remembered
from simpletuner.gh200.datasets.rendezvous import Meeting

pytestmark = pytest.mark.unit
DOCUMENT = Path(__file__).parents[2] / "docs/IN_MEMORY.md"


@dataclass(frozen=True)
class Rank:
    step: Step = FIRST
    alive: bool = True
    run: int = 0
    claim: str = ""
    word: bool = False
    # What its record says, and of which arena; a watcher can read it after the owner's death.
    says: Word | None = None
    arena: int | None = None
    watched: int | None = None
    found: int | None = None


World = tuple[Rank, ...]


def living(world: World) -> list[int]:
    return [number for number, rank in enumerate(world) if rank.alive]


def look(world: World, me: int) -> Iterator[tuple[Came, World]]:
    ready = [other for other in living(world) if other != me and world[other].word and world[other].says is Word.HERE]
    for other in ready:
        yield Came.READY, changed(world, me, found=other)
    if not ready:
        yield Came.NOBODY, world


def ask(world: World, me: int) -> Iterator[tuple[Came, World]]:
    held = any(world[other].claim for other in living(world) if other != me)
    yield (Came.BUSY if held else Came.FREE), world


def remember(world: World, me: int) -> Iterator[tuple[Came, World]]:
    watched = world[me].watched
    record = world[watched] if watched is not None else None
    same = record is not None and record.run == world[me].run
    for my_turn in (True, False):
        yield remembered(record.says if record else None, same, same, my_turn), world


def watch(world: World, me: int) -> Iterator[tuple[Came, World]]:
    holders = [other for other in living(world) if other != me and world[other].claim]
    for other in holders:
        after = changed(world, me, watched=other) if world[other].word else world
        yield Came.MOVING, after
        yield Came.STALLED, after
    if not holders:
        yield Came.MOVING, world


def claim(shared: bool) -> Callable[[World, int], Iterator[tuple[Came, World]]]:
    def perform(world: World, me: int) -> Iterator[tuple[Came, World]]:
        others = {world[other].claim for other in living(world) if other != me} - {""}
        refused = others - {"shared"} if shared else others
        yield (
            (Came.REFUSED, world) if refused else (Came.GOT, changed(world, me, claim="shared" if shared else "alone"))
        )

    return perform


def fill(world: World, me: int) -> Iterator[tuple[Came, World]]:
    arenas = {rank.arena for rank in world} - {None}
    yield Came.DONE, changed(world, me, arena=10 * (len(arenas) + 1) + me)
    yield Came.FAILED, world


def attach(world: World, me: int) -> Iterator[tuple[Came, World]]:
    found = world[me].found
    assert found is not None
    other = world[found]
    if other.alive and other.arena is not None:
        yield Came.DONE, changed(world, me, arena=other.arena)
        yield Came.FAILED, world
    else:
        yield Came.GONE, world


def does(**what: object) -> Callable[[World, int], Iterator[tuple[Came, World]]]:
    def perform(world: World, me: int) -> Iterator[tuple[Came, World]]:
        yield Came.DONE, changed(world, me, **what)

    return perform


PERFORM: dict[Step, Callable[[World, int], Iterator[tuple[Came, World]]]] = {
    Step.LOOK: look,
    Step.ASK: ask,
    Step.REMEMBER: remember,
    Step.WATCH: watch,
    Step.PAUSE: does(),
    Step.CLAIM: claim(shared=False),
    Step.LOOK_AGAIN: look,
    Step.ANNOUNCE: does(word=True, says=Word.STAGING),
    Step.FILL: fill,
    Step.PUBLISH: does(says=Word.HERE),
    Step.VERIFY: does(),
    Step.SHARE: claim(shared=True),
    Step.ATTACH: attach,
    Step.JOIN: does(word=True, says=Word.HERE),
    Step.LEAVE: does(claim=""),
    Step.RETRY: does(claim=""),
    Step.GIVE_UP: does(claim=""),
    Step.TELL: does(says=Word.FAILED, claim="", word=False),
}


def changed(world: World, me: int, **what: object) -> World:
    return tuple(replace(rank, **what) if number == me else rank for number, rank in enumerate(world))  # type: ignore[arg-type]


def following(world: World, me: int) -> Iterator[World]:
    """Every state one step of one process can lead to."""
    rank = world[me]
    if rank.step not in LAST:
        for came, after in PERFORM[rank.step](world, me):
            yield changed(after, me, step=TABLE[rank.step, came])


def died(world: World, me: int) -> World:
    """The kernel takes its locks; its record stays readable for those that have it open."""
    return changed(world, me, alive=False, claim="", word=False)


def everything(start: World, deaths: int = 2) -> dict[World, set[World]]:
    seen: dict[World, set[World]] = {}
    pending = [start]
    while pending:
        world = pending.pop()
        if world in seen:
            continue
        steps = {after for me in living(world) for after in following(world, me)}
        can_die = sum(not rank.alive for rank in world) < deaths
        killed = {died(world, me) for me in living(world)} if can_die else set()
        seen[world] = steps
        pending.extend(steps | killed)
    return seen


@pytest.fixture(scope="module", params=[(0, 0, 0), (0, 0, 1)], ids=["one run", "two runs"])
def states(request: pytest.FixtureRequest) -> dict[World, set[World]]:
    return everything(tuple(Rank(run=run) for run in request.param))


def test_fleet_model_there_is_one_arena_at_a_time(states: dict[World, set[World]]) -> None:
    for world in states:
        held = {rank.arena for rank in world if rank.alive and rank.arena is not None and rank.step is not Step.TELL}
        assert len(held) <= 1, world


def test_fleet_model_the_claim_is_held_as_the_table_says(states: dict[World, set[World]]) -> None:
    for world in states:
        alone = [rank for rank in world if rank.claim == "alone"]
        assert not alone or sum(bool(rank.claim) for rank in world) == 1
        assert all(bool(rank.claim) == (rank.step in WITH_CLAIM) for rank in world if rank.alive)


def test_fleet_model_nobody_is_called_dead_that_is_not(states: dict[World, set[World]]) -> None:
    stopped = 0
    for world in states:
        for rank in world:
            if rank.step is Step.STOP_ENDED:
                stopped += 1
                assert rank.watched is not None
                other = world[rank.watched]
                assert not other.alive and other.says is Word.STAGING and other.run == rank.run, world
            if rank.step is Step.STOP_TOLD:
                assert rank.watched is not None and world[rank.watched].says is Word.FAILED
    assert stopped


def test_fleet_model_every_living_process_comes_to_an_end(states: dict[World, set[World]]) -> None:
    """From every state there is a way on which each living process ends, without any further death."""
    good = {world for world in states if all(rank.step in LAST for rank in world if rank.alive)}
    before: dict[World, set[World]] = {}
    for world, steps in states.items():
        for after in steps:
            before.setdefault(after, set()).add(world)
    pending = list(good)
    while pending:
        for world in before.get(pending.pop(), ()):
            if world not in good:
                good.add(world)
                pending.append(world)
    assert good == set(states)


def test_fleet_model_nobody_waits_for_the_dead(states: dict[World, set[World]]) -> None:
    """One that is alone goes on by itself to the dataset, or stops for the death of its own run's stager."""
    for world in states:
        alive = living(world)
        if len(alive) == 1 and world[alive[0]].step is Step.LOOK:
            reached, pending = {world}, [world]
            while pending:
                for after in states[pending.pop()]:
                    if after not in reached:
                        reached.add(after)
                        pending.append(after)
            ends = {reachable[alive[0]].step for reachable in reached} & LAST
            assert Step.DISK not in ends and ends <= {
                Step.HOLDING,
                Step.STOP_FAILED,
                Step.STOP_ENDED,
                Step.STOP_TOLD,
            }


def test_fleet_model_a_death_of_another_run_stops_nobody() -> None:
    for world in everything((Rank(run=0), Rank(run=1))):
        assert all(rank.step not in (Step.STOP_ENDED, Step.STOP_TOLD) for rank in world)


def test_fleet_the_code_performs_every_step_of_the_table() -> None:
    steps = {step for step, _ in TABLE}
    assert set(Meeting._PERFORM) == steps == set(PERFORM)
    assert set(TABLE.values()) == (steps | LAST) - {FIRST} | {Step.LOOK}


def test_fleet_the_document_has_the_table() -> None:
    text = DOCUMENT.read_text()
    for (step, came), after in TABLE.items():
        assert f"| {step} | {came} | {after} |" in text, f"| {step} | {came} | {after} |"
