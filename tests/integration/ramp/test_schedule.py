"""The ramp's arithmetic against a plain micro-batch by micro-batch simulation, its words, and its rejections."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gh200_lab.place import ROOT
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.ramp.from_config import ramp_from_config
from simpletuner.gh200.ramp.schedule import SHAPES, GH200GradientRamp, RampError

REPO = ROOT

ramps = st.builds(
    GH200GradientRamp,
    initial_effective_batch_size=st.none() | st.integers(1, 200),
    target_effective_batch_size=st.none() | st.integers(1, 200),
    batch_rampup_steps=st.integers(0, 300),
    train_batch_size=st.integers(1, 8),
    num_processes=st.integers(1, 4),
    gradient_accumulation_steps=st.integers(1, 16),
    shape=st.sampled_from(sorted(SHAPES)),
    increment=st.none() | st.integers(1, 40),
)


def windows_one_by_one(ramp: GH200GradientRamp):
    """The definition, without any of the shortcuts: a window's size follows from the micro-batches before it."""
    done = 0
    while True:
        size = ramp.size_at(done)
        yield done, size
        done += size


@given(ramps)
def test_every_mapping_agrees_with_counting(ramp: GH200GradientRamp) -> None:
    micro_batch = 0
    for window, (start, size) in enumerate(islice(windows_one_by_one(ramp), 120)):
        assert ramp.accumulation_steps(window) == size
        assert ramp.micro_batches_for(window) == start
        for place in range(size):
            assert ramp.locate(micro_batch) == (window, place)
            assert ramp.steps_for(micro_batch) == window
            micro_batch += 1


@given(ramps)
def test_sizes_move_one_way_and_end_at_the_target(ramp: GH200GradientRamp) -> None:
    sizes = [segment.size for segment in ramp.segments]
    assert sizes == sorted(sizes, reverse=sizes[0] > ramp.target)
    assert sizes[-1] == ramp.target
    assert max(sizes) == ramp.largest
    assert min(sizes) >= 1


def test_the_documented_ramp() -> None:
    ramp = GH200GradientRamp(4, 32, 400)
    sizes = [ramp.effective_batch_size(window) for window in range(60)]
    assert sizes[0] == 4
    assert sizes[-1] == 32
    assert sizes == sorted(sizes)
    assert ramp.notes == ()


def test_the_shapes_differ_in_the_middle() -> None:
    middle = {shape: GH200GradientRamp(1, 101, 1000, shape=shape, increment=50).size_at(500) for shape in SHAPES}
    assert middle == {"quadratic": 26, "linear": 51, "staircase": 51}
    assert GH200GradientRamp(1, 101, 1000, shape="staircase", increment=50).size_at(499) == 1


def test_staircase_counts_like_megatron() -> None:
    """Start 4, increments of 4 up to 16, over 600 samples: one stair every 200 samples."""
    ramp = GH200GradientRamp(4, 16, 600, shape="staircase", increment=4)
    assert [ramp.size_at(consumed) for consumed in (0, 199, 200, 399, 400, 599, 600, 9999)] == [
        4,
        4,
        8,
        8,
        12,
        12,
        16,
        16,
    ]


def test_downwards() -> None:
    ramp = GH200GradientRamp(32, 4, 200, shape="linear")
    sizes = [ramp.accumulation_steps(window) for window in range(40)]
    assert sizes[0] == 32
    assert sizes[-1] == 4
    assert ramp.largest == 32


def test_sizes_below_one_micro_batch_become_one() -> None:
    ramp = GH200GradientRamp(4, train_batch_size=32)
    assert (ramp.initial, ramp.target) == (1, 1)
    assert ramp.effective_batch_size(0) == ramp.effective_batch_size(1000) == 32
    assert "becomes 32" in ramp.notes[0] and "less than one micro-batch" in ramp.notes[0]


def test_sizes_that_do_not_divide_say_what_they_become() -> None:
    ramp = GH200GradientRamp(5, 30, 10, train_batch_size=2, num_processes=2)
    assert (ramp.effective_batch_size(0), ramp.effective_batch_size(99)) == (4, 32)
    assert [note.split(" (")[0] for note in ramp.notes] == [
        "initial_effective_batch_size 5 is not a multiple of 4",
        "target_effective_batch_size 30 is not a multiple of 4",
    ]


def test_zero_steps_start_at_the_target() -> None:
    ramp = GH200GradientRamp(4, 32, 0)
    assert ramp.accumulation_steps(0) == 32
    assert ramp.segments == ((0, 0, 32),)


def test_hand_set_accumulation_is_the_target_only_without_one() -> None:
    assert GH200GradientRamp(1, gradient_accumulation_steps=6).target == 6
    both = GH200GradientRamp(1, 8, gradient_accumulation_steps=6)
    assert both.target == 8
    assert "gradient_accumulation_steps 6 is not used" in both.notes[0]


@pytest.mark.parametrize("value", [0, -4, 2.5, 4.0, "4", True])
@pytest.mark.parametrize(
    "name", ["initial_effective_batch_size", "target_effective_batch_size", "train_batch_size", "num_processes"]
)
def test_bad_sizes_are_rejected(name: str, value: object) -> None:
    with pytest.raises(RampError, match=f"{name} must be a whole number"):
        GH200GradientRamp(**{name: value})


def test_all_problems_at_once() -> None:
    with pytest.raises(RampError) as caught:
        GH200GradientRamp(0, -1, -5, shape="cubic", increment=0)
    text = str(caught.value)
    for part in (
        "initial_effective",
        "target_effective",
        "batch_rampup_steps",
        "quadratic, linear, staircase",
        "increment",
    ):
        assert part in text


def test_a_very_long_ramp_stays_small() -> None:
    ramp = GH200GradientRamp(1, 64, 10**12)
    assert len(ramp.segments) < 70
    window, place = ramp.locate(10**12 - 1)
    assert ramp.micro_batches_for(window) + place == 10**12 - 1


@given(ramps, ramps)
def test_the_fingerprint_differs_between_schedules(one: GH200GradientRamp, other: GH200GradientRamp) -> None:
    def sizes(ramp: GH200GradientRamp) -> list[int]:
        return [ramp.effective_batch_size(window) for window in range(300)]

    if one.fingerprint() == other.fingerprint():
        assert sizes(one) == sizes(other)
    json.dumps(one.fingerprint())


def config_file(directory: Path, **keys: object) -> Path:
    path = directory / "config.json"
    path.write_text(json.dumps(keys))
    return path


def test_the_command_prints_every_window_size(tmp_path: Path) -> None:
    block = {"enable_batch_size_rampup": True, "initial_effective_batch_size": 4, "target_effective_batch_size": 6}
    config = config_file(tmp_path, train_batch_size=1, gh200_optimizations=block)
    command = [sys.executable, "-m", "simpletuner.gh200.ramp", str(config)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    described, _, *windows = done.stdout.splitlines()
    assert described.startswith("effective batch 4 -> 6")
    assert [line.split()[-1] for line in windows] == ["4", "5", "6", "6"]


@pytest.mark.parametrize("prefix", ["", "--"])
def test_a_config_is_read_as_training_reads_it(tmp_path: Path, prefix: str) -> None:
    keys = {
        f"{prefix}train_batch_size": 2,
        f"{prefix}gradient_accumulation_steps": 8,
        "initial_effective_batch_size": 4,
    }
    ramp = ramp_from_config(config_file(tmp_path, **keys), processes=2)
    assert (ramp.initial, ramp.target, ramp.samples_per_micro_batch) == (1, 8, 4)


RAMP = {"initial_effective_batch_size": 8, "target_effective_batch_size": 32}


def test_numbers_as_text_blocks_as_text_and_variables_are_read_as_training_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPS", "7")
    block = json.dumps(RAMP | {"batch_rampup_steps": "{env:STEPS}"})
    ramp = ramp_from_config(config_file(tmp_path, train_batch_size="2", gh200_optimizations=block), processes=1)
    assert (ramp.train_batch_size, ramp.batch_rampup_steps, ramp.target) == (2, 7, 16)


def test_what_the_config_leaves_out_is_upstreams_default(tmp_path: Path) -> None:
    ramp = ramp_from_config(config_file(tmp_path, gh200_optimizations=RAMP), processes=1)
    assert (ramp.train_batch_size, ramp.gradient_accumulation_steps) == (4, 1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps: must be a whole number, at least 1; got 0"),
        ({"train_batch_size": 2.0}, "train_batch_size: must be a whole number"),
        ({"train_batch_size": True}, "train_batch_size: must be a whole number"),
        ({"train_batch_size": "two"}, "train_batch_size: must be a whole number"),
        ({"target_effective_batch_size": 8}, 'target_effective_batch_size: belongs inside the block "gh200_opt'),
        ({"datasets": []}, "datasets: must be a list"),
    ],
)
def test_what_training_rejects_is_rejected(keys: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        ramp_from_config(config_file(tmp_path, gh200_optimizations=RAMP, **keys), processes=1)
    assert message in str(caught.value)


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simpletuner.gh200.ramp", str(tmp_path / "none.json")],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "none.json" in done.stderr
    assert "Traceback" not in done.stderr
