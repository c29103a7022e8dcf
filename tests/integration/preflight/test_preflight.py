"""Preflight: every wrong key, path, bucket and number of a config, at once, before anything is loaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import job_inputs
import pytest
from PIL import Image

from gh200_lab.place import ROOT
from simpletuner.gh200.config.blocks import loaded_config
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.preflight import check, estimates, startup
from simpletuner.gh200.preflight.buckets import Rules, rules_of
from simpletuner.gh200.preflight.keys import combination_problems, dataset_key_problems, key_problems
from simpletuner.gh200.preflight.memory_estimate import memory_of
from simpletuner.gh200.preflight.model import Weights, find
from simpletuner.gh200.preflight.output_lock import NAME, claim_output
from simpletuner.gh200.preflight.samples import MOST_UNKNOWN, samples_of

# This overlay, whatever fork is built here.
RUN = f"""import runpy, sys, types
package = types.ModuleType("simpletuner"); package.__path__ = [{str(ROOT / "simpletuner")!r}]
sys.modules["simpletuner"] = package
runpy.run_module("simpletuner.gh200.preflight", run_name="__main__", alter_sys=True)"""


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "upstream_record", lambda read, say: (job_inputs.upstream(), ""))


def config(tmp_path: Path, sizes: list[tuple[int, int]], **changes: Any) -> dict[str, Any]:
    job_inputs.images(tmp_path / "images", sizes)
    if not (tmp_path / "model").exists():
        job_inputs.model(tmp_path / "model")
    entry = {"id": "one", "type": "local", "instance_data_dir": str(tmp_path / "images"), "resolution": 64}
    return {
        "model_family": "sdxl",
        "model_type": "lora",
        "optimizer": "torch-adamw",
        "output_dir": str(tmp_path / "output"),
        "pretrained_model_name_or_path": str(tmp_path / "model"),
        "pretrained_vae_model_name_or_path": str(tmp_path / "model"),
        "max_train_steps": 8,
        "num_train_epochs": 0,
        "train_batch_size": 1,
        "datasets": [entry | {"resolution_type": "pixel_area"}],
    } | changes


def problems(made: dict[str, Any], processes: int = 1) -> list[str]:
    return check.preflight(Path("job.json"), made, processes, {}).problems


def test_a_config_that_trains_passes_preflight(tmp_path: Path) -> None:
    report = check.preflight(Path("job.json"), config(tmp_path, [(64, 64)] * 3), 1, {})
    assert report.problems == [] and report.warnings == []
    assert report.facts["length"] == {"steps": 8, "samples": 8, "epochs": pytest.approx(8 / 3)}
    assert report.facts["datasets"][0]["buckets"] == {"1.0": 3}
    assert "can be started" in report.lines()[0]
    assert report.facts["told"]["data one"] == "3 images in 1 bucket, 3 samples an epoch"


def test_names_everything_wrong_at_once(tmp_path: Path) -> None:
    made = config(
        tmp_path, [(64, 64)] * 3, optimizer="adamww", learning_rtae=1e-4, train_batch_size="two", num_train_epochs=2,
        pretrained_model_name_or_path="models/not-there", report_to="tensorbord",
    )  # fmt: skip
    made["datasets"][0]["instance_data_dir"] = str(tmp_path / "nowhere")
    found = "\n".join(problems(made))
    for words in (
        'optimizer: must be one of adamw_bf16, torch-adamw; got "adamww". Did you mean "adamw_bf16"?',
        'learning_rtae: no key of upstream\'s (value 0.0001). Did you mean "learning_rate"?',
        'train_batch_size: must be a whole number; got "two"',
        "num_train_epochs: must be 0 beside max_train_steps 8; got 2",
        "models/not-there does not exist",
        '"tensorbord" is no tracker. Did you mean "tensorboard"?',
        "nowhere",
    ):
        assert words in found, words


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("train_batch_size", 2, False), ("train_batch_size", "2", False), ("train_batch_size", 2.0, True),
        ("train_batch_size", True, True), ("train_batch_size", None, False), ("train_batch_size", "false", False),
        ("learning_rate", "1e-4", False), ("learning_rate", "fast", True), ("learning_rate", 1, False),
        ("disable_bucket_pruning", True, False), ("disable_bucket_pruning", "yes", False),
        ("disable_bucket_pruning", "maybe", True), ("disable_bucket_pruning", False, False),
        ("mixed_precision", "bf16", False), ("mixed_precision", "bf17", True), ("mixed_precision", "", False),
        ("aspect_bucket_alignment", 64, False), ("aspect_bucket_alignment", 63, True),
        ("tread_config", {"a": 1}, False), ("validation_prompt", {"a": 1}, True), ("validation_prompt", True, True),
        ("report_to", "simpletuner,tensorboard", False), ("--learning_rate", 0.1, False), ("validation_steps", 3, False),
        ("$schema", "x.json", False), ("gh200_optimizations", {}, False),
    ],
)  # fmt: skip
def test_reads_a_value_as_upstream_does(key: str, value: object, wrong: bool) -> None:
    found, _ = key_problems({key: value}, job_inputs.upstream())
    assert [problem.path for problem in found if problem.path == key.lstrip("-")] == [key] * wrong


def test_knows_what_upstream_takes_for_short_and_cannot_do_without() -> None:
    found, notes = key_problems({"learning": 1}, job_inputs.upstream())
    assert notes == ['"learning" is taken as the short form of "learning_rate"']
    missing = [problem.path for problem in found]
    assert missing == ["model_family", "model_type", "output_dir", "optimizer", "data_backend_config"]
    again, _ = key_problems({"datasets": [{"id": "a"}]}, job_inputs.upstream())
    assert "data_backend_config" not in [problem.path for problem in again]


def test_rejects_keys_that_stop_upstream_together() -> None:
    made = {"optimizer": "adamw_bf16", "mixed_precision": "no", "num_train_epochs": 1}
    assert "needs" in str(next(combination_problems(made, job_inputs.upstream())))
    assert "64000 pixels" in str(next(combination_problems({"validation_resolution": 64}, job_inputs.upstream())))
    assert "nothing would be trained" in str(next(combination_problems({"num_train_epochs": 0}, job_inputs.upstream())))


def test_finds_a_typo_in_a_dataset() -> None:
    entry = {"id": "a", "repeat": 3, "instance_data_dirs": "x", "my_own_note": 1, "disable": False}
    found = [problem.path for problem in dataset_key_problems([entry], job_inputs.upstream())]
    assert found == ["datasets[0].repeat", "datasets[0].instance_data_dirs"]


def test_names_the_bucket_the_window_and_the_fix(tmp_path: Path) -> None:
    """The issue's own case: three shapes, and a ramp whose largest window the smallest bucket cannot fill."""
    sizes = [(64, 64)] * 20 + [(128, 64)] * 15 + [(64, 128)] * 5
    made = config(
        tmp_path, sizes, gh200_optimizations={"initial_effective_batch_size": 4, "target_effective_batch_size": 32}
    )
    made["datasets"][0] |= {"resolution": 64, "resolution_type": "pixel"}
    (text,) = problems(made)
    assert "bucket 0.5 has 5 images x (0 repeats + 1) = 5 samples (and 2 more buckets)" in text
    assert "train_batch_size 1 x 1 processes x accumulation 32 = 32" in text
    assert "gh200_optimizations.target_effective_batch_size to 5 or less" in text
    assert "datasets[0].repeats to 6" in text
    made["datasets"][0]["repeats"] = 6
    assert problems(made) == []
    assert "2 processes x accumulation 18 = 36" in "\n".join(
        problems(made | {"gh200_optimizations": {"target_effective_batch_size": 36}}, 2)
    )


def test_judges_plain_accumulation_too(tmp_path: Path) -> None:
    made = config(tmp_path, [(64, 64)] * 3, gradient_accumulation_steps=4)
    (text,) = problems(made)
    assert text.startswith("gradient_accumulation_steps:") and "to 3 or less" in text
    assert problems(made | {"allow_dataset_oversubscription": True}) == [
        "allow_dataset_oversubscription: no key of upstream's (value true)."
    ]


def test_uses_the_buckets_upstream_kept(tmp_path: Path) -> None:
    made = config(tmp_path, [(64, 64)] * 4)
    images = tmp_path / "images"
    kept = {"9.0": [str(images / "000.png"), str(images / "001.png"), str(images / "gone.png")]}
    (images / "aspect_ratio_bucket_indices_one.json").write_text(json.dumps({"aspect_ratio_bucket_indices": kept}))
    found = samples_of(made["datasets"][0], 0, made)
    assert found is not None and found.buckets == {"1.0": 2, "9.0": 2}


def test_opens_no_more_images_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(tmp_path, [(64, 64)] * 3)
    monkeypatch.setattr("simpletuner.gh200.preflight.samples.MOST_UNKNOWN", 2)
    assert MOST_UNKNOWN == 10_000
    report = check.preflight(Path("job.json"), made, 1, {})
    assert any("3 images have not been seen" in text for text in report.not_checked) and not report.problems


def test_says_where_model_and_vae_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = config(tmp_path, [(64, 64)] * 3)
    del made["pretrained_vae_model_name_or_path"]
    report = check.preflight(Path("job.json"), made, 1, {"HF_HOME": str(tmp_path / "hf")})
    assert "the model is local, but the VAE madebyollin/sdxl-vae-fp16-fix would be downloaded" in report.warnings[0]
    offline = check.preflight(Path("job.json"), made, 1, {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"})
    assert "HF_HUB_OFFLINE forbids" in offline.problems[0]
    cached = tmp_path / "hf/hub/models--madebyollin--sdxl-vae-fp16-fix/snapshots/abc"
    cached.mkdir(parents=True)
    assert not check.preflight(
        Path("job.json"), made, 1, {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    ).problems
    assert find("models/sdxl", {}).where == "missing" and find("owner/sdxl", {"HF_HOME": "/nowhere"}).where == "hub"
    (made := made)["model_family"] = "sd3"
    assert "is a StableDiffusionXLPipeline: sdxl" in "\n".join(problems(made))


def test_rejects_checkpoints_the_disk_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "free_disk", lambda directory: 10)
    made = config(tmp_path, [(64, 64)] * 3, checkpoint_step_interval=1)
    assert "6 checkpoints take about" in "\n".join(problems(made))


def test_compares_the_weights_with_the_gpus_memory(tmp_path: Path) -> None:
    made = config(tmp_path, [(64, 64)] * 3, optimizer="torch-adamw", model_type="full")

    def found(gpu: int, **changes: Any) -> tuple[list[str], list[str]]:
        report = check.preflight(Path("job.json"), made | changes, 1, {}, gpu=lambda: gpu)
        return report.problems, report.warnings

    # 16 weights: 32 bytes of them, 32 of gradients, 128 of Adam's state.
    assert found(0) == ([], []) and found(192) == ([], [])
    problems, warnings = found(100)
    assert not problems and "weights, gradients and optimizer take about" in warnings[0]
    (problem,), warnings = found(31)
    assert "memory of the GPU: the weights take about" in problem and "managed_memory" in problem and not warnings
    problems, (warning,) = found(31, gh200_optimizations={"managed_memory": "all"})
    assert not problems and '"all"' in warning and "s per optimizer step" in warning and '"auto"' in warning
    assert not [text for text in found(31, ramtorch=True)[0] if "memory of the GPU" in text]
    assert [text for text in found(31, ramtorch="false")[0] if "memory of the GPU" in text]


def test_counts_a_smaller_base_as_smaller(tmp_path: Path) -> None:
    weights = Weights(trained=1000, adapted=10)
    sizes = {
        name: memory_of(weights, {"model_type": "lora", "lora_rank": 1, "base_model_precision": name}).weights
        for name in ("no_change", "int8-quanto", "int8dq-int4-torchao", "nf4-bnb", "fp16-sdnq")
    }
    assert sizes == {
        "no_change": 2040, "int8-quanto": 1040, "int8dq-int4-torchao": 540, "nf4-bnb": 540, "fp16-sdnq": 2040,
    }  # fmt: skip


def test_names_images_that_would_share_one_latent(tmp_path: Path) -> None:
    made = config(tmp_path, [(64, 64)] * 3)
    job_inputs.image(tmp_path / "images" / "001.jpg", caption="a")
    (warning,) = check.preflight(Path("job.json"), made, 1, {}).warnings
    assert "one latent" in warning and "001.jpg, 001.png" in warning


def test_lets_one_run_at_a_time_into_an_output_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other is a process of its own: a killed one holds nothing."""
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    output = tmp_path / "made" / "output"
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r});"
        "from simpletuner.gh200.preflight.output_lock import claim_output;"
        f"claim_output({str(output)!r}, {{}}); print('has it', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-IS", "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "has it\n"
    try:
        with pytest.raises(GH200Error, match=f"process {other.pid} holds it"):
            claim_output(str(output), {})
        claim_output(str(output), {"RANK": "1"})()
        path = tmp_path / "job.json"
        path.write_text(json.dumps(config(tmp_path, [(64, 64)] * 3, output_dir=str(output), cache_config={})))
        monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(path)])
        with pytest.raises(SystemExit) as ended:
            startup.take_config_flag()
        assert ended.value.code == 2
        message = capsys.readouterr().err
        assert "Another run is at work in this output directory." in message and "Traceback" not in message
    finally:
        other.kill()
        other.wait()
    let_go = claim_output(str(output), {"RANK": "0"})
    assert (output / NAME).exists()
    let_go()
    assert not list(output.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(GH200Error, match="cannot be made"):
        claim_output(str(tmp_path / "file" / "output"), {})


@pytest.mark.parametrize(
    ("rules", "size", "bucket"),
    [
        (Rules(1.048576, True), (1000, 1000), "1.0"), (Rules(1.048576, True), (1920, 1080), "1.75"),
        (Rules(1.048576, True), (1080, 1920), "0.57"), (Rules(0.262144, True), (1920, 1080), "1.83"),
        (Rules(1024, False), (1920, 1080), "1.75"), (Rules(64, False), (192, 64), "3.0"),
        (Rules(1.048576, True, True, "square"), (1920, 1080), "1.0"),
        (Rules(1.048576, True, True, "closest", (0.67, 1.0, 1.5)), (1920, 1080), "1.54"),
    ],
)  # fmt: skip
def test_buckets_by_upstreams_arithmetic(rules: Rules, size: tuple[int, int], bucket: str) -> None:
    assert rules.bucket(size) == bucket


def test_takes_a_datasets_own_keys_before_the_configs() -> None:
    rules = rules_of(
        {"resolution": 512, "resolution_type": "pixel_area", "minimum_image_size": 100}, {"resolution": 64}
    )
    assert rules is not None and rules.resolution == pytest.approx(0.262144) and rules.too_small((99, 100))
    assert rules_of({"resolution": "large"}, {}) is None
    assert Rules(1, True, True, "random").unknown


def test_runs_where_a_key_of_ours_is_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert not startup.asked_for({"optimizer": "adamww", "cache_config": None})
    assert startup.asked_for({"cache_config": {}})
    assert not startup.asked_for({"gh200_optimizations": {"preflight": False}})
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not startup.asked_for({"cache_config": {}})


def test_a_training_that_cannot_work_ends_in_preflight_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(config(tmp_path, [(64, 64)] * 3, optimizer="adamww")))
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(path), "--train_batch_size=many"])
    with pytest.raises(SystemExit) as ended:
        startup.take_config_flag()
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "adamww" in message and '"many"' in message and "Traceback" not in message


def test_the_schema_line_does_not_reach_preflight(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"$schema": "a", "seed": 1}')
    assert loaded_config(tmp_path / "a.json") == {"seed": 1}


def test_the_preflight_command_answers_in_json_and_exit_codes(tmp_path: Path) -> None:
    def ran(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "simpletuner.gh200.preflight", *words], cwd=ROOT, capture_output=True, text=True,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)},
        )  # fmt: skip

    done = ran("config/gh200_in_memory_example.json", "--json")
    printed = json.loads(done.stdout)
    assert done.returncode == 2 and printed["ok"] is False and len(printed["problems"]) >= 2
    closed, end = os.pipe()
    os.close(closed)
    cut = subprocess.run(
        [sys.executable, "-c", RUN, "config/gh200_in_memory_example.json"], cwd=ROOT, stdout=end, stderr=subprocess.PIPE
    )
    os.close(end)
    assert cut.returncode == -signal.SIGPIPE and not cut.stderr
    assert ran("config/nowhere.json").returncode == 2 and "Traceback" not in ran("config/nowhere.json").stderr


def test_looks_at_a_thousand_images_without_decoding_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = config(tmp_path, [(64, 64)] * 20)
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("an image was decoded"))
    assert problems(made) == []
