"""Every update of a ramp is the mean gradient of exactly its window, with the real Accelerator in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ramp_fake import Trainer, fake_state_tracker, rows, two_ranks

from simpletuner.gh200.ramp.schedule import SHAPES


@pytest.fixture(autouse=True, scope="module")
def state_tracker() -> Iterator[None]:
    with fake_state_tracker():
        yield


def worst_error(
    trainer: Trainer, count: int, *, seeds: tuple[int, ...] = (0,), rank: int = 0, data_of: Callable[..., Any] = rows
) -> tuple[float, list[int]]:
    """Largest relative error of any update against its own window's mean gradient; and the windows' sizes.

    `seeds` are the data of all ranks: the mean is over all of them, as data-parallel training has it.
    """
    data = [list(data_of(count, seed)) for seed in seeds]
    worst, open_window, sizes = 0.0, [], []
    for number in range(count):
        weight = trainer.weight().detach().clone().requires_grad_()
        for of_rank in data:
            loss = torch.tanh(weight @ of_rank[number]).square()
            open_window.append(torch.autograd.grad(loss, weight)[0])
        stepped = trainer.micro_batch(number + 1, data[rank][number])
        if stepped is not None:
            expected = torch.stack(open_window).mean(0)
            worst = max(worst, float((stepped - expected).norm() / expected.norm()))
            sizes.append(len(open_window) // len(seeds))
            open_window = []
    return worst, sizes


def ramp_of(initial: int, target: int, steps: int, **more: Any) -> tuple[float, list[int], list[int]]:
    trainer = Trainer()
    trainer.prepare()
    ramp = trainer.build(
        initial_effective_batch_size=initial, target_effective_batch_size=target, batch_rampup_steps=steps, **more
    )
    count = min(ramp.micro_batches_for(ramp.segments[-1].window + 3), 600)
    worst, sizes = worst_error(trainer, count)
    return worst, sizes, [ramp.accumulation_steps(window) for window in range(len(sizes))]


@pytest.mark.parametrize(("initial", "target", "steps"), [(1, 8, 60), (4, 32, 400), (32, 4, 400)])
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_update_is_its_windows_mean(initial: int, target: int, steps: int, shape: str) -> None:
    worst, sizes, scheduled = ramp_of(initial, target, steps, batch_rampup_shape=shape)
    assert worst < 1e-12
    assert sizes == scheduled
    assert (sizes[0], sizes[-1]) == (initial, target)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    initial=st.integers(1, 12),
    target=st.integers(1, 12),
    steps=st.integers(0, 40),
    shape=st.sampled_from(sorted(SHAPES)),
)
def test_any_schedule(initial: int, target: int, steps: int, shape: str) -> None:
    assume(initial != target)  # rejected: nothing would ramp
    worst, sizes, scheduled = ramp_of(initial, target, steps, batch_rampup_shape=shape)
    assert worst < 1e-12
    assert sizes == scheduled


def test_a_change_without_a_new_count_is_what_goes_wrong() -> None:
    """The measurement can fail: the naive way, changing the number per micro-batch, misses by far."""
    trainer = Trainer()
    trainer.prepare()
    worst, open_window = 0.0, []
    for number, row in enumerate(rows(60)):
        trainer.accelerator.gradient_accumulation_steps = 1 + number // 8
        weight = trainer.weight().detach().clone().requires_grad_()
        open_window.append(torch.autograd.grad(torch.tanh(weight @ row).square(), weight)[0])
        stepped = trainer.micro_batch(number, row)
        if stepped is not None:
            expected = torch.stack(open_window).mean(0)
            worst = max(worst, float((stepped - expected).norm() / expected.norm()))
            open_window = []
    assert worst > 0.1


def test_two_ranks() -> None:
    for output in two_ranks(__file__):
        worst, sizes = output.splitlines()[-1].split(" ", 1)
        assert float(worst) < 1e-12
        assert sizes == str([2, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8, 8])


def one_rank() -> None:
    trainer = Trainer()
    trainer.prepare()
    ramp = trainer.build(initial_effective_batch_size=4, target_effective_batch_size=16, batch_rampup_steps=40)
    count = ramp.micro_batches_for(15)
    worst, sizes = worst_error(trainer, count, seeds=(0, 1), rank=trainer.accelerator.process_index)
    assert trainer.accelerator.num_processes == 2
    print(worst, sizes)


if __name__ == "__main__":
    with fake_state_tracker():
        one_rank()
