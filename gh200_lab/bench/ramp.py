"""The ramp: what the hook in the trainer costs per micro-batch when no ramp is set, beside an empty method call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from simpletuner.gh200.trainer import TrainerHooks

from .result import BenchSettings, Ratio, Result, in_turn

CALLS = 20_000


class _Empty:
    def _gh200_begin_micro_batch(self, step: int, batch: Any) -> None:
        return None


def measure(settings: BenchSettings) -> Iterator[Result]:
    peers = {"an empty method": _Empty(), "the hook with no ramp": TrainerHooks()}
    taken = in_turn({name: partial(_call, trainer) for name, trainer in peers.items()}, settings.rounds * 2)
    costs = {name: tuple(one / CALLS * 1e6 for one in values) for name, values in taken.items()}
    yield Ratio("an empty method call, microseconds", costs["an empty method"])
    yield Ratio(
        "the hook with no ramp, microseconds per micro-batch", costs["the hook with no ramp"], 5, at_least=False
    )


def _call(trainer: Any) -> None:
    for _ in range(CALLS):
        trainer._gh200_begin_micro_batch(1, None)
