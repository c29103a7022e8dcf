"""Real trainings from a fast start: the bits of upstream's own start, also with two of everything and after deaths in between."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from first_batch_lab import COUNT, MODES, MORE_STEPS, STEPS, Trainings, made
from preloaded import preloaded
from tiny import Lab
from watched_start import PUT

from gh200_lab.tiny.lab import forget
from gh200_lab.tiny.run import cached

pytestmark = [pytest.mark.fork, pytest.mark.system, pytest.mark.timeout(1800)]

MOMENTS: dict[str, dict[str, Any]] = {
    "scan begins": {"on": "subprocess.Popen", "of": "marshal"},
    "scan": {"on": "subprocess.Popen", "of": "marshal", "after": 0.05},
    "buckets": {"on": PUT, "of": "aspect_ratio_bucket_indices_many.json"},
    "metadata": {"on": PUT, "of": "aspect_ratio_bucket_metadata_many.json"},
    "record of metadata": {"on": PUT, "of": "metadata-"},
    "record of captions": {"on": PUT, "of": "captions-"},
    "record of latents": {"on": PUT, "of": "latents-"},
    "record of a listing": {"on": PUT, "of": "listing-"},
}
RANDOM_MOMENTS, SEED = 6, 24


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with preloaded(tmp_path_factory.mktemp("server")) as place:
        yield place


@pytest.fixture
def trainings(tmp_path: Path, server: str) -> Trainings:
    return made(tmp_path, server)


def test_first_batch_training_has_the_bits_of_upstreams_start(trainings: Trainings) -> None:
    """From nothing, and going on from there: the JSON files, the caches, every loss and every weight."""
    cold, warm, left = {}, {}, {}
    for mode in MODES:
        cold[mode] = trainings.cold(f"{mode}-cold", mode)
        left[mode] = [trainings.files(), cached(trainings.data / "cache")]
        warm[mode] = trainings.warm(f"{mode}-warm", mode, resume=f"{mode}-cold", **MORE_STEPS)
        left[mode].append(trainings.files())
    assert len(trainings.in_buckets()) == COUNT
    assert len({str(entry["crop_coordinates"]) for entry in trainings.metadata().values()}) > 5, "drawn at random"
    assert left["usual"] == left["certified"] == left["upstream"]
    for started in (cold, warm):
        assert len(set(started["upstream"].bits()[1])) == 4
        assert started["usual"].bits() == started["certified"].bits() == started["upstream"].bits()
    again = trainings.warm("certified-again", "certified", resume="certified-cold", **MORE_STEPS)
    assert again.bits() == warm["upstream"].bits()
    assert again.captions() == {0: 0}, "a certificate stands for them"
    # The output folder, with the listings in it, is that of the run it goes on from.
    late = trainings.warm("certified-late", "certified", resume="certified-again", resume_from_checkpoint="")
    assert late.late() == [["pictures", "latents", "names"]] and warm["upstream"].late() == [[]]
    assert trainings.records() == {"captions", "established", "lacking", "latents", "metadata", "placed"}
    assert all(started.captions() == {0: COUNT} for started in [*cold.values(), *warm.values()]), "no certificate yet"
    [(held, unread)] = again.metadata()
    assert held == "Columns" and unread > COUNT // 2
    assert warm["upstream"].metadata() == [("dict", 0)]


@pytest.mark.slow
def test_first_batch_training_of_two_ranks_has_the_bits_of_upstreams_start(trainings: Trainings) -> None:
    """The caches are built by one rank: two that build them at once do not always draw alike."""
    nothing = trainings.cold("two-from-nothing", "certified", ranks=2)
    assert nothing.writers() == {0} and nothing.writers(".pt") == {0, 1}
    cold, warm, left = {}, {}, {}
    for mode in ("upstream", "certified"):
        trainings.cold("caches", mode)
        cold[mode] = trainings.cold(f"{mode}-two", mode, keep_caches=True, ranks=2)
        left[mode] = [trainings.files()]
        warm[mode] = trainings.warm(f"{mode}-two-warm", mode, ranks=2, resume=f"{mode}-two", **MORE_STEPS)
        left[mode].append(trainings.files())
    again = trainings.warm("certified-two-again", "certified", ranks=2, resume="certified-two", **MORE_STEPS)
    assert len(trainings.in_buckets()) == COUNT
    assert left["certified"] == left["upstream"]
    assert cold["certified"].bits() == cold["upstream"].bits() and len(cold["upstream"].bits()[0]) == 8
    assert again.bits() == warm["certified"].bits() == warm["upstream"].bits()
    assert cold["certified"].writers() == warm["certified"].writers() == {0}
    # The other rank may find the certificate that the first has just made.
    assert again.captions() == {0: 0, 1: 0} and warm["certified"].captions()[0] == COUNT
    assert [held for held, _ in again.metadata()] == ["Columns"] * 2
    assert all({"latents", "names"} <= set(late) for late in again.late())


@pytest.mark.slow
@pytest.mark.parametrize("held", ["buckets", "metadata", "record of captions", "nowhere"])
def test_first_batch_two_trainings_start_on_one_dataset_at_once(tmp_path: Path, server: str, held: str) -> None:
    """One dataset config for both: the pictures, the JSON files beside them and the caches are shared. One of them waits before it
    puts a file in its place, while the other one passes there."""
    one = made(tmp_path / "one", server)
    (tmp_path / "two").mkdir()
    two = Trainings(Lab(tmp_path / "two"), one.data, server)
    broken = one.pictures / "one" / "broken.jpg"
    broken.write_bytes(b"no picture")
    broken.with_suffix(".txt").write_text("nothing")
    orders = {"hold": MOMENTS[held] | {"seconds": 5}} if held in MOMENTS else {}
    for when, modes in {"cold": ("certified", "usual"), "warm": ("certified", "certified")}.items():
        with ThreadPoolExecutor(2) as both:
            starts = [
                both.submit(training.warm, when, mode, orders=order)
                for training, mode, order in zip((one, two), modes, (orders, {}), strict=True)
            ]
        for start in starts:
            assert len(start.result().run.updates()) == STEPS["max_train_steps"]
        assert one.in_buckets() == sorted(one.metadata()) == one.all_pictures()
        assert one.named() == [str(broken)]
    after = one.warm("after", "upstream")
    assert len(after.run.updates()) == STEPS["max_train_steps"]
    assert one.in_buckets() == sorted(one.metadata()) == one.all_pictures()


def told(trainings: Trainings) -> tuple[Any, ...]:
    """What a start has to leave behind, but for crops drawn at random."""
    metadata = {path: entry | {"crop_coordinates": None} for path, entry in trainings.metadata().items()}
    return trainings.in_buckets(), metadata, sorted(cached(trainings.data / "cache"))


@pytest.mark.slow
def test_first_batch_training_killed_in_its_start_begins_again(trainings: Trainings) -> None:
    whole = trainings.cold("whole", "certified", max_train_steps=1)
    wanted, rng = told(trainings), random.Random(SEED)
    times = [rng.uniform(0.05, 0.9 * whole.run.seconds) for _ in range(RANDOM_MOMENTS)]
    codes = {}
    for moment, kill in (MOMENTS | {f"second {after:.2f}": {"after": after} for after in times}).items():
        forget(trainings.data)
        killed = trainings.start("killed", "certified", orders={"kill": kill}, code=None, max_train_steps=1)
        codes[moment] = killed.run.code
        trainings.start("again", "certified", resume="killed", max_train_steps=1)
        assert told(trainings) == wanted, moment
    # On a machine that has become faster meanwhile a random moment may come too late.
    assert {codes[moment] for moment in MOMENTS} == {-signal.SIGKILL} and set(codes.values()) <= {-signal.SIGKILL, 0}


@pytest.mark.slow
@pytest.mark.parametrize("record", ["established", "lacking"])
def test_first_batch_training_killed_when_it_keeps_what_it_found_begins_again(
    trainings: Trainings, record: str
) -> None:
    trainings.cold("whole", "certified")
    dies = {"kill": {"on": PUT, "of": f"{record}-"}}
    trainings.warm("killed", "certified", orders=dies, code=-signal.SIGKILL)
    assert record not in trainings.records()
    names = ["killed", "again", "once more", "and again"]
    starts = [
        trainings.warm(name, "certified", resume=before, resume_from_checkpoint="") for before, name in pairwise(names)
    ]
    assert record in trainings.records()
    assert starts[-1].captions() == {0: 0} and starts[-1].late() == [["pictures", "latents", "names"]]
    assert starts[0].bits() == starts[1].bits() == starts[2].bits()
