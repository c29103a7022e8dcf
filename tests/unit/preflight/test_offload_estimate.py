"""What `check` says of managed memory before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from simpletuner.gh200.preflight.memory_estimate import Memory, memory_of
from simpletuner.gh200.preflight.model import Weights
from simpletuner.gh200.preflight.offload_estimate import offload_of

GB = 10**9
HBM, RAM = 96 * GB, 480 * GB
FP32 = {"model_type": "full", "mixed_precision": "no", "optimizer": "torch-adamw", "use_ema": True}


def asked(mode: str, billions: float, **changes: Any) -> tuple[str | None, str]:
    config = FP32 | changes
    return offload_of(mode, memory_of(Weights(int(billions * 1e9)), config), config, HBM, RAM)


def test_precision_decides_the_bytes_of_every_kind() -> None:
    whole, half = (memory_of(Weights(100), FP32 | {"mixed_precision": name}) for name in ("no", "bf16"))
    assert whole == Memory(weights=400, gradients=400, optimizer=1200, checkpoint=1600)
    assert half == Memory(weights=200, gradients=200, optimizer=600, checkpoint=800)


def test_a_plan_shows_places_and_seconds() -> None:
    kind, text = asked("auto", 6)
    assert kind is None and "optimizer" in text and "streamed" in text and "s per optimizer step" in text


def test_what_cannot_fit_is_a_problem_with_the_cheapest_change() -> None:
    kind, text = asked("auto", 30)
    assert kind == "problems" and "HBM" in text and "gradient_checkpointing" not in text
    assert "missing" in text and ("mixed_precision" in text or "ramtorch" in text)


def test_what_may_not_fit_is_a_warning_that_says_what_is_estimated() -> None:
    kind, text = asked("auto", 20)
    assert kind == "warnings" and "estimated" in text and "gradient_checkpointing" in text


@pytest.mark.parametrize("mode", ["state", "all"])
def test_state_and_all_say_what_they_cost(mode: str) -> None:
    kind, text = asked(mode, 12)
    assert kind == "warnings" and f'"{mode}"' in text and "migrate" in text and "s per optimizer step" in text
    assert asked(mode, 1)[0] is None


@pytest.mark.parametrize("key", ["ramtorch", "musubi_blocks_to_swap"])
def test_weights_that_are_streamed_are_not_judged(key: str) -> None:
    assert asked("auto", 30, **{key: 4}) == (None, "")
    assert offload_of("off", memory_of(Weights(10**12), FP32), FP32, HBM, RAM) == (None, "")
