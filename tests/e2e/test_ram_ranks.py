"""Several backends of the real fork on the same files: what one writes all see, and audio and video come from RAM."""

from __future__ import annotations

import importlib
import math
import os
import re
import shutil
import struct
import tempfile
import wave
from pathlib import Path
from typing import Any

import pytest
import torch

from simpletuner.gh200.backends import builders
from simpletuner.gh200.backends.ram import hooks as in_memory_sites
from simpletuner.gh200.backends.ram.media_paths import audio_loader
from simpletuner.gh200.backends.ram.registry import staged_for_use
from simpletuner.gh200.memory.limits import OverMemoryLimit

pytestmark = pytest.mark.usefixtures("own_run")
# A loader that returns the path it is to open.
opened_path = audio_loader(lambda source: source)


@pytest.fixture(scope="module")
def lab() -> Any:
    return importlib.import_module("ram_differential")


@pytest.fixture
def tree(lab: Any, tmp_path: Path, temporary: Path) -> Path:
    lab.make_tree(tmp_path / "data")
    return tmp_path / "data"


def built(lab: Any, name: str, root: Path) -> Any:
    config = lab.Config(root)
    config.id = name
    return builders.local_dataset(config, lab.LocalDataBackend(None, name))


def entry(name: str, root: Path, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "in_memory", "instance_data_dir": str(root), **more}


def test_two_ids_on_one_directory_are_one_memory_and_see_each_others_changes(lab: Any, tree: Path) -> None:
    (tree.parent / "alias").symlink_to(tree)
    in_memory_sites.local_entries([entry("a", tree), entry("b", tree.parent / "alias")])
    one, two = built(lab, "a", tree), built(lab, "b", tree.parent / "alias")
    assert one._arena is two._arena is not None
    one.write(str(tree / "a.txt"), b"new")
    assert two.read(str(tree.parent / "alias/a.txt")) == two.read(str(tree / "a.txt")) == b"new"
    two.delete(str(tree.parent / "alias/sub/b.txt"))
    with pytest.raises(FileNotFoundError):
        one.read(str(tree / "sub/b.txt"))


@pytest.mark.parametrize("order", [("outer", "inner"), ("inner", "outer")])
@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_dataset_inside_another(lab: Any, tree: Path, order: tuple[str, str], codec: str | None) -> None:
    roots = {"outer": tree, "inner": tree / "sub"}
    in_memory_sites.local_entries(
        [entry("outer", tree), entry("inner", tree / "sub", in_memory={"compression": codec})]
    )
    backends = {name: built(lab, name, roots[name]) for name in order}
    path = str(tree / "sub/b.txt")
    assert all(backend.is_staged(path) for backend in backends.values())
    backends[order[0]].write(path, b"new")
    assert backends[order[1]].read(path) == b"new"


def test_a_local_dataset_on_the_same_directory_is_seen_too(lab: Any, tree: Path) -> None:
    in_memory_sites.local_entries([entry("ram", tree), {"id": "disk", "type": "local"}, {"id": "far", "type": "local"}])
    ram, disk = built(lab, "ram", tree), built(lab, "disk", tree / "sub")
    assert ram.read(str(tree / "sub/b.txt")) == b"a gradient"
    disk.write(str(tree / "sub/b.txt"), b"by the local one")
    assert ram.read(str(tree / "sub/b.txt")) == b"by the local one"
    assert type(built(lab, "far", tree.parent / "elsewhere")) is lab.LocalDataBackend


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_memory": {"memory_limit_gb": 1e-6}}, "may be used"),
        ({"instance_data_dir": "{root}/a.txt"}, "Not a directory"),
    ],
)
def test_a_directory_or_limit_that_cannot_be_used_is_exit_2(
    lab: Any, tree: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = entry("x", tree) | change
    given["instance_data_dir"] = given["instance_data_dir"].format(root=tree)
    in_memory_sites.local_entries([given])
    staged_for_use().exit_on_error = True
    try:
        with pytest.raises(SystemExit) as ended:
            built(lab, "x", Path(given["instance_data_dir"]))
    finally:
        staged_for_use().exit_on_error = False
    assert ended.value.code == 2 and message in capsys.readouterr().err


def test_a_program_that_embeds_the_trainer_gets_the_error(lab: Any, tree: Path) -> None:
    in_memory_sites.local_entries([entry("x", tree, in_memory={"memory_limit_gb": 1e-6})])
    with pytest.raises(OverMemoryLimit):
        built(lab, "x", tree)


def tone(path: Path, hertz: float) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        samples = (int(20_000 * math.sin(2 * math.pi * hertz * n / 8000)) for n in range(8000))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_audio_that_upstream_opens_past_the_backend_comes_from_ram(
    lab: Any, tree: Path, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's own loader, as its scan and its VAE cache call it: with a path, whatever the backend is."""
    # Imported before there is a run, as a module of upstream's may do.
    audio = importlib.import_module("simpletuner.helpers.audio")
    load_audio, load_audio_from_video = audio.load_audio, audio.load_audio_from_video
    monkeypatch.setenv("PATH", with_ffmpeg(tree.parent))
    monkeypatch.setattr(tempfile, "tempdir", str(tree.parent / "tmp"))
    tone(tree / "tone.wav", 440)
    shutil.copy(tree / "tone.wav", tree.parent / "kept.wav")
    in_memory_sites.local_entries([entry("x", tree, in_memory={"compression": compression})])
    backend = built(lab, "x", tree)
    wanted, rate = load_audio(str(tree.parent / "kept.wav"))
    track, _ = load_audio_from_video(str(tree.parent / "kept.wav"), rate, 1)
    tone(tree / "tone.wav", 880)
    monkeypatch.chdir(tree.parent)
    for path in (str(tree / "tone.wav"), "data/tone.wav"):
        found, found_rate = load_audio(path)
        assert torch.equal(found, wanted) and found_rate == rate
    assert torch.equal(load_audio_from_video(str(tree / "tone.wav"), rate, 1)[0], track)
    assert torch.equal(load_audio(source=str(tree / "tone.wav"))[0], wanted)
    assert not list((tree.parent / "tmp").rglob("*-media-*")), "nothing is left open"
    # What was written, and other files, are opened where they are.
    backend.write(str(tree / "tone.wav"), (tree / "tone.wav").read_bytes())
    assert not torch.equal(load_audio(str(tree / "tone.wav"))[0], wanted)
    assert opened_path(str(tree.parent / "kept.wav")) == str(tree.parent / "kept.wav") and opened_path(b"x") == b"x"


def test_no_upstream_module_imports_an_audio_loader_directly(lab: Any) -> None:
    """The edit is where the package exports its loaders; a direct import of the module would read from disk."""
    package = Path(importlib.import_module("simpletuner.helpers").__path__[0])
    past = re.compile(r"helpers\.audio\.load\b|helpers\.audio import load\b|from \.+audio\.load\b")
    own = package / "audio"
    found = [path for path in package.rglob("*.py") if own not in path.parents and past.search(path.read_text("utf-8"))]
    assert not found


def test_media_that_cannot_be_opened_in_ram_are_opened_on_disk(
    lab: Any, tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    in_memory_sites.local_entries([entry("x", tree)])
    backend = built(lab, "x", tree)
    assert backend.staged_files

    def full(purpose: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("simpletuner.gh200.backends.ram.media_paths.memory_file", full)
    path = str(tree / "tone.wav")
    assert [opened_path(path), opened_path(path)] == [path] * 2
    assert caplog.text.count("Too many open files") == 1 and path in caplog.text


def with_ffmpeg(directory: Path) -> str:
    (directory / "tools").mkdir()
    (directory / "tools/ffmpeg").symlink_to(pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe())
    return f"{directory / 'tools'}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize(
    ("name", "loader"), [("tone.wav", "simpletuner.helpers.audio.load_audio"), ("clip.mp4", "{local}.load_video")]
)
def test_audio_and_video_are_opened_in_ram_under_their_own_name(
    lab: Any, tree: Path, name: str, loader: str, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which bytes are opened, not how they are decoded: this machine may have no ffmpeg."""
    (tree / name).write_bytes(b"staged bytes " * 1000)
    in_memory_sites.local_entries([entry("x", tree, in_memory={"compression": compression})])
    backend = built(lab, "x", tree)
    monkeypatch.setattr(
        loader.format(local=lab.LocalDataBackend.__module__), lambda path: (path, Path(path).read_bytes())
    )
    # The file on disk is another one now: what is opened can only be the staged bytes.
    (tree / name).write_bytes(b"changed")
    path, found = backend.read_image(str(tree / name))
    assert found == b"staged bytes " * 1000 and Path(path).name == name and not Path(path).exists()
    backend.write(str(tree / name), b"written")
    assert backend.read_image(str(tree / name)) == (str(tree / name), b"written")
