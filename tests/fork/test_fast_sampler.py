"""Upstream's own sampler with and without the fast start: the same samples, seen counts and random state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.first_batch import Scene, fast_start, sampler_over

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def trial(scene: Scene, on: bool, seed: int, batches: int) -> list[Any]:
    from simpletuner.helpers.training.exceptions import MultiDatasetExhausted

    rng = random.Random(seed)
    names = [f"/data/{number}.png" for number in range(rng.choice([5, 60, 1500]))]
    buckets = {
        str(aspect): rng.choices(names, k=rng.randint(1, len(names)))
        if rng.random() < 0.5
        else rng.sample(names, k=len(names))
        for aspect in (0.5, 1.0, 1.5)[: rng.randint(1, 3)]
    }
    batch = rng.choice([1, 3, 8])
    told: list[Any] = []
    with fast_start(on):
        sampler = sampler_over(scene, buckets, batch)
        held = sampler.metadata_backend.aspect_ratio_bucket_indices["0.5"] if rng.random() < 0.3 else None
        random.seed(seed)
        iterator = iter(sampler)
        for _ in range(batches):
            try:
                told.append([sample["image_path"] for sample in next(iterator)])
            except (MultiDatasetExhausted, StopIteration):
                told.append("exhausted")
                iterator = iter(sampler)
            _disturb(sampler, held, rng)
        told += [
            random.getstate(),
            dict(sampler.metadata_backend.seen_images),
            sampler.buckets,
            sampler.exhausted_buckets,
        ]
    return told


def _disturb(sampler: Any, held: list[str] | None, rng: random.Random) -> None:
    """What else may happen to buckets between two batches."""
    if rng.random() > 0.1:
        return
    backend = sampler.metadata_backend
    bucket = rng.choice(list(backend.aspect_ratio_bucket_indices))
    images = backend.aspect_ratio_bucket_indices[bucket]
    match rng.randrange(6):
        case 0 if len(images) > 2:
            backend.remove_image(rng.choice(images), bucket)
        case 1:
            images.append(rng.choice(images))
        case 2:
            backend.aspect_ratio_bucket_indices = dict(backend.aspect_ratio_bucket_indices)
        case 3 if held:
            held[rng.randrange(len(held))] = held[0]
        case 4:
            backend.mark_as_seen(rng.choice(images))
        case 5:
            backend.aspect_ratio_bucket_indices[bucket] = images[::-1]


def test_fast_sampler_gives_upstreams_sequence_and_random_state(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "none")
    for seed in range(60):
        upstream, ours = (trial(scene, on, seed, batches=120) for on in (False, True))
        assert ours == upstream, seed


def test_fast_sampler_is_in_use_and_resumes_from_upstreams_state(tmp_path: Path) -> None:
    from simpletuner.gh200.start.unseen import CountedList, UnseenIndex

    scene = Scene(tmp_path / "none")
    buckets = {"1.0": [f"/data/{number}.png" for number in range(500)]}
    sequences = []
    for first, then in ((False, False), (True, False), (False, True), (True, True)):
        state = tmp_path / f"state-{first}-{then}.json"
        with fast_start(first):
            sampler = sampler_over(scene, buckets, 4)
            random.seed(3)
            iterator = iter(sampler)
            for _ in range(10):
                next(iterator)
            assert isinstance(sampler._unseen_indices["1.0"], UnseenIndex) is first
            assert isinstance(sampler.metadata_backend.aspect_ratio_bucket_indices["1.0"], CountedList) is first
            sampler.save_state(str(state))
        with fast_start(then):
            resumed = sampler_over(scene, buckets, 4)
            resumed.load_states(str(state))
            random.seed(4)
            iterator = iter(resumed)
            sequences.append([[sample["image_path"] for sample in next(iterator)] for _ in range(20)])
    assert sequences[0] == sequences[1] == sequences[2] == sequences[3]
