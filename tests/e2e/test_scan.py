"""The scan beside upstream's own, with upstream's own classes: equal results, and every file in a bucket or named."""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.first_batch import NAME, Alone, Scene, fast_start, make_images, many_links, queues_that_keep

pytestmark = pytest.mark.timeout(1800)

CROPS: list[dict[str, Any]] = [
    {},
    {"crop": True},
    {"crop": True, "crop_style": "center", "crop_aspect": "preserve"},
    {"crop": True, "crop_style": "corner", "crop_aspect": "closest", "crop_aspect_buckets": [1.0, 1.5, 0.66]},
    {"crop": True, "crop_style": "random", "crop_aspect": "random", "crop_aspect_buckets": [1.0, 1.5, 0.66]},
    {
        "crop": True,
        "crop_style": "random",
        "crop_aspect": "preserve",
        "maximum_image_size": 600,
        "target_downsample_size": 550,
    },
    {"minimum_image_size": 0.1, "minimum_aspect_ratio": 0.5, "maximum_aspect_ratio": 2.0},
]
RESOLUTIONS: list[dict[str, Any]] = [
    {"resolution_type": "pixel", "resolution": 512},
    {"resolution_type": "area", "resolution": 0.5},
]
SETTINGS = [
    crop
    | resolution
    | ({"minimum_image_size": 128} if "minimum_image_size" in crop and resolution["resolution"] == 512 else {})
    for crop, resolution in itertools.product(CROPS, RESOLUTIONS)
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scan") / "images"
    rng = random.Random(5)
    sizes = [(rng.randint(20, 900), rng.randint(20, 900)) for _ in range(30)]
    images = make_images(made, [rng.choice(sizes) for _ in range(120)])
    (made / "broken.png").write_bytes(b"nonsense")
    (made / "short.png").write_bytes(images[0].read_bytes()[:-30])
    (made / "short.jpg").write_bytes(images[1].read_bytes()[:-30])
    images[3].with_suffix(".bbox").write_text(json.dumps([{"label": "cat", "bbox": [0.1, 0.1, 0.5, 0.5]}]))
    return made


def sized_files(sizes: dict[str, tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are nothing but a size, for upstream's own probe and for our reader."""
    from simpletuner.gh200.backends.scan.worker_pool import HeaderPool
    from simpletuner.gh200.image_headers import Header
    from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend

    monkeypatch.setattr(
        DiscoveryMetadataBackend, "_probe_image_dimensions", lambda self, path: {"original_size": sizes[str(path)]}
    )
    monkeypatch.setattr(HeaderPool, "read", lambda self, paths: [Header(sizes[path], "PNG", None) for path in paths])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(str(value) for value in settings.values()))
def test_scan_is_upstreams(directory: Path, settings: dict[str, Any]) -> None:
    scene = Scene(directory, settings)
    upstream, ours = scene.scanned(False), scene.scanned(True)
    assert ours == upstream
    assert sum(map(len, ours["buckets"].values())) > 30


@pytest.mark.parametrize(
    "count",
    [600, pytest.param(100_000 // len(SETTINGS) + 1, marks=pytest.mark.slow(reason="scans 100,000 images"))],
    ids=["few", "100000"],
)
def test_scan_gives_random_sizes_what_upstream_gives_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    from simpletuner.helpers.training.state_tracker import StateTracker

    rng = random.Random(11)
    pool = [(rng.randint(1, 4000), rng.randint(1, 4000)) for _ in range(count // 2)]
    for settings in SETTINGS:
        sizes = {f"/none/{number}.png": rng.choice(pool) for number in range(count)}
        results = []
        for on in (False, True):
            scene = Scene(tmp_path / "none", settings)
            scene.forget_files()
            with fast_start(on), queues_that_keep(), monkeypatch.context() as patched:
                sized_files(sizes, patched)
                backend = scene.backend()
                StateTracker.set_image_files([("", [], list(sizes))], NAME)
                random.seed(1)
                backend.compute_aspect_ratio_bucket_indices()
                found = [backend.aspect_ratio_bucket_indices, backend.image_metadata, backend.filtering_statistics]
                results.append([*found, random.getstate()])
        assert results[0] == results[1], settings


def test_scan_with_processes_is_upstreams_and_its_repair_works(directory: Path) -> None:
    scene = Scene(directory, {"crop": True}, enable_multiprocessing=True, aspect_bucket_worker_count=3)
    scene.forget_files()
    with fast_start():
        backend = scene.backend()
        backend.compute_aspect_ratio_bucket_indices()
        placed = sorted(itertools.chain(*backend.aspect_ratio_bucket_indices.values()))
        (scene.output / "aspect_ratio_bucket_metadata.json").write_text("{}")
        again = scene.backend()
        again.compute_aspect_ratio_bucket_indices()
    assert placed == sorted(backend.image_metadata) and len(placed) > 100
    # Upstream's repair does not collect what is still in its queues when its last process has ended.
    assert set(again.image_metadata) <= set(placed) and again.image_metadata


def test_off_overrides_no_method(directory: Path) -> None:
    from simpletuner.gh200 import runtime
    from simpletuner.gh200.config.cache_options import CacheOptions
    from simpletuner.gh200.config.sources import read_settings

    for block, environ, acts in (
        ({"fast_start": False}, {}, False),
        ({"fast_start": True}, {}, True),
        ({"telemetry_interval": 7}, {}, True),
        ({}, {"GH200_UVM_ACCESS_PATTERN": "gpu_first"}, False),
        ({"fast_start": False, "telemetry_interval": 7}, {}, False),
    ):
        runtime.begin(read_settings({"gh200_optimizations": block} if block else {}, environ), CacheOptions())
        own = {"compute_aspect_ratio_bucket_indices", "scan_for_metadata", "_bucket_worker", "_probe_image_dimensions"}
        assert own & vars(Scene(directory).backend()).keys() == (own if acts else set()), (block, environ)
        runtime.end()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, logger="gh200.start"):
        yield caplog


def left_out(scene: Scene) -> list[tuple[str, str]]:
    """Reason and path of every file that the scan put into no bucket."""
    lines = (scene.output / "aspect_ratio_bucket_indices.left_out.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    return [(reason, json.loads(path) if path.startswith('"') else path) for reason, path in rows]


def test_scan_names_what_it_leaves_out(directory: Path, warnings: pytest.LogCaptureFixture) -> None:
    scene = Scene(directory, {"minimum_image_size": 300}, aspect_bucket_worker_count=4)
    found = scene.scanned(True)
    placed = {path for paths in found["buckets"].values() for path in paths}
    rows = left_out(scene)
    images = {str(path) for path in directory.iterdir() if path.suffix != ".bbox"}
    assert placed | {path for _, path in rows} == images and not placed & {path for _, path in rows}
    assert {reason for reason, path in rows if path.endswith(("broken.png", "short.png"))} != {"too_small"}
    assert (
        "too small" in warnings.text
        and "broken.png" in warnings.text
        and f"of {len(images)} files scanned" in warnings.text
    )


@pytest.mark.timeout(120)
def test_scan_of_a_fifo_and_of_odd_names_ends(tmp_path: Path, warnings: pytest.LogCaptureFixture) -> None:
    """None of these is an image: the FIFO has no writer, one name has control characters, one is not UTF-8."""
    images = tmp_path / "images"
    make_images(images, [(64, 64)] * 2)
    os.mkfifo(images / "pipe.png")
    odd = [str(images / "odd\x1b[31m\n\t.png"), str(images / os.fsdecode(b"not-\xff-text.png"))]
    for path in odd:
        Path(path).write_bytes(b"no image")
    scene = Scene(images, {}, aspect_bucket_worker_count=2)
    found = scene.scanned(True)
    assert len([path for paths in found["buckets"].values() for path in paths]) == 2
    reasons = {path: reason for reason, path in left_out(scene)}
    assert reasons.keys() == {*odd, str(images / "pipe.png")}, "the names as they are on disk"
    assert "not a regular file" in reasons[str(images / "pipe.png")]
    assert "\x1b" not in warnings.text and "odd\\x1b[31m\\n\\t.png" in warnings.text


def test_scan_decodes_videos_in_all_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conditioning dataset of images and videos, of which SimpleTuner decodes whole files."""
    from simpletuner.helpers.metadata.backends.discovery import DiscoveryMetadataBackend

    images = tmp_path / "images"
    make_images(images, [(64, 64)] * 2)
    for name in ("one.mp4", "two.mp4"):
        (images / name).write_bytes(b"a video")
    both = threading.Barrier(2, timeout=30)
    usual = DiscoveryMetadataBackend._process_for_bucket

    def decode(self: Any, path: str, buckets: dict[str, list[str]], **more: Any) -> Any:
        if not path.endswith(".mp4"):
            return usual(self, path, buckets, **more)
        both.wait()
        more["metadata_updates"][path] = {"original_size": (64, 64)}
        return {"1.0": [path]}

    monkeypatch.setattr(DiscoveryMetadataBackend, "_process_for_bucket", decode)
    scene = Scene(images, {"dataset_type": "conditioning"}, aspect_bucket_worker_count=4)
    assert len(scene.scanned(True)["buckets"]["1.0"]) == 4


def test_scan_repairs_missing_metadata(directory: Path) -> None:
    scene = Scene(directory)
    whole = scene.scanned(True)
    (scene.output / "aspect_ratio_bucket_metadata.json").write_text("{}")
    again = scene.scanned(True, fresh=False)
    assert again["metadata"].keys() == whole["metadata"].keys()
    for path, metadata in again["metadata"].items():
        assert {**metadata, "crop_coordinates": 0} == {**whole["metadata"][path], "crop_coordinates": 0}


def test_scan_raises_what_happens_in_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simpletuner.gh200.backends.scan.worker_pool import HeaderPool
    from simpletuner.gh200.errors import GH200Error

    def fail(self: Any, paths: list[str]) -> Any:
        raise GH200Error("All readers have died.", why="a test", fix="none")

    make_images(tmp_path / "images", [(100, 200)] * 20)
    monkeypatch.setattr(HeaderPool, "read", fail)
    with pytest.raises(GH200Error, match="All readers have died"):
        Scene(tmp_path / "images", aspect_bucket_worker_count=3).scanned(True)


def test_scan_ends_its_threads_when_collecting_fails(tmp_path: Path) -> None:
    make_images(tmp_path / "images", [(100, 200)] * 20)
    scene = Scene(tmp_path / "images", aspect_bucket_worker_count=3)
    with fast_start():
        backend = scene.backend()

        def interrupt(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            backend.compute_aspect_ratio_bucket_indices(progress_callback=interrupt)
        ended = time.monotonic() + 10
        while any("_bucket_worker" in thread.name for thread in threading.enumerate()):
            assert time.monotonic() < ended, "a thread still waits"
            time.sleep(0.05)


def test_scan_of_staged_images_reads_no_file_again(directory: Path, tmp_path: Path) -> None:
    from simpletuner.gh200.backends.ram.backend import GH200InMemoryBackend

    copy = tmp_path / "images"
    make_images(copy, [(100 + number % 9, 200) for number in range(40)])
    expected = Scene(copy).scanned(True)
    staged = GH200InMemoryBackend(Alone(), NAME, instance_data_dir=str(copy))
    for path in copy.iterdir():
        path.write_bytes(b"gone")
    found = Scene(copy).scanned(True, data_backend=staged)
    assert found["buckets"] == expected["buckets"] and found["metadata"] == expected["metadata"]


def test_files_that_come_go_and_change_between_starts(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "images")
    images = make_images(scene.directory, [(100, 200)] * 30)
    scene.scanned(True)
    before = shutil.copytree(scene.output, tmp_path / "before")
    images[0].unlink()
    added = make_images(scene.directory / "more", [(300, 100)] * 5)
    results = []
    for on in (True, False):
        shutil.rmtree(scene.output)
        shutil.copytree(before, scene.output)
        scene.scanned(on, fresh=False)
        with fast_start(on):
            backend = scene.backend()
            backend.refresh_buckets()
        results.append({bucket: sorted(paths) for bucket, paths in backend.aspect_ratio_bucket_indices.items()})
    assert results[0] == results[1]
    assert sorted(itertools.chain(*results[0].values())) == sorted(map(str, [*images[1:], *added]))


SCANNER = """
import sys
from pathlib import Path
from gh200_lab.first_batch import Scene, fast_start
scene = Scene(Path(sys.argv[1]), aspect_bucket_worker_count=12)
for _ in range(int(sys.argv[2])):
    if sys.argv[3] == "fresh":
        scene.forget_files()
    with fast_start():
        backend = scene.backend()
        backend.compute_aspect_ratio_bucket_indices()
    print(sum(map(len, backend.aspect_ratio_bucket_indices.values())), len(backend.image_metadata), flush=True)
"""


def start_scanner(directory: Path, times: int = 1, fresh: str = "fresh") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCANNER, str(directory), str(times), fresh],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow(reason="a hundred scans under load")
def test_a_hundred_scans_under_load_lose_nothing(tmp_path: Path) -> None:
    originals = make_images(tmp_path / "originals", [(64 + number, 96) for number in range(50)])
    many_links(tmp_path / "images", originals, 2000)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        scanner = start_scanner(tmp_path / "images", times=100)
        printed, _ = scanner.communicate(timeout=1500)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert printed.split("\n")[:-1] == ["2000 2000"] * 100


@pytest.mark.slow(reason="kills scans of 5,000 images")
def test_a_killed_scan_goes_on_to_the_same_end_and_two_at_once_agree(tmp_path: Path) -> None:
    originals = make_images(tmp_path / "originals", [(64 + number, 96) for number in range(50)])
    directory = tmp_path / "images"
    many_links(directory, originals, 5000)
    undisturbed = Scene(directory).scanned(True)
    rng = random.Random(9)
    for _ in range(4):
        scanner = start_scanner(directory, times=50)
        assert scanner.stdout is not None
        scanner.stdout.readline()
        time.sleep(rng.uniform(0, 2))
        os.killpg(scanner.pid, signal.SIGKILL)
        scanner.wait()
        found = Scene(directory).scanned(True, fresh=False)
        assert _comparable(found) == _comparable(undisturbed)
    both = [start_scanner(directory, fresh="again") for _ in range(2)]
    assert [process.communicate(timeout=600)[0] for process in both] == ["5000 5000\n"] * 2


def _comparable(found: dict[str, Any]) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """Without the order of buckets, and without crops, which are drawn anew."""
    metadata = {path: {**one, "crop_coordinates": 0} for path, one in found["metadata"].items()}
    plain = json.loads(json.dumps(metadata))
    return {bucket: sorted(paths) for bucket, paths in found["buckets"].items()}, plain
