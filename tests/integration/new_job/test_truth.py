"""new-job reports what it will train: crops, captions, repeats, what is left out, and where a file is broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import job_inputs
import pytest
from PIL import Image

from simpletuner.gh200.cli import new_job
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.new_job.captions import with_captions
from simpletuner.gh200.new_job.contact_sheet import MOST_IMAGES
from simpletuner.gh200.new_job.images import look_at
from simpletuner.gh200.new_job.model import choose_model
from simpletuner.gh200.preflight import check
from simpletuner.gh200.preflight.upstream_keys import Upstream, upstream_record

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (check, new_job):
        monkeypatch.setattr(module, "upstream_record", lambda read, say: (job_inputs.upstream(), ""))
    monkeypatch.setattr(check, "key_problems", lambda config, known: ([], []))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    job_inputs.model(tmp_path / "model")


def make(directory: Path, *words: str) -> int:
    root = directory.parent
    return new_job.main([str(directory), "--model", str(root / "model"), "--root", str(root), "--name", "job", *words])


def config(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "jobs/job/config.json").read_text()))


def line(output: str, name: str) -> str:
    (found,) = [line for line in output.splitlines() if line.split()[:1] == [name]]
    return found


# Crops


def test_crops_are_counted_with_what_they_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [(96, 64)] * 26 + [(64, 64)] * 14
    assert make(job_inputs.images(tmp_path / "images", sizes)) == 0
    cropping = line(capsys.readouterr().out, "cropping")
    assert "26 of 40 images" in cropping and "33%" in cropping and "000.png" in cropping
    assert config(tmp_path)["datasets"][0]["crop_style"] == "center"


def test_images_that_fit_their_bucket_are_not_cropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make(job_inputs.images(tmp_path / "images", [(512, 512)] * 3 + [(128, 512)] * 2), "--resolution", "256") == 0
    assert "no image loses" in line(capsys.readouterr().out, "cropping")


def test_the_contact_sheet_shows_what_is_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    striped = Image.new("RGB", (192, 64), "red")
    striped.paste("lime", (64, 0, 128, 64))
    striped.save(directory / "striped.png")
    (directory / "striped.txt").write_text("stripes")
    # 192 x 64 becomes 128 x 64: of each red third, one half is cropped away.
    assert make(directory, "--resolution", "64") == 0
    assert "contact_sheet.png" in line(capsys.readouterr().out, "cropping")
    with Image.open(tmp_path / "jobs/job/contact_sheet.png") as sheet:
        row = [sheet.convert("RGB").getpixel((4 + x, 4 + 32)) for x in range(128)]
    red = [isinstance(pixel, tuple) and pixel[0] > pixel[1] for pixel in row]
    assert sum(red) == pytest.approx(64, abs=4) and red[0] and red[-1] and not red[64]


def test_the_contact_sheet_has_the_most_cropped_of_many(tmp_path: Path) -> None:
    assert make(job_inputs.images(tmp_path / "images", [(64, 64)] * (MOST_IMAGES + 5)), "--steps", "8") == 0
    with Image.open(tmp_path / "jobs/job/contact_sheet.png") as sheet:
        assert sheet.size[0] > sheet.size[1] > 0


# Models of the hub


@pytest.mark.fork
def test_hub_names_of_known_families_are_recognised() -> None:
    upstream, why = upstream_record(True, lambda text: None)
    assert upstream is not None, why
    model = choose_model("black-forest-labs/FLUX.1-dev", None, None, upstream, {})
    assert (model.family, model.flavour, model.vae) == ("flux", "dev", "black-forest-labs/FLUX.1-dev")
    assert choose_model("stabilityai/stable-diffusion-xl-base-1.0", None, None, upstream, {}).family == "sdxl"


def test_an_unknown_hub_name_needs_a_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    words = [str(directory), "--root", str(tmp_path), "--name", "job", "--model", "somebody/model"]
    assert new_job.main(words) == 2
    message = capsys.readouterr().err
    assert "somebody/model" in message and "--family" in message and "sd3" in message
    assert not (tmp_path / "jobs").exists()
    assert choose_model("somebody/model", "sd3", None, job_inputs.upstream(), {}).family == "sd3"


def test_a_hub_name_is_recognised_in_any_case() -> None:
    known: Upstream = job_inputs.upstream()
    assert choose_model("StabilityAI/SD3", None, None, known, {}).family == "sd3"


# Captions


def test_the_caption_in_use_is_shown_where_there_were_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "my_cat", [(64, 64)] * 2, caption=None)
    assert make(directory) == 0
    assert "'my cat'" in line(capsys.readouterr().out, "caption")


def test_kohya_directories_mean_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "images"
    job_inputs.images(directory / "10_my_cat", [(64, 64)] * 8, caption=None)
    job_inputs.images(directory / "3_dog", [(64, 64)] * 8, caption=None)
    assert make(directory) == 0
    cat, dog, text = config(tmp_path)["datasets"]
    assert (cat["repeats"], dog["repeats"]) == (9, 2) and text["dataset_type"] == "text_embeds"
    assert (cat["instance_prompt"], dog["instance_prompt"]) == ("my cat", "dog")
    assert cat["instance_data_dir"].endswith("10_my_cat") and cat["id"] != dog["id"]
    assert cat["cache_dir_vae"] != dog["cache_dir_vae"]
    assert "10_my_cat 9" in line(capsys.readouterr().out, "batch")


def test_a_directory_that_is_named_so_itself_means_repeats(tmp_path: Path) -> None:
    assert make(job_inputs.images(tmp_path / "5_cat", [(64, 64)] * 8, caption=None)) == 0
    assert config(tmp_path)["datasets"][0]["repeats"] == 4
    assert config(tmp_path)["datasets"][0]["instance_prompt"] == "cat"


# What is left out


def test_notes_are_grouped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 12)
    job_inputs.images(directory / "bare", [(64, 64)] * 8, caption=None)
    for number in range(3):
        job_inputs.image(directory / f"tiny{number}.png", (8 + number, 8))
    assert make(directory, "--steps", "8") == 0
    output = capsys.readouterr().out
    (bare,) = [line for line in output.splitlines() if "no caption" in line and "left out" in line]
    assert "8 images have no caption" in bare and "bare/000.png, bare/001.png" in bare and "3 more" in bare
    (tiny,) = [line for line in output.splitlines() if "too small" in line]
    assert "3 images" in tiny and "tiny0.png" in tiny


def test_a_job_that_would_leave_out_most_images_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)])
    job_inputs.images(directory / "bare", [(64, 64)] * 1500, caption=None)
    assert make(directory) == 2
    message = capsys.readouterr().err
    assert "1,500 of 1,501" in message and "1,500 images have no caption" in message and "--caption" in message
    assert not (tmp_path / "jobs").exists()
    assert make(directory, "--caption", "all", "--steps", "8") == 0


def test_transparency_links_and_other_files_are_counted(tmp_path: Path) -> None:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2)
    job_inputs.image(directory / "clear.png", mode="RGBA", caption="a")
    job_inputs.image(directory / "clear.webp.webp", mode="RGBA", caption="b")
    (directory / "link.png").symlink_to(directory / "000.png")
    (directory / "notes.md").write_text("mine")
    notes = look_at(directory).notes
    assert [note.partition(" ")[0] for note in notes] == ["2", "1", "1"]
    for note, what, name in zip(
        notes, ("transparency", "links", "no images"), ("clear.png", "link.png", "notes.md"), strict=True
    ):
        assert what in note and name in note


def table(tmp_path: Path, *lines: str) -> Path:
    directory = job_inputs.images(tmp_path / "images", [(64, 64)] * 2, caption=None)
    (directory / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def test_duplicate_and_unknown_rows_are_counted(tmp_path: Path) -> None:
    rows = [("000.png", "first"), ("000.png", "second"), ("001.png", "b"), ("gone.png", "c"), ("lost.png", "d")]
    text = [json.dumps({"file_name": name, "caption": caption}) for name, caption in rows]
    directory, _ = with_captions(look_at(table(tmp_path, *text)))
    assert directory.captions == {"000.png": "second", "001.png": "b"}
    twice, unknown = directory.notes
    assert "1 files" in twice and "000.png" in twice
    assert "2 rows" in unknown and "gone.png, lost.png" in unknown


@pytest.mark.parametrize("broken", ['{"file_name": "001.png", "caption": }', "[1, 2]", "7"])
def test_a_broken_line_is_named_by_its_own_number(tmp_path: Path, broken: str) -> None:
    directory = table(tmp_path, '{"file_name": "000.png", "caption": "a"}', "", broken)
    with pytest.raises(GH200Error) as caught:
        with_captions(look_at(directory))
    assert "line 3" in caught.value.why and caught.value.where.endswith("metadata.jsonl")
