"""From directories as people bring them to a config that preflight accepts, or to one clear error."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import job_inputs
import pytest

from gh200_lab.place import ROOT
from gh200_rebase.patches.patchfile import load_patches
from gh200_rebase.project import _collect
from simpletuner.gh200.cli import new_job
from simpletuner.gh200.preflight import check


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (check, new_job):
        monkeypatch.setattr(module, "upstream_record", lambda read, say: (job_inputs.upstream(), ""))
    keys = job_inputs.upstream().keys
    real = check.key_problems
    # The few keys known here are not all a job writes; a test in the fork asks the real parser.
    monkeypatch.setattr(
        check,
        "key_problems",
        lambda config, known: real({k: v for k, v in config.items() if k in keys or k == "datasets"}, known),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    job_inputs.model(tmp_path / "model")


def made(directory: Path, *words: str) -> dict[str, Any]:
    root = directory.parent
    assert (
        new_job.main([str(directory), "--model", str(root / "model"), "--root", str(root), "--name", "job", *words])
        == 0
    )
    return dict(json.loads((root / "jobs/job/config.json").read_text()))


def test_a_job_from_three_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = made(job_inputs.images(tmp_path / "images", [(64, 64), (200, 64), (64, 200)]), "--steps", "8")
    entry = config["datasets"][0]
    assert config["model_family"] == "sdxl" and config["pretrained_vae_model_name_or_path"] == "model"
    assert entry["instance_data_dir"] == "images" and entry["type"] == "local" and not entry["crop"]
    assert config["gradient_accumulation_steps"] == 4 and entry["repeats"] == 3
    assert config["report_to"] == "simpletuner" and config["validation_prompt"] == "an image 0"
    assert config["enable_multiprocessing"] is True and config["$schema"] == "../../docs/gh200_config.schema.json"
    output = capsys.readouterr().out
    assert output.rstrip().endswith("simpletuner gh200 train jobs/job")


def test_keeps_the_three_shapes_of_forty_images(tmp_path: Path) -> None:
    sizes = [(512, 512)] * 20 + [(768, 512)] * 15 + [(512, 768)] * 5
    config = made(job_inputs.images(tmp_path / "images", sizes), "--resolution", "512")
    entry = config["datasets"][0]
    assert not entry["crop"] and entry["repeats"] == 0 and config["resolution"] == 512
    assert config["max_train_steps"] == 500


def test_keeps_sixty_shapes_and_repeats_all_images(tmp_path: Path) -> None:
    sizes = [(256 + 8 * (number % 60), 512) for number in range(240)]
    config = made(job_inputs.images(tmp_path / "images", sizes), "--resolution", "512", "--effective-batch", "512")
    entry = config["datasets"][0]
    assert not entry["crop"] and "crop_aspect_buckets" not in entry and entry["repeats"] > 9


def test_without_captions_uses_one_sentence(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "my_cat", [(64, 64)] * 3, caption=None)
    entry = made(directory)["datasets"][0]
    assert entry["caption_strategy"] == "instanceprompt" and entry["instance_prompt"] == "my cat"


def test_leaves_out_by_name_what_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 4)
    job_inputs.image(directory / "ink.jpg", mode="CMYK", caption="ink")
    job_inputs.image(directory / "deep.png", mode="I;16", caption="deep")
    job_inputs.image(directory / "moving.gif", mode="P", caption="moving")
    (directory / "empty.png").touch()
    (directory / "broken.jpg").write_text("not an image")
    (directory / "phone.heic").write_bytes(b"\0" * 32)
    (directory / "clip.mp4").write_bytes(b"\0" * 32)
    job_inputs.image(directory / "cut.jpg", (256, 256))
    (directory / "cut.jpg").write_bytes((directory / "cut.jpg").read_bytes()[:-60])
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    entry = made(directory)["datasets"][0]
    output = capsys.readouterr().out
    for words in (
        "empty.png is empty",
        "broken.jpg is no image",
        "phone.heic is HEIC",
        "clip.mp4 is a video",
        "cut.jpg is damaged",
    ):
        assert f"left out: {words}" in output
    linked = {path.name for path in (tmp_path / entry["instance_data_dir"]).iterdir() if path.suffix != ".txt"}
    assert linked == {"000.png", "001.png", "002.png", "003.png", "ink.jpg", "deep.png", "moving.gif"}
    assert (tmp_path / entry["instance_data_dir"] / "ink.txt").read_text() == "ink"
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_with_some_captions_names_the_others_or_gives_them_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 3)
    job_inputs.image(directory / "wordless.png")
    entry = made(directory)["datasets"][0]
    assert "left out: wordless.png has no caption" in capsys.readouterr().out
    assert not (tmp_path / entry["instance_data_dir"] / "wordless.png").exists()
    assert (
        new_job.main(
            [
                str(directory),
                "--model",
                str(tmp_path / "model"),
                "--root",
                str(tmp_path),
                "--name",
                "b",
                "--caption",
                "all",
            ]
        )
        == 0
    )
    assert (tmp_path / "jobs/b/images/wordless.txt").read_text() == "all"


def test_reads_captions_from_one_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 3, caption=None)
    table = pyarrow.table({"file_name": ["000.png", "001", "sub/002.png"], "caption": ["null", "eins", None]})
    parquet.write_table(table, directory / "captions.parquet")
    entry = made(directory)["datasets"][0]
    images = tmp_path / entry["instance_data_dir"]
    assert {path.name: path.read_text() for path in images.glob("*.txt")} == {"000.txt": "null", "001.txt": "eins"}
    assert not (images / "002.png").exists() and not list(directory.glob("*.txt"))


def test_takes_spaces_umlauts_and_nested_directories(tmp_path: Path) -> None:
    directory = tmp_path / "Ünser Ördner"
    job_inputs.image(directory / "Ö ne" / "bild eins.png", caption="größe")
    job_inputs.image(directory / "b" / "c" / "zwei.png", caption="zwei")
    assert new_job.main([str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path)]) == 0
    (job,) = (tmp_path / "jobs").iterdir()
    config = json.loads((job / "config.json").read_text(encoding="utf-8"))
    data = Path(config["datasets"][0]["instance_data_dir"])
    assert data.is_absolute() and data.name == "Ünser Ördner" and " " not in job.name
    assert config["validation_prompt"] == "zwei"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["empty"], "There is no image"), (["nowhere"], "does not exist"),
        (["images", "--model", "models/x"], "The model does not exist"), (["images", "--family", "sdxxl"], 'Did you mean "sdxl"'),
        (["images/000.png"], "The directory is a file."), (["images", "--root", "nowhere"], "--root"),
        (["images", "--model", "model", "--processes", "2"], "this machine has 0 GPUs"),
        (["images", "--model", "images"], "name the directory that holds that file"),
        (["images", "--name", "../a"], "cannot be the name"), (["images", "--name", "taken"], "nothing of it was changed"),
    ],
)  # fmt: skip
def test_ends_in_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "jobs/taken").mkdir(parents=True)
    job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    assert new_job.main(["--root", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["taken"]


def test_never_writes_over_a_job_and_finds_a_free_name(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    for _ in range(2):
        assert new_job.main([str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["images", "images-2"]


def test_leaves_nothing_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    monkeypatch.setattr(
        "simpletuner.gh200.new_job.write.json.dumps",
        lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")),
    )
    assert new_job.main([str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path)]) == 2
    assert "No space left" in capsys.readouterr().err and not list((tmp_path / "jobs").iterdir())


def test_a_job_for_another_family(tmp_path: Path) -> None:
    job_inputs.model(tmp_path / "m3", "StableDiffusion3Pipeline", "transformer")
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    words = [str(directory), "--model", str(tmp_path / "m3"), "--name", "l", "--root", str(tmp_path)]
    assert new_job.main(words) == 0
    config = json.loads((tmp_path / "jobs/l/config.json").read_text())
    assert config["model_family"] == "sd3" and config["lora_type"] == "standard" and config["lora_rank"] == 16


@pytest.mark.parametrize("suffix", [".caption", ".TXT"])
def test_reads_captions_of_other_tools(tmp_path: Path, suffix: str) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 3, caption=None)
    for number in range(3):
        (directory / f"00{number}{suffix}").write_text(f"eins {number}\n")
    config = made(directory)
    images = tmp_path / config["datasets"][0]["instance_data_dir"]
    assert [path.read_text() for path in sorted(images.glob("*.txt"))] == ["eins 0", "eins 1", "eins 2"]
    assert config["validation_prompt"] == "eins 0" and not list(directory.glob("*.txt"))


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_reads_captions_from_a_table_of_lines(tmp_path: Path, name: str) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2, caption=None)
    rows = ['{"file_name": "000.png", "text": "null"}', '{"file_name": "001.png", "text": "eins"}']
    text = "\n".join(rows) if name.endswith("jsonl") else 'file_name,text\n000.png,null\n001.png,"eins"\n'
    (directory / name).write_text(text)
    images = tmp_path / made(directory)["datasets"][0]["instance_data_dir"]
    assert {path.name: path.read_text() for path in images.glob("*.txt")} == {"000.txt": "null", "001.txt": "eins"}


def test_names_captions_that_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 3)
    (directory / "001.txt").write_bytes("café".encode("latin-1"))
    made(directory)
    assert "left out: 001.png has a caption that cannot be used: 001.txt is not UTF-8" in capsys.readouterr().out
    for name in ("000.txt", "002.txt"):
        (directory / name).write_bytes(b"\xff\xfe")
    assert new_job.main([str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path)]) == 2
    assert "No caption can be read." in capsys.readouterr().err


def test_leaves_out_an_image_that_would_share_a_latent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Upstream names a latent after the image without its suffix: two would share one, in silence."""
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    job_inputs.image(directory / "000.jpg", (128, 64))
    (directory / "001.jpg").write_text("not an image")
    images = tmp_path / made(directory)["datasets"][0]["instance_data_dir"]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "suffix only" in line]
    assert "left out: 000.png " in line and "000.jpg" in line and "rename" in line
    assert {path.name for path in images.iterdir() if path.suffix != ".txt"} == {"000.jpg", "001.png"}
    assert (images / "000.txt").read_text() == "an image 0"


def test_leaves_out_names_no_config_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    (directory / os.fsdecode(b"\xff.png")).write_bytes((directory / "000.png").read_bytes())
    (directory / os.fsdecode(b"\xff.mp4")).touch()
    made(directory)
    output = capsys.readouterr().out
    assert "left out: \\xff.png has a name that is not UTF-8" in output and "\\xff.mp4 is a video" in output
    (tmp_path / os.fsdecode(b"b\xff")).mkdir()
    assert new_job.main([os.fsdecode(b"b\xff"), "--root", str(tmp_path)]) == 2
    assert "name is not UTF-8" in capsys.readouterr().err


def test_a_name_taken_meanwhile_is_rejected_or_numbered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    real = new_job.free_name

    def slow(root: Path, wanted: str | None, named: Path) -> str:
        name = real(root, wanted, named)
        if name in ("images", "mine"):
            (root / "jobs" / name).mkdir(parents=True)
            (root / "jobs" / name / "config.json").write_text("theirs")
        return name

    monkeypatch.setattr(new_job, "free_name", slow)
    words = [str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path)]
    assert new_job.main([*words, "--name", "mine"]) == 2
    assert "There is a job of that name; nothing of it was changed." in capsys.readouterr().err
    assert new_job.main(words) == 0
    assert sorted(path.name for path in (tmp_path / "jobs").iterdir()) == ["images", "images-2", "mine"]
    assert (
        (tmp_path / "jobs/mine/config.json").read_text()
        == (tmp_path / "jobs/images/config.json").read_text()
        == "theirs"
    )
    assert json.loads((tmp_path / "jobs/images-2/config.json").read_text())["output_dir"] == "jobs/images-2/output"


def test_an_earlier_job_of_the_name_keeps_its_buckets(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    (directory / "aspect_ratio_bucket_indices_job.json").write_text("{}")
    config = made(directory)
    assert config["datasets"][0]["id"] == "job-2" and config["output_dir"] == "jobs/job/output"


def test_a_job_that_could_not_work_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    words = [str(directory), "--model", str(tmp_path / "model"), "--root", str(tmp_path), "--name", "job"]
    assert new_job.main([*words, "--vae", "models/none"]) == 2
    message = capsys.readouterr().err
    assert (
        "No job was made" in message
        and "models/none does not exist" in message
        and not list((tmp_path / "jobs").iterdir())
    )
    assert new_job.main(words) == 0


@pytest.mark.parametrize("words", ["--resolution=8", "--resolution=100000", "--steps=0", "--processes=two"])
def test_rejects_a_number_that_cannot_be_meant(tmp_path: Path, words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        new_job.main([str(tmp_path), words])
    assert ended.value.code == 2


def test_a_job_of_a_few_steps_has_the_batch_it_says(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)])
    config = made(directory, "--steps", "1")
    assert "target_effective_batch_size" not in config["gh200_optimizations"]
    assert config["gradient_accumulation_steps"] == 4 and config["datasets"][0]["repeats"] == 3


def test_takes_a_vae_from_where_the_command_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    (tmp_path / "place" / "own vae").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "place")
    assert made(directory, "--vae", "own vae")["pretrained_vae_model_name_or_path"] == "place/own vae"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_links_to_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    directory.chmod(0o555)
    assert made(directory)["datasets"][0]["instance_data_dir"] == "jobs/job/images"


def test_jobs_are_no_business_of_gits() -> None:
    done = subprocess.run(["git", "check-ignore", "jobs/first/config.json"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "jobs/first/config.json"


def test_what_an_operator_keeps_beside_our_configs_is_no_part_of_a_new_jobs_fork(tmp_path: Path) -> None:
    """Patch 07 takes committed files of config/; a tree without git has nothing to ask, and takes all."""
    patch = next(patch for patch in load_patches(ROOT / "patches") if patch.number == 7)
    (copied,) = [copy for copy in patch.files if copy.source == "config"]
    assert copied.committed
    (tmp_path / "config").mkdir()
    for name in ("ours.json", "theirs.json"):
        (tmp_path / "config" / name).write_text("{}")
    some: Any = SimpleNamespace(files=(copied,), path=patch.path)
    assert sorted(_collect(tmp_path, some)) == ["config/ours.json", "config/theirs.json"]
    for words in (["init", "-q"], ["add", "config/ours.json"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert sorted(_collect(tmp_path, some)) == ["config/ours.json"]
