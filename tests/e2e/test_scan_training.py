"""Trainings after a fast start are bit-identical to those after upstream's: cold, warm, two at once, and after kills."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fault_injection import PUT
from preloaded import preloaded
from scan_trainings import COUNT, MODES, MORE_STEPS, STEPS, Trainings, made
from tiny import Lab

from gh200_lab.tiny.lab import forget
from gh200_lab.tiny.run import cached

pytestmark = pytest.mark.timeout(1800)

KILL_POINTS: dict[str, dict[str, Any]] = {
    "scan begins": {"on": "subprocess.Popen", "of": "headers.py"},
    "scan": {"on": "subprocess.Popen", "of": "headers.py", "after": 0.05},
    "buckets": {"on": PUT, "of": "aspect_ratio_bucket_indices_many.json"},
    "metadata": {"on": PUT, "of": "aspect_ratio_bucket_metadata_many.json"},
}
RANDOM_KILLS, SEED = 6, 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with preloaded(tmp_path_factory.mktemp("server")) as place:
        yield place


@pytest.fixture
def trainings(tmp_path: Path, server: str) -> Trainings:
    return made(tmp_path, server)


def test_training_is_bit_identical_to_upstreams_start(trainings: Trainings) -> None:
    """From nothing, and going on from there: the JSON files, the caches, every loss and every weight."""
    cold, warm, left = {}, {}, {}
    for mode in MODES:
        cold[mode] = trainings.cold(f"{mode}-cold", mode)
        left[mode] = [trainings.files(), cached(trainings.data / "cache")]
        warm[mode] = trainings.start(f"{mode}-warm", mode, resume=f"{mode}-cold", **MORE_STEPS)
        left[mode].append(trainings.files())
    assert len(trainings.in_buckets()) == COUNT
    assert len({str(entry["crop_coordinates"]) for entry in trainings.metadata().values()}) > 5, "drawn at random"
    assert left["ours"] == left["upstream"]
    for started in (cold, warm):
        assert len(set(started["upstream"].bits()[1])) == 4
        assert started["ours"].bits() == started["upstream"].bits()


@pytest.mark.slow(reason="trainings with two ranks")
def test_training_of_two_ranks_is_bit_identical_to_upstreams_start(trainings: Trainings) -> None:
    """The caches are built by one rank: two that build them at once do not always draw alike."""
    cold, left = {}, {}
    for mode in MODES:
        trainings.cold("caches", mode)
        cold[mode] = trainings.cold(f"{mode}-two", mode, keep_caches=True, ranks=2)
        left[mode] = trainings.files()
    assert len(trainings.in_buckets()) == COUNT
    assert left["ours"] == left["upstream"]
    assert cold["ours"].bits() == cold["upstream"].bits() and len(cold["upstream"].bits()[0]) == 8


@pytest.mark.slow(reason="two trainings at once")
@pytest.mark.parametrize("paused_at", ["buckets", "metadata", "nowhere"])
def test_two_trainings_start_on_one_dataset_at_once(tmp_path: Path, server: str, paused_at: str) -> None:
    """One dataset config for both: the images, the JSON files beside them and the caches are shared. One of them waits before it
    puts a file in its place, while the other one passes there."""
    one = made(tmp_path / "one", server)
    (tmp_path / "two").mkdir()
    two = Trainings(Lab(tmp_path / "two"), one.data, server)
    broken = one.images / "one" / "broken.jpg"
    broken.write_bytes(b"no image")
    broken.with_suffix(".txt").write_text("nothing")
    orders = {"hold": KILL_POINTS[paused_at] | {"seconds": 5}} if paused_at in KILL_POINTS else {}
    for when in ("cold", "warm"):
        with ThreadPoolExecutor(2) as both:
            starts = [
                both.submit(training.start, when, "ours", orders=order)
                for training, order in zip((one, two), (orders, {}), strict=True)
            ]
        for start in starts:
            assert len(start.result().run.updates()) == STEPS["max_train_steps"]
        assert one.in_buckets() == sorted(one.metadata()) == one.all_images()
        assert one.named() == [str(broken)]
    after = one.start("after", "upstream")
    assert len(after.run.updates()) == STEPS["max_train_steps"]
    assert one.in_buckets() == sorted(one.metadata()) == one.all_images()


def outcome(trainings: Trainings) -> tuple[Any, ...]:
    """What a start has to leave behind, but for crops drawn at random."""
    metadata = {path: entry | {"crop_coordinates": None} for path, entry in trainings.metadata().items()}
    return trainings.in_buckets(), metadata, sorted(cached(trainings.data / "cache"))


@pytest.mark.slow(reason="kills trainings")
def test_a_training_killed_during_start_up_starts_again(trainings: Trainings) -> None:
    whole = trainings.cold("whole", "ours", max_train_steps=1)
    wanted, rng = outcome(trainings), random.Random(SEED)
    times = [rng.uniform(0.05, 0.9 * whole.run.seconds) for _ in range(RANDOM_KILLS)]
    codes = {}
    for point, kill in (KILL_POINTS | {f"second {after:.2f}": {"after": after} for after in times}).items():
        forget(trainings.data)
        killed = trainings.start("killed", "ours", orders={"kill": kill}, code=None, max_train_steps=1)
        codes[point] = killed.run.code
        trainings.start("again", "ours", resume="killed", max_train_steps=1)
        assert outcome(trainings) == wanted, point
    # On a machine that has become faster meanwhile a random kill may come too late.
    assert {codes[point] for point in KILL_POINTS} == {-signal.SIGKILL} and set(codes.values()) <= {-signal.SIGKILL, 0}
