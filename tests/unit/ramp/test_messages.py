"""What the ramp says is what it does: defaults, rejections, units, tables, incomplete checkpoints."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ramp_fake import Trainer, fake_state_tracker, rows
from safetensors.torch import save_file

from gh200_lab.place import ROOT
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.schema import Optimizations
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.console import LEVEL, show_debug_lines
from simpletuner.gh200.preflight.samples import Samples
from simpletuner.gh200.preflight.window_check import largest_window, window_problems
from simpletuner.gh200.ramp import apply as ramp_apply
from simpletuner.gh200.ramp.checkpoints import incompleteness, record_last_file
from simpletuner.gh200.ramp.from_config import ramp_from
from simpletuner.gh200.ramp.schedule import GH200GradientRamp, RampError
from simpletuner.gh200.state import StateHooks

REPO = ROOT


@pytest.fixture(autouse=True, scope="module")
def state_tracker() -> Iterator[None]:
    with fake_state_tracker():
        yield


def ramp_of(block: dict[str, Any], processes: int = 1, **config: Any) -> GH200GradientRamp:
    """From a config's block to its ramp, as a run goes."""
    trainer = Trainer(**config)
    asked = read_settings({"gh200_optimizations": block}, {}).optimizations
    return ramp_from(asked, vars(trainer.config), processes)


# Words


def test_a_target_alone_starts_from_one_micro_batch() -> None:
    ramp = ramp_of({"target_effective_batch_size": 4})
    assert (ramp.accumulation_steps(0), ramp.target) == (1, 4)


def test_the_switch_alone_ramps_to_the_accumulation_steps() -> None:
    ramp = ramp_of({"enable_batch_size_rampup": True}, gradient_accumulation_steps=6)
    assert (ramp.accumulation_steps(0), ramp.target) == (1, 6)


def test_a_forgotten_target_is_not_a_ramp_down() -> None:
    with pytest.raises(RampError, match="from an effective batch of 4 to 1, and no target was given") as caught:
        ramp_of({"initial_effective_batch_size": 4})
    assert "target_effective_batch_size" in caught.value.where
    assert ramp_of({"initial_effective_batch_size": 4, "target_effective_batch_size": 1}).accumulation_steps(0) == 4


@pytest.mark.parametrize(
    ("block", "config"),
    [
        ({"initial_effective_batch_size": 4, "target_effective_batch_size": 32}, {"train_batch_size": 32}),
        ({"enable_batch_size_rampup": True}, {}),
        ({"batch_rampup_table": [[0, 8], [10, 8]]}, {}),
    ],
)
def test_what_would_not_ramp_is_rejected_with_what_would(block: dict[str, Any], config: Any) -> None:
    with pytest.raises(RampError, match="Nothing would ramp") as caught:
        ramp_of(block, **config)
    unit = config.get("train_batch_size", 1)
    wanted = re.search(r"a target of (\d+) or more", caught.value.fix)
    assert wanted
    assert len(ramp_of({"target_effective_batch_size": int(wanted[1])}, train_batch_size=unit).segments) > 1


def test_zero_steps_are_the_target_and_are_meant() -> None:
    block = {"initial_effective_batch_size": 1, "target_effective_batch_size": 8, "batch_rampup_steps": 0}
    assert ramp_of(block).accumulation_steps(0) == 8


def test_a_bucket_smaller_than_the_largest_window_is_named_with_the_ramps_key() -> None:
    def problem_of(ramp: GH200GradientRamp, buckets: dict[str, int]) -> str:
        window = largest_window(ramp, (ramp.train_batch_size, 1), 1)
        return "\n".join(str(problem) for problem in window_problems(Samples("one", 0, 0, None, buckets), window, {}))

    ramp = GH200GradientRamp(1, 16, train_batch_size=2)
    assert problem_of(ramp, {"1.0": 16, "1.5": 40}) == "" == problem_of(ramp, {})
    text = problem_of(ramp, {"1.0": 40, "0.75": 6})
    for part in (
        "gh200_optimizations.target_effective_batch_size",
        "accumulation 8 = 16",
        "bucket 0.75 has 6",
        "repeats to 2",
    ):
        assert part in text
    assert "initial_effective_batch_size" in problem_of(GH200GradientRamp(16, 1), {"1.0": 2})
    assert "batch_rampup_table" in problem_of(GH200GradientRamp(table=((0, 1), (9, 8))), {"1.0": 2})


# What the page says in words, and what a config without the key has to give then.
PROSE_DEFAULTS: dict[str, tuple[str, dict[str, Any], Callable[[GH200GradientRamp], object], object]] = {
    "initial_effective_batch_size": ("one micro-batch", {"target_effective_batch_size": 24}, lambda r: r.sizes[0], 3),
    "target_effective_batch_size": (
        "`train_batch_size` x processes x `gradient_accumulation_steps`",
        {"initial_effective_batch_size": 3},
        lambda r: r.sizes[1],
        15,
    ),
    "batch_rampup_table": ("no table", {"target_effective_batch_size": 24}, lambda r: r.table, ()),
    "enable_batch_size_rampup": (
        "on when a size or a table is given",
        {"batch_rampup_table": [[0, 3], [9, 6]]},
        lambda r: len(r.segments),
        2,
    ),
}


def test_every_default_of_the_page_is_read_back_through_the_settings() -> None:
    page = (REPO / "docs" / "RAMP.md").read_text(encoding="utf-8")
    table = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", page.split("## Settings")[1].split("\n## ")[0], re.MULTILINE)
    )
    assert set(table) == {key for key in Optimizations.model_fields if re.search("ramp|effective|noise", key)}
    left_out = read_settings({"gh200_optimizations": {"target_effective_batch_size": 8}}, {}).optimizations
    for key, written in table.items():
        if key in PROSE_DEFAULTS:
            words, block, read, value = PROSE_DEFAULTS[key]
            assert written == words, key
            assert read(ramp_of(block, train_batch_size=3, gradient_accumulation_steps=5)) == value, key
        else:
            default = getattr(left_out, key)
            assert written.strip("`") == (str(default).lower() if isinstance(default, bool) else str(default)), key


def test_debug_lines_reach_the_console(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("gh200.ramp.console_test")
    logger.setLevel(logging.DEBUG)
    monkeypatch.setenv(LEVEL, "INFO")
    show_debug_lines(logger)
    assert not logger.handlers
    monkeypatch.setenv(LEVEL, "DEBUG")
    show_debug_lines(logger)
    show_debug_lines(logger)
    logger.debug("once")
    logger.info("not here: upstream's handler has it")
    assert [line.split("] ")[1] for line in capsys.readouterr().out.splitlines()] == ["once"]


def test_bf16_sums_round_and_float32_ones_do_not() -> None:
    """What the page says about dtypes: 16 micro-batches, added as autograd adds them."""
    off = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.Parameter(torch.ones(1000, dtype=dtype))
        rows_seen = [torch.randn(1000, generator=generator, dtype=torch.float32).bfloat16() for _ in range(16)]
        for row in rows_seen:
            ((weight * row.to(dtype)).sum() / 16).backward()
        mean = torch.stack(rows_seen).double().mean(0)
        off[dtype] = float((weight.grad.double() - mean).norm() / mean.norm())
    assert 0.003 < off[torch.bfloat16] < 0.03
    assert off[torch.float32] < 1e-6
    assert off[torch.float64] < 1e-12


def test_gradient_precision_that_upstream_resets_is_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for asked, warnings in (("fp32", 1), ("unmodified", 0)):
        caplog.clear()
        monkeypatch.setattr(StateHooks, "get_raw_config", lambda asked=asked: {"gradient_precision": asked})
        Trainer(gradient_precision="unmodified").build(target_effective_batch_size=4)
        assert caplog.text.count("gradient_precision fp32 has no effect") == warnings


def test_keys_that_switch_nothing_on_are_noted() -> None:
    settings = read_settings({"gh200_optimizations": {"batch_rampup_shape": "measured"}}, {})
    assert not settings.optimizations.enable_batch_size_rampup
    assert any("batch_rampup_shape alone does not ask for one" in note for note in settings.notes)


# Checkpoints that a kill left


def checkpoint(directory: Path, step: int) -> Path:
    path = directory / f"checkpoint-{step}"
    path.mkdir()
    (path / "training_state.json").write_text(json.dumps({"global_step": step}))
    torch.save({"state": torch.arange(100)}, path / "optimizer.bin")
    save_file({"weight": torch.arange(50.0)}, path / "pytorch_lora_weights.safetensors")
    torch.save({"generator": step}, path / "random_states_0.pkl")
    return path


@pytest.mark.parametrize(
    "name", ["training_state.json", "optimizer.bin", "pytorch_lora_weights.safetensors", "random_states_0.pkl"]
)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_file_cut_short_makes_a_checkpoint_incomplete(tmp_path: Path, name: str, share: float) -> None:
    path = checkpoint(tmp_path, 8) / name
    assert incompleteness(path.parent) == ""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert name in incompleteness(path.parent)
    path.unlink()
    assert bool(incompleteness(path.parent)) == (name in {"training_state.json", "random_states_0.pkl"})


def test_a_rank_that_was_killed_first_makes_a_checkpoint_incomplete(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 8)
    (path / "training_state-rank1-images.json").write_text('{"dp_rank": 1}')
    (path / "training_state-rank7.json").write_text('{"seen_images": {}}')
    assert incompleteness(path) == "", "a dataset's, whatever it is called"
    (path / "training_state-rank1.json").write_text('{"global_step": 8}')
    assert incompleteness(path) == "random_states_1.pkl not there"
    torch.save({"generator": 8}, path / "random_states_1.pkl")
    assert incompleteness(path) == ""


def test_a_checkpoint_that_lacks_what_comes_last_is_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of the datasets are written after the generators: without them a resume would begin them anew."""
    manager = SimpleNamespace(
        CHECKPOINT_MANIFEST_FILENAME="checkpoint_manifest.json", CHECKPOINT_GUARD_FILENAME=".guard"
    )
    monkeypatch.setitem(sys.modules, "simpletuner.helpers.utils.checkpoint_manager", manager)
    path = checkpoint(tmp_path, 8)
    assert incompleteness(path) == "", "an older upstream's"
    record_last_file(path)
    assert incompleteness(path) == "checkpoint_manifest.json not there"
    (path / "checkpoint_manifest.json").write_text("{}")
    assert incompleteness(path) == ""


def test_shards_without_their_list_make_a_checkpoint_incomplete(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, 8)
    shards = path / "pytorch_model_fsdp_0"
    shards.mkdir()
    (shards / "__0_0.distcp").write_bytes(b"shard")
    assert incompleteness(path) == "pytorch_model_fsdp_0/.metadata not there"
    (shards / ".metadata").write_bytes(b"list")
    assert incompleteness(path) == ""


@pytest.mark.parametrize("with_ramp", [True, False])
def test_latest_passes_over_an_incomplete_checkpoint_and_says_so(
    tmp_path: Path, with_ramp: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="gh200.ramp")
    trainer = Trainer()
    if with_ramp:
        trainer.build(target_effective_batch_size=4)
    else:
        assert ramp_apply.build_ramp(trainer, None) is None
    for step in (4, 6, 8):
        checkpoint(tmp_path, step)
    assert trainer.checkpoint_state_latest(str(tmp_path)) == "checkpoint-8"
    assert caplog.text == ""
    (tmp_path / "checkpoint-8" / "random_states_0.pkl").unlink()
    (tmp_path / "checkpoint-6" / "optimizer.bin").write_bytes(b"PK")
    assert trainer.checkpoint_state_latest(str(tmp_path)) == "checkpoint-4"
    assert "checkpoint-8 is incomplete (random_states_0.pkl not there)" in caplog.text
    assert "checkpoint-6 is incomplete (optimizer.bin is cut short)" in caplog.text
    assert "resuming from checkpoint-4" in caplog.text
    shutil.rmtree(tmp_path / "checkpoint-4")
    assert trainer.checkpoint_state_latest(str(tmp_path)) is None
    assert "the run starts anew" in caplog.text
    trainer.config.delete_invalid_checkpoints = True
    assert trainer.checkpoint_state_latest(str(tmp_path)) == "checkpoint-8"


# Units

unit_ramps = st.builds(
    GH200GradientRamp,
    initial_effective_batch_size=st.integers(1, 100),
    target_effective_batch_size=st.integers(1, 100),
    batch_rampup_steps=st.integers(0, 500),
    train_batch_size=st.integers(1, 4),
    num_processes=st.integers(1, 4),
    shape=st.sampled_from(["quadratic", "linear", "staircase"]),
    unit=st.sampled_from(["micro_batches", "samples", "steps"]),
)


def position(ramp: GH200GradientRamp, window: int, micro_batch: int) -> int:
    return {
        "micro_batches": micro_batch,
        "samples": micro_batch * ramp.samples_per_micro_batch,
        "steps": window,
    }[ramp.unit]


@given(unit_ramps)
def test_unit_every_window_is_what_its_position_says(ramp: GH200GradientRamp) -> None:
    micro_batch = 0
    for window in range(150):
        size = ramp.size_at(position(ramp, window, micro_batch))
        assert ramp.accumulation_steps(window) == size
        assert ramp.micro_batches_for(window) == micro_batch
        assert ramp.locate(micro_batch) == (window, 0)
        micro_batch += size
    assert ramp.size_at(ramp.batch_rampup_steps) == ramp.target


def test_unit_lengths_are_in_the_unit() -> None:
    shared: dict[str, Any] = {"shape": "linear", "train_batch_size": 2, "num_processes": 2}
    by_steps = GH200GradientRamp(table=((0, 4), (70, 32)), unit="steps", **shared)
    assert [by_steps.accumulation_steps(step) for step in (0, 69, 70)] == [1, 1, 8]
    by_samples = GH200GradientRamp(4, 32, 4000, unit="samples", **shared)
    over = by_samples.segments[-1]
    assert 4000 <= over.micro_batch * 4 < 4000 + 32


@given(unit_ramps.filter(lambda ramp: ramp.unit == "samples"), st.integers(1, 60), st.integers(1, 4))
def test_unit_samples_go_on_where_they_were_with_other_processes(
    ramp: GH200GradientRamp, window: int, processes: int
) -> None:
    from dataclasses import replace

    samples = ramp.samples_for(window)
    other = replace(ramp, num_processes=processes)
    assert other.fingerprint() == ramp.fingerprint()
    went_on = other.continued_at(window, samples)
    assert went_on.samples_for(window) == samples
    for step in range(window, window + 40):
        assert went_on.accumulation_steps(step) == other.size_at(went_on.samples_for(step))
    assert [went_on.micro_batches_for(step) for step in range(window + 1)] == sorted(
        went_on.micro_batches_for(step) for step in range(window + 1)
    )


def test_unit_a_resume_with_other_processes_is_accepted_in_samples_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gh200.ramp")
    asked = {"initial_effective_batch_size": 4, "target_effective_batch_size": 16, "batch_rampup_steps": 200}
    for unit in ("samples", "micro_batches"):
        trainer = Trainer(train_batch_size=4, max_train_steps=99)
        ramp = trainer.build(**asked, batch_rampup_unit=unit)
        trainer.prepare()
        for step, row in enumerate(rows(ramp.micro_batches_for(9)), start=1):
            trainer.micro_batch(step, row)
        directory = tmp_path / unit
        trainer.accelerator.save_state(str(directory))
        # Twice as many processes are, to the arithmetic, twice the batch.
        later = Trainer(train_batch_size=2, max_train_steps=99)
        later.build(**asked, batch_rampup_unit=unit)
        later.prepare()
        if unit == "micro_batches":
            with pytest.raises(RampError, match="changed since the checkpoint"):
                later.init_resume_checkpoint(None, directory=directory, step=9)
            continue
        later.init_resume_checkpoint(None, directory=directory, step=9)
        now = later._gh200_ramp.ramp
        assert now is later.gh200_ramp_scheduler
        assert (
            now.samples_for(9)
            == ramp.samples_for(9)
            == json.loads((directory / "gh200_ramp.json").read_text())["samples"]
        )
        assert now.size_at(now.samples_for(9)) == now.accumulation_steps(9)
        assert "a micro-batch had 4 samples and has 2 now" in caplog.text


@pytest.mark.parametrize("block", [{"target_effective_batch_size": 16}, {"initial_effective_batch_size": 2}])
def test_unit_sizes_left_out_stay_what_they_were_with_other_processes(tmp_path: Path, block: dict[str, Any]) -> None:
    asked = {**block, "batch_rampup_unit": "samples", "batch_rampup_steps": 200}
    trainer = Trainer(train_batch_size=1, gradient_accumulation_steps=8, max_train_steps=99)
    ramp = trainer.build(**asked)
    trainer.prepare()
    for step, row in enumerate(rows(ramp.micro_batches_for(5)), start=1):
        trainer.micro_batch(step, row)
    trainer.accelerator.save_state(str(tmp_path / "first"))
    for name, previous in (("second", "first"), ("third", "second")):
        later = Trainer(train_batch_size=2, gradient_accumulation_steps=8, max_train_steps=99)
        later.build(**asked)
        later.prepare()
        later.init_resume_checkpoint(None, directory=tmp_path / previous, step=5)
        now = later.gh200_ramp_scheduler
        assert now.sizes == (max(ramp.sizes[0], 2), ramp.sizes[1])
        assert now.samples_for(5) == ramp.samples_for(5)
        later.accelerator.save_state(str(tmp_path / name))
    changed = Trainer(train_batch_size=2, gradient_accumulation_steps=4, max_train_steps=99)
    changed.build(**asked)
    changed.prepare()
    if "target_effective_batch_size" not in block:
        with pytest.raises(RampError, match="target_samples"):
            changed.init_resume_checkpoint(None, directory=tmp_path / "first", step=5)


# Tables


def test_table_the_rows_are_the_windows() -> None:
    ramp = ramp_of({"batch_rampup_table": [[0, 32], [1000, 64], [3000, 16]], "batch_rampup_unit": "samples"})
    assert [ramp.size_at(samples) for samples in (0, 999, 1000, 2999, 3000, 9999)] == [32, 32, 64, 64, 16, 16]
    starts = [segment.micro_batch for segment in ramp.segments]
    assert [segment.size for segment in ramp.segments] == [32, 64, 16]
    assert all(0 <= start - row < 64 for start, row in zip(starts, (0, 1000, 3000), strict=True))
    assert ramp.largest == 64


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=6), st.integers(1, 5))
def test_table_any_table_counts_like_its_definition(rest: list[tuple[int, int]], first: int) -> None:
    starts = [0]
    for gap, _ in rest:
        starts.append(starts[-1] + gap)
    table = tuple(zip(starts, [first, *(size for _, size in rest)], strict=True))
    for unit in ("micro_batches", "samples", "steps"):
        ramp = GH200GradientRamp(table=table, unit=unit, train_batch_size=2)
        micro_batch = 0
        for window in range(80):
            at = position(ramp, window, micro_batch)
            size = ramp.accumulation_for(next(size for start, size in reversed(table) if start <= at))
            assert ramp.accumulation_steps(window) == size
            micro_batch += size
        assert all(one.window < later.window for one, later in pairwise(ramp.segments))


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"batch_rampup_table": [[5, 32], [10, 64]]}, "must start at 0, not at 5"),
        ({"batch_rampup_table": [[0, 32], [10, 64], [10, 8]]}, "the starts must rise; they are 0, 10, 10"),
        ({"batch_rampup_table": [[0, 32]]}, "batch_rampup_table"),
        ({"batch_rampup_table": [[0, 32], [10, 0]]}, "batch_rampup_table"),
        ({"batch_rampup_table": [[0, 32], [10]]}, "batch_rampup_table"),
        ({"batch_rampup_table": [[0, 4], [10, 8]], "target_effective_batch_size": 8}, "beside batch_rampup_table"),
        ({"batch_rampup_table": [[0, 4], [10, 8]], "batch_rampup_steps": 8}, "batch_rampup_steps: has no meaning"),
        ({"target_effective_batch_size": 4, "batch_rampup_unit": "epochs"}, "batch_rampup_unit"),
    ],
)
def test_table_mistakes_are_named(block: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"gh200_optimizations": block}, {})
    assert text in str(caught.value)


# Learning rate without upstream's lr_scale


@pytest.mark.parametrize(("how", "power"), [("linear", 1.0), ("sqrt", 0.5)])
def test_table_the_rate_follows_without_lr_scale(how: str, power: float) -> None:
    trainer = Trainer()
    ramp = trainer.build(batch_rampup_table=[(0, 1), (3, 4), (11, 8)], batch_rampup_lr_scaling=how)
    trainer.prepare(rate=0.5)
    for step, row in enumerate(rows(30), start=1):
        before, window = trainer.weight().detach().clone(), trainer.state["global_step"]
        gradient = trainer.micro_batch(step, row)
        if gradient is not None:
            factor = (ramp.accumulation_steps(window) / 8) ** power
            assert (before - trainer.weight()).allclose(0.5 * factor * gradient, rtol=1e-12)
            assert trainer.logged[-1]["gh200/learning_rate_factor"] == factor
    assert trainer.optimizer.param_groups[0]["lr"] == 0.5
