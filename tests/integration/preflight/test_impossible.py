"""What no training can use is rejected by name before anything is loaded; estimates come before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import job_inputs
import pytest

from simpletuner.gh200.config.config_file import read_config_file
from simpletuner.gh200.errors import ConfigFileError
from simpletuner.gh200.memory.limits import GB
from simpletuner.gh200.preflight import check, estimates
from simpletuner.gh200.preflight.estimates import seconds_per_micro_batch
from simpletuner.gh200.preflight.impossible import FOREIGN, checkpoint_problems, range_problems
from simpletuner.gh200.preflight.keys import combination_problems, key_problems
from simpletuner.gh200.preflight.model import source_problems
from simpletuner.gh200.preflight.report import Report
from simpletuner.gh200.preflight.upstream_keys import upstream_record
from simpletuner.gh200.preflight.window_check import WindowBound
from simpletuner.gh200.telemetry.record import Record, Seconds, WindowMetrics


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("max_train_steps", -5, "negative"),
        ("lora_rank", 0, "at least 1"),
        ("lora_rank", "-1", "at least 1"),
        ("resolution", -1, "above 0"),
        ("learning_rate", -1e-4, "negative"),
        ("learning_rate", "nan", "negative"),
        ("--train_batch_size", 0, "at least 1"),
        ("caption_dropout_probability", 1.5, "from 0 to 1"),
    ],
)
def test_a_value_out_of_range_is_named(key: str, value: object, wanted: str) -> None:
    (problem,) = range_problems({key: value})
    assert problem.path == key.lstrip("-") and wanted in problem.message and str(value) in problem.message


def test_values_in_range_and_text_are_no_business_of_the_ranges() -> None:
    fine = {
        "max_train_steps": 0,
        "lora_rank": 1,
        "resolution": 0.5,
        "learning_rate": "1e-4",
        "ema_decay": 1,
        "seed": -1,
    }
    assert not list(
        range_problems({**fine, "validation_resolution": "64x64", "lora_alpha": None, "max_grad_norm": "x"})
    )


def test_a_value_out_of_range_in_a_dataset_is_named_with_its_place() -> None:
    (problem,) = range_problems({}, [{"id": "a", "repeats": 0}, {"id": "b", "repeats": -2}])
    assert problem.path == "datasets[1].repeats"


def test_a_named_checkpoint_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    config = {"output_dir": str(tmp_path), "resume_from_checkpoint": "checkpoint-500"}
    (problem,) = checkpoint_problems(config)
    assert problem.path == "resume_from_checkpoint" and "checkpoint-5" in problem.message.replace("checkpoint-500", "")
    for fine in ("latest", "checkpoint-5", "elsewhere/checkpoint-5/", None, "s3://bucket/checkpoint-9"):
        assert not list(checkpoint_problems({**config, "resume_from_checkpoint": fine}))


@pytest.mark.parametrize(
    ("theirs", "ours"), [("network_dim", "lora_rank"), ("linear_alpha", "lora_alpha"), ("lr", "learning_rate")]
)
def test_a_key_of_another_trainer_is_answered_with_our_name(theirs: str, ours: str) -> None:
    problems, notes = key_problems({theirs: 16}, job_inputs.upstream())
    (problem,) = [problem for problem in problems if problem.path == theirs]
    assert f'"{ours}"' in problem.message and not notes


@pytest.mark.fork
def test_every_name_offered_is_a_key_of_upstream() -> None:
    upstream, why = upstream_record(True, lambda text: None)
    assert upstream is not None, why
    options = {option for known in upstream.keys.values() for option in known["options"]}
    targets = {ours for ours in FOREIGN.values() if not ours.startswith("datasets[]")}
    assert targets <= options
    assert not set(FOREIGN) & options, "a key of upstream's is no foreign one"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('model_family = "sdxl"\n[gh200_optimizations]\nprofile = "auto"\n', "this is TOML"),
        ('{\n  "a": 1, // why\n  "b": 2\n}', "line 2 has a comment"),
        ('{\n  # why\n  "a": 1\n}', "line 2 has a comment"),
        ('{"a": 1,}', "comma"),
        ('{"a" 1}', "':' delimiter"),
    ],
)
def test_what_json_does_not_have_is_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as caught:
        read_config_file(path)
    assert why in caught.value.why and caught.value.where == str(path)


def test_keys_that_are_not_written_are_no_subject() -> None:
    upstream = job_inputs.upstream()
    (problem,) = combination_problems({"max_train_steps": 8}, upstream)
    assert problem.path == "max_train_steps" and '"num_train_epochs": 0' in problem.message
    found = [found for _, found in source_problems({"model_family": "sdxl"}, upstream, {"HF_HUB_OFFLINE": "1"})]
    assert found and all(str(problem).startswith("model_family: upstream's default ") for problem in found)


def config(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    job_inputs.images(tmp_path / "images", [(64, 64)] * 4)
    job_inputs.model(tmp_path / "model")
    entry = {"id": "one", "instance_data_dir": str(tmp_path / "images"), "resolution": 64, "repeats": 1}
    return {
        "model_family": "sdxl",
        "model_type": "lora",
        "output_dir": str(tmp_path / "output"),
        "pretrained_model_name_or_path": str(tmp_path / "model"),
        "pretrained_vae_model_name_or_path": str(tmp_path / "model"),
        "max_train_steps": 16,
        "num_train_epochs": 0,
        "train_batch_size": 1,
        "datasets": [entry | {"type": "in_memory"}],
    } | changes


def report_of(made: dict[str, Any]) -> Report:
    return check.preflight(Path("job.json"), made, 1, {}, keys=False, gpu=lambda: 96 * GB)


def test_a_bucket_too_small_is_no_fault_of_a_key_that_is_not_written(tmp_path: Path) -> None:
    made = config(tmp_path)
    made["datasets"][0]["train_batch_size"] = 16
    (problem,) = report_of(made).problems
    assert problem.startswith("datasets[0]: ") and "set gradient_accumulation_steps" not in problem
    (problem,) = report_of(made | {"gradient_accumulation_steps": 1}).problems
    assert problem.startswith("gradient_accumulation_steps: ")


def test_estimates_come_before_the_start(tmp_path: Path) -> None:
    report = report_of(config(tmp_path))
    lines = "\n".join(report.lines())
    assert report.facts["seen"] == {"one": 4.0} and "4 times (one)" in lines
    assert report.facts["minutes"] is None and "unknown" in lines
    assert report.facts["memory"]["weights"] > 0 and "the GPU has 96.0 GB" in lines
    assert "datasets" in lines and "can be used" in lines
    assert report.facts["checkpoints"]["free"] > 0 and "checkpoints about" in lines


def telemetry(output: Path, effective: int = 4) -> None:
    output.mkdir()
    record = Record(
        kind="end", run="a", rank=0, ranks=1, host="h", pid=1, began=1.0, time=2.0, interval=10, step=2,
        seconds=Seconds(micro_batches=10, data=1.0, compute=3.0, other=1.0),
        window=WindowMetrics(accumulation_steps=4, effective_batch_size=effective),
    )  # fmt: skip
    (output / "gh200_telemetry.rank0.jsonl").write_bytes(record.line())


def test_minutes_come_from_the_telemetry_of_an_earlier_run(tmp_path: Path) -> None:
    telemetry(tmp_path / "output")
    report = report_of(config(tmp_path, max_train_steps=240))
    assert report.facts["minutes"] == 2.0 and "about 2 minutes" in "\n".join(report.lines())


def test_micro_batches_of_another_size_say_nothing_of_the_time(tmp_path: Path) -> None:
    telemetry(tmp_path / "output", effective=8)
    assert seconds_per_micro_batch(str(tmp_path / "output"), WindowBound(1, 1, 1, "")) is None
    assert seconds_per_micro_batch(str(tmp_path / "output"), WindowBound(2, 1, 1, "")) == 0.5
    (tmp_path / "output/gh200_telemetry.rank0.jsonl").write_text(json.dumps({"broken": 1}))
    assert seconds_per_micro_batch(str(tmp_path / "output"), WindowBound(2, 1, 1, "")) is None


def test_a_full_disk_is_a_problem_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_disk", lambda directory: 1)
    made = config(tmp_path, checkpoint_step_interval=4)
    (problem,) = report_of(made).problems
    assert problem.startswith("disk: ") and "checkpoints_total_limit" not in problem


def test_nothing_is_estimated_from_a_number_out_of_range(tmp_path: Path) -> None:
    report = report_of(config(tmp_path, max_train_steps=-5))
    assert [problem.partition(":")[0] for problem in report.problems] == ["max_train_steps"]
    assert "length" not in report.facts and "checkpoints" not in report.facts
