"""A start with filled caches, by upstream's own factory: what it is afterwards is upstream's; what was known is not read again."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.first_batch import fast_start, make_pictures
from gh200_lab.warm_start import WarmScene, quietly

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]

COUNT = 60
SETTINGS: list[dict[str, Any]] = [
    {},
    {"prepend_instance_prompt": True, "instance_prompt": "by somebody"},
    {"caption_shuffle": {"enable": True, "count": 2, "seed": 3}},
    {"disable_multiline_split": True, "max_num_samples": 40},
    {"caption_strategy": "filename"},
    {"caption_strategy": "instanceprompt", "instance_prompt": "a thing"},
]


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are young; the rule for those is tried with its own test."""
    from simpletuner.gh200.start import record

    monkeypatch.setattr(record, "RACY_NS", 10_000_000)


@pytest.fixture
def scene(tmp_path: Path) -> WarmScene:
    return made(tmp_path)


def made(folder: Path, dataset: dict[str, Any] | None = None) -> WarmScene:
    scene = WarmScene(folder, dataset)
    scene.make(COUNT, 12, captions=20)
    for number, text in enumerate(sorted(scene.folder.rglob("*.txt"))[:5]):
        rewrite(text, ["one line", "two\nlines", "a, b, c, d", "", "  spaces and\n\nempty lines \n"][number])
    # The scan, by ours, as upstream's may lose pictures; what comes after it is warm, and has embeddings for these captions too.
    scene.embed([text for text in state(scene, True)["encoded"] if not text.startswith("/")])
    for record in [*scene.folder.glob("*.gh200"), *scene.output.rglob("*.gh200")]:
        record.unlink()
    time.sleep(0.03)
    return scene


def rewrite(file: Path, text: str) -> None:
    """A file of its own, since those of the scene are many names of few."""
    file.unlink()
    file.write_text(text, encoding="utf-8")


def state(scene: WarmScene, on: bool, certified: bool = False) -> dict[str, Any]:
    """All that a start leaves behind, in memory and on disk, in one order."""
    with fast_start(on, certified), quietly():
        random.seed(5)
        encoded: list[str] = []
        started = scene.started(encoded)
        return {
            "buckets": {name: sorted(paths) for name, paths in started.metadata.aspect_ratio_bucket_indices.items()},
            "metadata": started.metadata.image_metadata,
            "statistics": started.metadata.filtering_statistics,
            "names": started.vae.image_path_to_vae_path,
            "pictures": started.vae.vae_path_to_image_path,
            "unprocessed": sorted(started.vae.local_unprocessed_files),
            "prompts": started.text.prompt_records,
            "encoded": sorted(encoded),
            "random": random.getstate(),
            "files": {path.name: json.loads(path.read_text()) for path in scene.output.glob("*.json")},
        }


def both(scene: WarmScene, change: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """A start with what earlier ones recorded, after a change, beside upstream's own start from the same files."""
    state(scene, True)
    state(scene, True)
    change()
    kept = {file: file.read_bytes() for file in scene.folder.glob("aspect_ratio_bucket_*.json")}
    ours = state(scene, True)
    for _ in range(5):
        for file, content in kept.items():
            file.write_bytes(content)
        upstream = state(scene, False)
        # Upstream's scan of what is new may lose some of it (upstream/scan_loses_entries.md), on a busy machine above all.
        if len(upstream["metadata"]) == len(ours["metadata"]):
            break
    assert ours == upstream
    return ours


def read_by_upstream(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from simpletuner.helpers.data_backend.local import LocalDataBackend

    plain, seen = LocalDataBackend.read, []

    def read(self: Any, filepath: Any, as_byteIO: bool = False) -> Any:
        seen.append(str(filepath))
        return plain(self, filepath, as_byteIO)

    monkeypatch.setattr(LocalDataBackend, "read", read)
    return seen


@pytest.mark.parametrize("dataset", SETTINGS, ids=lambda dataset: "-".join(dataset) or "plain")
def test_first_batch_warm_start_is_upstreams(tmp_path: Path, dataset: dict[str, Any]) -> None:
    found = both(made(tmp_path, dataset))
    assert len(found["metadata"]) == COUNT - 20 * ("max_num_samples" in dataset)


def test_first_batch_labels_of_boxes_are_captions_where_a_picture_has_boxes(scene: WarmScene) -> None:
    boxed = sorted(scene.folder.rglob("*.jpg"))[7]
    boxed.with_suffix(".bbox").write_text(json.dumps([{"label": "a red cat", "bbox": [0.1, 0.1, 0.5, 0.5]}]))
    for file in scene.folder.glob("aspect_ratio_bucket_*"):
        file.unlink()
    found = both(scene)
    assert [one["prompt"] for one in found["prompts"]].count("a red cat") == 1


def test_first_batch_captions_are_read_once(scene: WarmScene, monkeypatch: pytest.MonkeyPatch) -> None:
    first = state(scene, True)
    seen = read_by_upstream(monkeypatch)
    assert state(scene, True) == first
    assert [path for path in seen if path.endswith(".txt")] == []


def test_first_batch_folders_that_have_not_changed_are_not_looked_into(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simpletuner.gh200.start import listing

    first = state(scene, True)
    looked, plain = [], listing._look_into
    monkeypatch.setattr(listing, "_look_into", lambda folder: (looked.append(folder), plain(folder))[1])
    assert state(scene, True) == first
    # Upstream writes its own files into the dataset's folder at every start.
    assert set(looked) <= {str(scene.folder)}
    next(scene.latents.rglob("*.pt")).unlink()
    time.sleep(0.03)
    changed = state(scene, True)
    looked.clear()
    assert state(scene, True) == changed
    assert set(looked) <= {str(scene.folder)}, "what has changed is kept as it is now"


def test_first_batch_what_changes_between_starts_is_seen(scene: WarmScene) -> None:
    def change() -> None:
        texts = sorted(scene.folder.rglob("*.txt"))
        rewrite(texts[7], "another text")
        texts[8].with_suffix(".jpg").unlink()
        # One: of several it is up to upstream's threads which is first to draw its crop.
        make_pictures(scene.folder / "more", [(90, 70)], ("jpg",))
        for picture in (scene.folder / "more").iterdir():
            picture.with_suffix(".txt").write_text("new", encoding="utf-8")
        next(scene.latents.rglob("*.pt")).unlink()

    found = both(scene, change)
    assert len(found["unprocessed"]) == 2
    assert {"another text", "new"} <= {record["prompt"] for record in found["prompts"]}


def _small(scene: WarmScene) -> None:
    """Pictures that upstream leaves out of the buckets, and so never encodes; those it looks at again in every start."""
    for number, picture in enumerate(sorted(scene.folder.rglob("*.jpg"))[:3]):
        picture.unlink()
        picture.write_bytes(b"no picture" if number else b"")


def _flat(scene: WarmScene) -> None:
    for picture in sorted(scene.folder.rglob("*.jpg"))[:9]:
        picture.rename(scene.folder / f"flat {picture.name}")
    for text in scene.folder.rglob("*.txt"):
        if not text.with_suffix(".jpg").exists():
            text.rename(scene.folder / f"flat {text.name}")


def _linked(scene: WarmScene) -> None:
    """A folder that upstream follows, one it has seen already, and one it does not look into."""
    shutil.copytree(scene.folder / "0000", scene.folder.parent / "elsewhere" / "deep")
    (scene.folder / "linked").symlink_to(scene.folder.parent / "elsewhere")
    (scene.folder / "again").symlink_to(scene.folder)
    shutil.copytree(scene.folder / "0000", scene.folder / ".ipynb_checkpoints")


def _latents_elsewhere(scene: WarmScene) -> None:
    """A few are gone, one is nobody's, one has another suffix, and one is in a folder of its own."""
    latents = sorted(scene.latents.rglob("*.pt"))
    for latent in latents[:4]:
        latent.unlink()
    shutil.copy2(latents[5], latents[5].with_name("nobody's.pt"))
    latents[6].rename(latents[6].with_suffix(".PT"))
    (scene.latents / "more").mkdir()
    shutil.copy2(latents[7], scene.latents / "more" / "one.pt")


def _twins(scene: WarmScene) -> None:
    """Two pictures of one name have one latent."""
    picture = sorted(scene.folder.rglob("*.jpg"))[4]
    make_pictures(scene.folder.parent / "twin", [(96, 64)], ("png",))
    shutil.copy2(next((scene.folder.parent / "twin").iterdir()), picture.with_suffix(".png"))


SCENES: dict[str, Callable[[WarmScene], object]] = {
    "small": _small,
    "flat": _flat,
    "linked": _linked,
    "latents": _latents_elsewhere,
    "twins": _twins,
    "odd names": lambda scene: [
        path.rename(path.with_name(f'{path.stem} "ü\\{path.suffix}')) for path in sorted(scene.folder.rglob("*00*.*"))
    ],
    "gone": lambda scene: shutil.rmtree(scene.latents),
}


@pytest.mark.parametrize("kind", SCENES)
def test_first_batch_warm_start_of_somebody_elses_data_is_upstreams(
    scene: WarmScene, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SCENES[kind](scene)
    time.sleep(0.03)
    first = both(scene)
    again = both(scene, lambda: time.sleep(0.03))
    assert again | {"random": None} == first | {"random": None}
    # A second rank reads upstream's files, where the first has what they were written from.
    from gh200_lab import warm_start

    monkeypatch.setattr(warm_start.Alone, "is_local_main_process", False)
    assert state(scene, True) == state(scene, False)


@pytest.mark.parametrize("main", [True, False], ids=["rank 0", "rank 1"])
@pytest.mark.parametrize("certificate", [False, True])
def test_first_batch_what_nobody_asks_for_is_not_made(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch, certificate: bool, main: bool
) -> None:
    from accelerate import PartialState

    from gh200_lab import warm_start
    from simpletuner.helpers.training.state_tracker import StateTracker

    PartialState(cpu=True)
    for _ in range(2):
        state(scene, True, certified=True)
        time.sleep(0.03)
    monkeypatch.setattr(warm_start.Alone, "is_local_main_process", main)
    with fast_start(True, certificate), quietly():
        started = scene.started()
        next(iter(started.sampler))
    late = {
        "latents": StateTracker.all_vae_cache_files["pictures"],
        "names": started.vae.image_path_to_vae_path,
        "pictures": started.vae.vae_path_to_image_path,
    }
    late |= {"listing": StateTracker.all_image_files["pictures"]} if certificate else {}
    assert {name: held.pending for name, held in late.items()} == dict.fromkeys(late, True)
    assert len(late["latents"]) == len(started.vae.image_path_to_vae_path) == COUNT


def test_first_batch_two_models_in_turn_on_one_dataset(scene: WarmScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has caches of its own; neither has to find out again what the other has not changed."""
    other = WarmScene(scene.folder.parent, {"cache_dir_vae": str(scene.folder.parent / "other latents")})
    shutil.copytree(scene.latents, scene.folder.parent / "other latents")
    other.embeds, other.output = scene.folder.parent / "other embeds", scene.folder.parent / "other output"
    shutil.copytree(scene.embeds, other.embeds)
    time.sleep(0.03)
    for _ in range(3):
        for one in (scene, other):
            state(one, True, certified=True)
            time.sleep(0.03)
    seen = read_by_upstream(monkeypatch)
    for one in (scene, other):
        with fast_start(True, True), quietly():
            assert one.started().vae.image_path_to_vae_path.pending
    assert not [path for path in seen if path.endswith(".txt")]


def test_first_batch_pictures_without_a_latent_are_known_and_encoded_when_they_can_be(scene: WarmScene) -> None:
    latent = sorted(scene.latents.rglob("*.pt"))[3]
    kept = latent.read_bytes()
    latent.unlink()
    time.sleep(0.03)
    for _ in range(3):
        assert len(state(scene, True)["unprocessed"]) == 1
        time.sleep(0.03)
    latent.write_bytes(kept)
    for _ in range(3):
        assert state(scene, True)["unprocessed"] == []
        time.sleep(0.03)


def test_first_batch_a_caption_edited_in_the_same_moment_is_seen(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same size, same times: only the rule for young files tells."""
    from simpletuner.gh200.start import record

    monkeypatch.setattr(record, "RACY_NS", 2_000_000_000)
    text = sorted(scene.folder.rglob("*.txt"))[9]
    rewrite(text, "red")
    times = os.stat(text)
    monkeypatch.setattr(record, "stat_of", _without_ctime(record.stat_of))
    state(scene, True)
    text.write_text("tan", encoding="utf-8")
    os.utime(text, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "tan" in {record["prompt"] for record in state(scene, True)["prompts"]}


def _without_ctime(plain: Callable[[str], tuple[int, ...]]) -> Callable[[str], tuple[int, ...]]:
    """A file system that keeps no such time."""
    return lambda path: (plain(path)[0], plain(path)[0], *plain(path)[2:])


def test_first_batch_times_in_the_future_are_not_believed(scene: WarmScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a clock was set back: what seems to be written later than now is looked at every time."""
    late = time.time_ns() + 3600 * 10**9
    for file in [scene.folder, *scene.folder.rglob("*")]:
        os.utime(file, ns=(late, late))
    state(scene, True)
    seen = read_by_upstream(monkeypatch)
    both(scene)
    assert len([path for path in seen if path.endswith(".txt")]) >= COUNT


@pytest.mark.parametrize("harm", ["cut", "changed", "emptied", "another's", "another version's"])
def test_first_batch_scan_index_that_cannot_be_used_is_made_anew(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    from simpletuner.gh200.start import record

    first = state(scene, True)
    certified(scene)
    records = [*scene.folder.glob("*.gh200"), *scene.output.rglob("*.gh200")]
    assert len(records) >= 5
    for file in records:
        content = file.read_bytes()
        if harm == "cut":
            file.write_bytes(content[: len(content) // 2])
        elif harm == "changed":
            file.write_bytes(content[:-3] + bytes(3))
        elif harm == "emptied":
            file.write_bytes(b"")
    if harm == "another's":
        monkeypatch.setattr(record.os, "geteuid", lambda: 12345)
        for file in records:
            file.rename(file.with_name(file.name.replace(f"-{os.getuid()}.", "-12345.")))
    elif harm == "another version's":
        monkeypatch.setattr(record, "_VERSION", 99)
    seen = read_by_upstream(monkeypatch)
    assert certified(scene) == first
    assert len([path for path in seen if path.endswith(".txt")]) == COUNT


def test_first_batch_scan_index_can_be_deleted_and_upstream_goes_on(scene: WarmScene) -> None:
    first = state(scene, True)
    for file in [*scene.folder.glob("*.gh200"), *scene.output.rglob("*.gh200")]:
        file.unlink()
    assert state(scene, False) == first == state(scene, True)


def test_first_batch_a_folder_that_cannot_be_written_costs_the_record_alone(scene: WarmScene) -> None:
    first = state(scene, True)
    from simpletuner.gh200.start import record

    for file in scene.folder.glob("*.gh200"):
        file.unlink()
        file.mkdir()
    assert state(scene, True) == first
    assert record.load(next(scene.folder.glob("*.gh200")), "any") is None


def certified(scene: WarmScene) -> dict[str, Any]:
    return state(scene, True, certified=True)


def test_first_batch_certified_start_reads_no_caption_and_ends_as_upstreams(
    scene: WarmScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = state(scene, False)
    certified(scene)
    seen = read_by_upstream(monkeypatch)
    again = certified(scene)
    assert again["prompts"] == [] and upstream["prompts"]
    assert again | {"prompts": upstream["prompts"]} == upstream
    assert not [path for path in seen if path.endswith(".txt")]
    assert state(scene, True)["prompts"], "asked for by name only"
    assert state(scene, False) == upstream, "plain upstream goes on from the same files"


CHANGES: dict[str, Callable[[WarmScene], object]] = {
    "caption": lambda scene: rewrite(sorted(scene.folder.rglob("*.txt"))[7], "other words"),
    "picture": lambda scene: _one_more(scene),
    "picture gone": lambda scene: next(scene.folder.rglob("*.jpg")).unlink(),
    "embedding gone": lambda scene: next(scene.embeds.rglob("*.pt")).unlink(),
    "strategy": lambda scene: scene.dataset.update(caption_strategy="filename"),
    "prompt": lambda scene: scene.dataset.update(prepend_instance_prompt=True, instance_prompt="by somebody"),
    "metadata": lambda scene: _other_crop(scene),
    "certificate": lambda scene: [file.write_bytes(b"nonsense") for file in scene.folder.glob("*established*")],
    "no certificate": lambda scene: [file.unlink() for file in scene.folder.glob("*established*")],
}


def _one_more(scene: WarmScene) -> None:
    make_pictures(scene.folder / "more", [(90, 70)], ("jpg",))
    next((scene.folder / "more").iterdir()).with_suffix(".txt").write_text("new", encoding="utf-8")


def _other_crop(scene: WarmScene) -> None:
    """By hand, in the one file that has it."""
    [file] = scene.folder.glob("aspect_ratio_bucket_metadata*.json")
    metadata = json.loads(file.read_text())
    next(iter(metadata.values()))["crop_coordinates"] = [3, 4]
    file.write_text(json.dumps(metadata))


@pytest.mark.parametrize("change", CHANGES)
def test_first_batch_certificate_ends_with_any_change(scene: WarmScene, change: str) -> None:
    for _ in range(2):
        certified(scene)
    assert certified(scene)["prompts"] == []
    CHANGES[change](scene)
    ours = certified(scene)
    upstream = state(scene, False)
    assert ours["prompts"] == upstream["prompts"] != []
    assert ours["encoded"] == upstream["encoded"]
    # As it is saved: what was scanned in this start has tuples, what was loaded has lists.
    assert json.loads(json.dumps(ours["metadata"])) == json.loads(json.dumps(upstream["metadata"]))


def test_first_batch_certified_metadata_is_read_as_the_sampler_asks_for_it(scene: WarmScene) -> None:
    from accelerate import PartialState

    from simpletuner.gh200.start.columns import Columns

    # Its loggers ask for it when the sampler draws.
    PartialState(cpu=True)

    def batches(on: bool, count: int = 20) -> tuple[Any, list[Any], str]:
        with fast_start(on, on), quietly():
            random.seed(5)
            started = scene.started()
            drawn = [one for _, one in zip(range(count), started.sampler, strict=False)]
            started.metadata.save_image_metadata()
            saved = started.metadata.metadata_file.read_text()
            return started.metadata.image_metadata, json.loads(json.dumps(drawn)), saved

    [file] = scene.folder.glob("aspect_ratio_bucket_metadata*.json")
    before = file.read_bytes()
    certified(scene)
    with fast_start(True, True), quietly():
        found = scene.started().metadata.image_metadata
    assert isinstance(found, Columns) and all(type(value) is int for value in dict.values(found))
    ours = batches(True)
    file.write_bytes(before)
    upstream = batches(False)
    assert isinstance(ours[0], Columns) and type(upstream[0]) is dict
    assert ours[1:] == upstream[1:], "the same batches, and the same bytes when it is saved after them"


def test_first_batch_certificate_is_not_made_while_an_embedding_is_missing(scene: WarmScene) -> None:
    next(scene.embeds.rglob("*.pt")).unlink()
    for _ in range(2):
        found = certified(scene)
        assert found["prompts"] and found["encoded"]
    assert not [*scene.folder.glob("*established*")]


def test_first_batch_two_ranks_share_what_one_recorded(scene: WarmScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank of a node reads the record, and writes none."""
    from gh200_lab import warm_start

    first = state(scene, True)
    written = {file: file.stat().st_mtime_ns for file in scene.folder.glob("*.gh200")}
    monkeypatch.setattr(warm_start.Alone, "is_local_main_process", False)
    seen = read_by_upstream(monkeypatch)
    rewrite(sorted(scene.folder.rglob("*.txt"))[0], "other words")
    second = state(scene, True)
    assert len([path for path in seen if path.endswith(".txt")]) == 1
    assert second["names"] == first["names"]
    assert {file: file.stat().st_mtime_ns for file in scene.folder.glob("*.gh200")} == written


WRITER = """
import sys
from pathlib import Path
from simpletuner.gh200.start.record import save
for number in range(10**6):
    save(Path(sys.argv[1]), "key", [number] * 300_000)
    print(number, flush=True)
"""


@pytest.mark.slow
def test_first_batch_scan_index_killed_while_it_is_written_is_whole(tmp_path: Path) -> None:
    from simpletuner.gh200.start.record import load

    file, rng = tmp_path / "x.gh200", random.Random(3)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline()
        time.sleep(rng.uniform(0, 0.3))
        writer.kill()
        writer.communicate()
        found = load(file, "key")
        assert found is not None and found == [found[0]] * 300_000
        assert [one.name for one in tmp_path.iterdir()] == ["x.gh200"]


@pytest.mark.slow
def test_first_batch_two_trainings_on_one_dataset_at_once(scene: WarmScene) -> None:
    start = [sys.executable, "-W", "ignore", "-m", "gh200_lab.warm_start", "certified", str(scene.folder.parent)]
    both_at_once = [subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    said = [one.communicate(timeout=900)[1] for one in both_at_once]
    assert [one.returncode for one in both_at_once] == [0, 0], said
    assert state(scene, True) == state(scene, False)
