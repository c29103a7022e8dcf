"""A run that is taken away and given back: after a signal it resumes as the run that nobody disturbed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from preloaded import Preloaded
from tiny import CPU, Lab

from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run, weights
from simpletuner.gh200.preemption.marker import MARKER
from simpletuner.gh200.preemption.signals import EXIT_CODE

pytestmark = pytest.mark.timeout(1800)

# Eleven micro-batches an epoch: epochs end inside windows, and two datasets are chosen from by the micro-batch's number.
IMAGES = {"first": 7, "second": 4}
LISTEN = {"checkpoint_on_signal": True}
RAMP = {
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 1,
    "target_effective_batch_size": 3,
    "batch_rampup_steps": 10,
}
KINDS: dict[str, dict[str, Any]] = {
    "ramp": {"gh200_optimizations": LISTEN | RAMP},
    "fixed": {"gh200_optimizations": LISTEN, "gradient_accumulation_steps": 2},
    "validated": {
        "gh200_optimizations": LISTEN,
        "gradient_accumulation_steps": 2,
        "validation_disable": False,
        "validation_step_interval": 4,
        "validation_num_inference_steps": 2,
    },
}
# The run's own checkpoint draws from the random generators too.
STEPS = {"max_train_steps": 16, "checkpoint_step_interval": 6}
SIGNALS, SEED = 5, 26


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> Lab:
    """Caches are built by one rank: two that build them at once do not always draw alike."""
    lab = Lab(tmp_path_factory.mktemp("leave"), forked)
    for name, images in IMAGES.items():
        lab.add_dataset(name, images)
    assert lab.watched("warm-up", max_train_steps=1).code == 0
    return lab


@pytest.fixture(scope="module")
def two(forked: Preloaded) -> dict[str, Preloaded]:
    return {
        "torchrun": Preloaded(place=forked.place, ranks=2),
        "accelerate": Preloaded(place=forked.place, ranks=2, by_accelerate=True),
    }


class Undisturbed:
    """One run of each kind and number of ranks, made when it is first asked for."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.runs: dict[tuple[str, int], Run] = {}

    def __call__(self, kind: str, launcher: Launcher | None = None) -> Run:
        launcher = launcher or self.lab.launcher
        if (kind, launcher.ranks) not in self.runs:
            run = self.lab.watched(f"whole-{kind}-{launcher.ranks}", launcher=launcher, **STEPS | KINDS[kind])
            assert run.code == 0, run.text[-3000:]
            self.runs[kind, launcher.ranks] = run
        return self.runs[kind, launcher.ranks]


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> Undisturbed:
    return Undisturbed(lab)


def marker(run: Run) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run.output / MARKER).read_text())
    return read


def final_weights(run: Run) -> dict[str, str]:
    return {name: digest for name, digest in weights(run.output).items() if not name.startswith("checkpoint-")}


def check_left(taken: Run, launcher: Launcher, before: int = 0) -> None:
    """It has a code and a checkpoint of the window that was open, and a marker that says so."""
    assert taken.code == (EXIT_CODE if launcher.ranks == 1 else 1), (
        "launchers make one of every code\n" + taken.text[-3000:]
    )
    step = before + len(taken.updates()) // launcher.ranks
    assert (marker(taken)["checkpoint"], marker(taken)["step"]) == (f"checkpoint-{step}", step)


def check_given_back(lab: Lab, whole: Run, taken: Run, kind: str) -> None:
    check_left(taken, lab.launcher)
    name = taken.output.name
    again = lab.watched(f"{name}-again", resume=name, **STEPS | KINDS[kind])
    assert again.code == 0, again.text[-3000:]
    assert not (again.output / MARKER).exists()
    assert taken.trace == whole.trace[: len(taken.trace)], "nothing after the window that was open"
    assert taken.trace + again.trace == whole.trace
    assert final_weights(again) == final_weights(whole)


def again_and_again(lab: Lab, kind: str, orders: Sequence[Any], launchers: Sequence[Launcher]) -> list[Run]:
    """Taken away once for each order and given back each time, until the training is over."""
    runs: list[Run] = []
    for number, order in enumerate([*orders, None]):
        launcher = launchers[number % len(launchers)]
        orders = {"signals": [order]} if order else {}
        resume = runs[-1].output.name if runs else ""
        before = sum(len(run.updates()) for run in runs) // launcher.ranks
        run = lab.watched(f"{kind}-{number}", launcher=launcher, orders=orders, resume=resume, **STEPS | KINDS[kind])
        runs.append(run)
        if run.code == 0:
            break
        check_left(run, launcher, before)
        assert marker(run)["signal"] == order["name"] and marker(run)["rank"] == order.get("rank", 0)
    assert runs[-1].code == 0, runs[-1].text[-3000:]
    assert not (runs[-1].output / MARKER).exists()
    return runs


def test_a_run_preempted_inside_a_window_resumes_bit_identical(lab: Lab, undisturbed: Undisturbed) -> None:
    orders = {"signals": [{"name": "SIGUSR1", "at": 3}]}
    taken = lab.watched("taken", orders=orders, **STEPS | KINDS["ramp"])
    assert (marker(taken)["signal"], marker(taken)["rank"]) == ("SIGUSR1", 0)
    assert len(taken.updates()) < STEPS["checkpoint_step_interval"], "a checkpoint of its own"
    check_given_back(lab, undisturbed("ramp"), taken, "ramp")


@pytest.mark.slow(reason="up to seven trainings each")
@pytest.mark.parametrize("kind", ["ramp", "fixed"])
def test_a_run_preempted_at_random_times_equals_the_undisturbed_run(
    lab: Lab, undisturbed: Undisturbed, kind: str
) -> None:
    """Again and again, as a queue does it: wherever the clock falls, also in a checkpoint and at the end of an epoch."""
    drawn = random.Random(f"{SEED} {kind}")
    orders = [
        {"name": name, "at": drawn.randrange(3), "after": drawn.random() / 2}
        for name in drawn.sample(["SIGTERM", "SIGUSR1"] * SIGNALS, SIGNALS)
    ]
    given = again_and_again(lab, kind, orders, [lab.launcher])
    assert len(given) > SIGNALS // 2, "a fast machine is over before the last ones"
    whole = undisturbed(kind)
    assert [entry for run in given for entry in run.trace] == whole.trace
    assert final_weights(given[-1]) == final_weights(whole)


@pytest.mark.slow(reason="six trainings with two ranks")
def test_one_signalled_rank_stops_all(lab: Lab, undisturbed: Undisturbed, two: dict[str, Preloaded]) -> None:
    """Under both launchers in turn, with both signals, to either rank."""
    orders = [
        {"name": "SIGTERM", "at": 2, "after": 0.3, "rank": 1},
        {"name": "SIGUSR1", "at": 1, "rank": 0},
        {"name": "SIGUSR1", "at": 0, "rank": 1},
        {"name": "SIGTERM", "at": 3, "rank": 0},
    ]
    whole = undisturbed("ramp", two["torchrun"])
    given = again_and_again(lab, "ramp", orders, list(two.values()))
    assert sorted(loss for run in given for loss in run.micro_losses()) == sorted(whole.micro_losses())
    assert sorted(update for run in given for update in run.updates()) == sorted(whole.updates())
    assert final_weights(given[-1]) == final_weights(whole)


@pytest.mark.slow(reason="a training with two ranks")
def test_a_signal_to_every_rank_is_one(lab: Lab, two: dict[str, Preloaded]) -> None:
    signals = [{"name": "SIGUSR1", "at": 3, "rank": rank} for rank in range(2)]
    taken = lab.watched("every-rank", launcher=two["torchrun"], orders={"signals": signals}, **STEPS | KINDS["fixed"])
    check_left(taken, two["torchrun"])


@pytest.mark.slow(reason="three trainings")
def test_a_signal_in_a_scheduled_checkpoint_writes_it_once(lab: Lab, undisturbed: Undisturbed) -> None:
    orders = {"signals": [{"name": "SIGTERM", "in": "save"}]}
    taken = lab.watched("in-save", orders=orders, **STEPS | KINDS["fixed"])
    assert [path.name for path in taken.output.glob("checkpoint-*")] == ["checkpoint-6"]
    check_given_back(lab, undisturbed("fixed"), taken, "fixed")


@pytest.mark.slow(reason="three trainings that validate")
def test_a_signal_in_a_validation_waits_for_its_end(lab: Lab, undisturbed: Undisturbed) -> None:
    orders = {"signals": [{"name": "SIGUSR1", "in": "validation"}]}
    taken = lab.watched("in-validation", orders=orders, **STEPS | KINDS["validated"])
    assert marker(taken)["step"] == KINDS["validated"]["validation_step_interval"]
    check_given_back(lab, undisturbed("validated"), taken, "validated")


@pytest.mark.slow(reason="two trainings each")
@pytest.mark.parametrize(
    "second",
    [{"at": 3, "after": 1.2}, {"in": "save", "after": 1.2}, {"in": "states", "after": 1.2}],
    ids=["in its window", "in its checkpoint", "before the last files of it"],
)
def test_a_second_signal_ends_at_once_and_no_partial_checkpoint_is_resumed(
    lab: Lab, undisturbed: Undisturbed, second: dict[str, Any]
) -> None:
    signals = [{"name": "SIGTERM", "at": 3}, {"name": "SIGTERM", **second}]
    orders = {"signals": signals, "dawdle": {"3": 3} if "at" in second else {}}
    taken = lab.watched("twice", orders=orders, **STEPS | KINDS["fixed"])
    assert taken.code == -signal.SIGTERM and not (taken.output / MARKER).exists()
    begun = [path.name for path in taken.output.glob("checkpoint-*")]
    assert begun == ([] if "at" in second else ["checkpoint-2"]), "half written"
    again = lab.watched("twice-again", resume="twice", **STEPS | KINDS["fixed"])
    assert again.code == 0 and again.trace == undisturbed("fixed").trace
    assert all(f"checkpoint {name} is incomplete" in again.text for name in begun)


@pytest.mark.slow(reason="a cold training")
def test_a_signal_before_training_ends_it_with_its_code_and_no_marker(lab: Lab) -> None:
    printed, sent = lab.directory / "printed.log", []

    def when_it_listens(group: int) -> None:
        if not sent and "on: checkpoint on a signal" in printed.read_text(errors="replace"):
            sent.append(os.kill(group, signal.SIGTERM))

    config = lab.config("off", max_train_steps=1, **KINDS["fixed"])
    run = lab.run("early", config, launcher=CPU, while_training=when_it_listens)
    assert run.code == EXIT_CODE, run.text[-3000:]
    assert not (run.output / MARKER).exists() and not list(run.output.glob("checkpoint-*"))


@pytest.mark.slow(reason="a training")
def test_off_installs_no_handler(lab: Lab) -> None:
    """Upstream's own answer to SIGTERM: the process dies of it."""
    orders = {"signals": [{"name": "SIGTERM", "at": 1}]}
    taken = lab.watched("off", orders=orders, max_train_steps=4)
    assert taken.code == -signal.SIGTERM and not list(taken.output.glob("checkpoint-*"))
