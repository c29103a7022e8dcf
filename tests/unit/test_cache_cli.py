"""The caches' own command: what lies where, and what is removed and what is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.place import ROOT
from simpletuner.gh200.caches.command import main


def entries(folder: Path, count: int, age: float = 0, size: int = 1000) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{number}.pt" for number in range(count)]
    for path in made:
        path.write_bytes(bytes(size))
        os.utime(path, (time.time() - age,) * 2)
    return made


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two datasets, one with a folder of its own; one of a former config; a run that was killed and one that lives."""
    monkeypatch.chdir(tmp_path)
    datasets = [
        {"id": "photos", "type": "local", "instance_data_dir": "photos"},
        {"id": "own", "type": "local", "cache_dir_vae": "mine/{model_family}/{id}"},
        {"id": "far", "type": "aws"},
    ]
    unified = {"vae_cache_type": "unified_memory", "text_cache_type": "unified_memory", "cache_dir": "cache"}
    config = {"model_family": "sdxl", "output_dir": "out", "datasets": datasets, "cache_config": unified}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "photos").mkdir()
    entries(tmp_path / "cache/vae/sdxl/photos", 3, age=40 * 86400)
    entries(tmp_path / "cache/vae/sdxl/photos/deeper", 1)
    entries(tmp_path / "mine/sdxl/own", 2)
    entries(tmp_path / "cache/text/sdxl/text-embeds", 4)
    entries(tmp_path / "cache/vae/flux/photos", 5)
    host = socket.gethostname()
    entries(tmp_path / f"cache/gh200-run-{host}-999999999-abc/vae/sdxl/photos", 1)
    entries(tmp_path / f"cache/gh200-run-{host}-{os.getpid()}-abc/vae/sdxl/photos", 1)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["list", "config.json", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_cache_cli_lists_what_lies_where(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [(one["dataset"], one["model"], one["path"], one["entries"], one["bytes"]) for one in listed(capsys)]
    assert found[:3] == [
        ("photos", "sdxl", "cache/vae/sdxl/photos", 4, 4000),
        ("own", "sdxl", "mine/sdxl/own", 2, 2000),
        ("text-embeds", "sdxl", "cache/text/sdxl/text-embeds", 4, 4000),
    ]
    assert ("photos", "flux", "cache/vae/flux/photos", 5, 5000) in found and len(found) == 6
    assert main(["list", "config.json"]) == 0
    table = capsys.readouterr().out
    assert "stale: no dataset of this config uses it" in table and "stale: left by a run that was killed" in table
    assert f"in use: process {os.getpid()}" in table and "17 entries, 17.0 KB in 6 folders" in table


def test_cache_cli_says_that_sources_are_newer(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not listed(capsys)[0]["stale"]
    (place / "photos/a.png").write_bytes(b"new")
    (place / "photos/a.txt").write_bytes(b"a caption is no picture")
    assert listed(capsys)[0]["stale"] == "1 files of photos are newer than its oldest entry"


def test_cache_cli_links_that_lead_nowhere_and_other_things_are_no_entries(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listed(capsys)[0]
    cache = place / "cache/vae/sdxl/photos"
    for folder, name in ((place / "photos", "gone.png"), (cache, "gone.pt")):
        (folder / name).symlink_to("nowhere")
        (folder / f"loop-{name}").symlink_to(f"loop-{name}")
    os.mkfifo(cache / "pipe.pt")
    (cache / "folder.pt").mkdir()
    assert listed(capsys)[0] == before
    assert main(["clear", "config.json", "--dataset", "photos", "--yes"]) == 0
    assert sorted(path.name for path in cache.iterdir()) == ["folder.pt", "gone.pt", "loop-gone.pt", "pipe.pt"]


def test_cache_cli_a_name_that_is_no_text(place: Path) -> None:
    entries(Path(os.fsdecode(os.fsencode(place) + b"/cache/vae/sdxl/caf\xe9")), 1)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SIMPLETUNER_SKIP_TORCH": "1"}
    command = [sys.executable, "-m", "simpletuner.gh200.caches", "list", "config.json"]
    strict = environment | {"PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, env=strict, capture_output=True, text=True)
    assert done.returncode == 0 and "caf\\udce9" in done.stdout, done.stderr


def test_cache_cli_ctrl_c_at_the_question_removes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", interrupted)
    assert main(["clear", "config.json"]) == 1 and len(list(place.rglob("*.pt"))) == 17


def test_cache_cli_clear_names_asks_and_keeps_what_is_not_its_own(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = place / "cache/vae/sdxl/photos/notes.txt"
    notes.write_text("mine")
    for answer, left in (("n", 4), ("", 4), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert main(["clear", "config.json", "--dataset", "photos"]) == (0 if answer == "y" else 1)
        told = capsys.readouterr().out
        assert "4 entries, 4.0 KB: cache/vae/sdxl/photos (photos)" in told
        assert len(list((place / "cache/vae/sdxl").rglob("*.pt"))) == left
    assert notes.exists() and not (notes.parent / "deeper").exists()
    assert len(list((place / "mine").rglob("*.pt"))) == 2 and len(list((place / "cache/text").rglob("*.pt"))) == 4


def test_cache_cli_clear_by_age_and_staleness(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clear", "config.json", "--older-than", "30d", "--yes"]) == 0
    assert sum(one["entries"] for one in _after(capsys)) == 14
    assert main(["clear", "config.json", "--stale", "--yes"]) == 0
    left = {one["path"]: one["entries"] for one in _after(capsys)}
    assert "cache/vae/flux/photos" not in left and left["cache/text/sdxl/text-embeds"] == 4
    assert [path for path in left if "gh200-run" in path] == [
        f"cache/gh200-run-{socket.gethostname()}-{os.getpid()}-abc"
    ]
    assert main(["clear", "config.json", "--yes"]) == 0
    assert [one["entries"] for one in _after(capsys) if one["entries"]] == [1], "what a living run uses stays"
    assert main(["clear", "config.json", "--yes"]) == 0 and "nothing to remove" in capsys.readouterr().out


def _after(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    return listed(capsys)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "nowhere.json"], "cannot be read"),
        (["clear", "config.json", "--dataset", "fotos"], "no cache of a dataset fotos"),
        (["list", "empty.json"], "names no datasets"),
        (["list", "wrong.json"], "vae_cache_typ"),
    ],
)
def test_cache_cli_bad_input_is_one_error_that_says_how(
    place: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    (place / "empty.json").write_text('{"model_family": "sdxl"}')
    (place / "wrong.json").write_text('{"cache_config": {"vae_cache_typ": "disk"}}')
    assert main(arguments) == 2
    assert told in capsys.readouterr().err


def test_cache_cli_refuses_an_age_it_cannot_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["clear", "config.json", "--older-than", "soon"])
    assert ended.value.code == 2 and "write 90m, 12h, 30d or 4w" in capsys.readouterr().err


def test_cache_cli_as_typed_without_a_terminal(place: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SIMPLETUNER_SKIP_TORCH": "1"}
    command = [sys.executable, "-m", "simpletuner.gh200.caches", "clear", "config.json"]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1 and "--yes removes without asking" in done.stdout, done.stderr
    assert len(list(place.rglob("*.pt"))) == 17
