"""What the trainer hook costs per micro-batch when nothing is set, beside an empty method call."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from .trainer_hooks import TrainerHooks

LIMIT_MICROSECONDS = 5.0
REPEATS, CALLS = 9, 20_000


class _Empty:
    def _gh200_begin_micro_batch(self, step: int, batch: Any) -> None:
        return None


def main(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="bench ramp", description=__doc__).parse_args(arguments)
    off, empty = TrainerHooks(), _Empty()
    rounds: dict[str, list[float]] = {"empty method": [], "hook, ramp off": []}
    for _ in range(REPEATS):
        rounds["empty method"].append(_cost(lambda: empty._gh200_begin_micro_batch(1, None)))
        rounds["hook, ramp off"].append(_cost(lambda: off._gh200_begin_micro_batch(1, None)))
    print(f"{'per micro-batch':<22}{'median us':>10}{'least':>8}{'most':>8}")
    for name, values in rounds.items():
        print(f"{name:<22}{statistics.median(values):>10.3f}{min(values):>8.3f}{max(values):>8.3f}")
    met = statistics.median(rounds["hook, ramp off"]) < LIMIT_MICROSECONDS
    print(f"hook with the ramp off below {LIMIT_MICROSECONDS} us: {'met' if met else 'NOT MET'}")
    return 0 if met else 1


def _cost(call: Any) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6
