"""A start with every cache filled: upstream's own factory configures one dataset, from its listing to the first batch."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .first_batch import NAME, Alone, cpu_seconds, fast_start, make_pictures, many_links

CACHED = "text"
CAPTIONS = 1_000


class WarmScene:
    """A dataset with captions, latents and text embeddings in place; `started` is one start of a fresh process."""

    def __init__(self, folder: Path, dataset: dict[str, Any] | None = None) -> None:
        self.folder, self.output = folder / "pictures", folder / "output"
        self.latents, self.embeds = folder / "latents", folder / "embeds"
        usual = {
            "id": NAME,
            "type": "local",
            "dataset_type": "image",
            "instance_data_dir": str(self.folder),
            "cache_dir_vae": str(self.latents),
            "caption_strategy": "textfile",
            "resolution": 512,
            "resolution_type": "pixel",
            "crop": False,
            "repeats": 0,
        }
        self.dataset = usual | (dataset or {})

    def make(self, count: int, distinct: int, captions: int = CAPTIONS) -> None:
        """Many names for few files; the caches are named by upstream's own functions."""
        sizes = [(64 + number % 251, 64 + number // 251) for number in range(distinct)]
        pictures = make_pictures(self.folder.parent / "originals", sizes, ("jpg",))
        paths = many_links(self.folder, pictures, count)
        texts = []
        for number in range(captions):
            texts.append(self.folder.parent / "originals" / f"{number}.txt")
            texts[-1].write_text(f"a picture of {number} things in the style of somebody, at dawn", encoding="utf-8")
        for number, path in enumerate(paths):
            os.link(texts[number % len(texts)], os.path.splitext(path)[0] + ".txt")
        self._fill(paths, [text.read_text(encoding="utf-8") for text in texts])

    def _fill(self, paths: list[str], captions: list[str]) -> None:
        from simpletuner.helpers.caching.vae import VAECache

        entry = self.folder.parent / "originals" / "entry.pt"
        entry.write_bytes(b"an entry")
        names = Namespace(
            image_data_backend=None,
            hash_filenames=True,
            instance_data_dir=str(self.folder),
            cache_dir=str(self.latents),
        )
        made: set[str] = set()
        for path in paths:
            latent = VAECache.generate_vae_cache_filename(names, path)[0]
            if (parent := os.path.dirname(latent)) not in made:
                os.makedirs(parent, exist_ok=True)
                made.add(parent)
            os.link(entry, latent)
        self.embed(captions)

    def embed(self, captions: Iterable[str]) -> None:
        """Embeddings on disk for these captions, as a start of upstream would find them."""
        _, text = self.prepared()
        text.process_write_batches = False
        for caption in captions:
            name = text.hash_prompt_with_path({"prompt": caption, "key": caption, "metadata": {}})
            if not os.path.exists(name):
                os.link(self.folder.parent / "originals" / "entry.pt", name)

    def started(self, encoded: list[str] | None = None) -> Namespace:
        """Configured as the trainer does it, by upstream's own factory; what it would encode is noted, not encoded."""
        noted = encoded if encoded is not None else []
        factory, text = self.prepared()
        text.compute_prompt_embeddings_with_model = lambda records, **_: noted.extend(
            record["prompt"] for record in records
        )
        backend = dict(self.dataset)
        try:
            with _nothing_encoded(noted):
                factory._configure_single_data_backend(backend, [backend], [], [], False)
        finally:
            text.process_write_batches = False
        made = factory.data_backends[NAME]
        return Namespace(text=text, vae=made["vaecache"], metadata=made["metadata_backend"], sampler=made["sampler"])

    def prepared(self) -> tuple[Any, Any]:
        """Upstream's factory as a fresh process has it, with the text cache that its datasets share."""
        from simpletuner.helpers.caching.text_embeds import TextEmbeddingCache
        from simpletuner.helpers.data_backend.factory import FactoryRegistry
        from simpletuner.helpers.data_backend.local import LocalDataBackend
        from simpletuner.helpers.models.sdxl.model import SDXL
        from simpletuner.helpers.training.state_tracker import StateTracker

        forget(StateTracker)
        self.output.mkdir(parents=True, exist_ok=True)
        args = _parsed(self.output)
        model = SDXL.__new__(SDXL)
        model.config, model.vae = args, "a model that encodes nothing"
        accelerator = Alone()
        for name, value in {"args": args, "accelerator": accelerator, "model": model}.items():
            setattr(StateTracker, name, value)
        StateTracker.set_model_family("sdxl")
        StateTracker.delete_cache_files(data_backend_id=CACHED)
        text = TextEmbeddingCache(
            id=CACHED,
            data_backend=LocalDataBackend(accelerator, CACHED),
            text_encoders=[],
            tokenizers=[],
            accelerator=accelerator,
            cache_dir=str(self.embeds),
            model_type="sdxl",
            model=model,
        )
        StateTracker.set_data_backend_config(CACHED, {"id": CACHED})
        text.discover_all_files()
        factory = FactoryRegistry.__new__(FactoryRegistry)
        factory.args, factory.accelerator, factory.model = args, accelerator, model
        factory.text_encoders = factory.tokenizers = []
        factory.text_embed_backends = {CACHED: {"id": CACHED, "text_embed_cache": text}}
        factory.default_text_embed_backend_id = CACHED
        factory.image_embed_backends = factory.conditioning_image_embed_backends = {}
        factory.data_backends, factory._deferred_text_embed_backends = {}, []
        return factory, text


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _nothing_encoded(noted: list[str]) -> Iterator[None]:
    from simpletuner.helpers.caching.vae import VAECache

    plain = VAECache._filter_nsfw_relevant_files

    def note(self: Any, files: list[str], bucket: str) -> list[str]:
        noted.extend(files)
        return []

    VAECache._filter_nsfw_relevant_files = note
    try:
        yield
    finally:
        VAECache._filter_nsfw_relevant_files = plain


def forget(tracker: Any) -> None:
    """What a process keeps of an earlier start."""
    for kept in (tracker.all_image_files, tracker.all_vae_cache_files, tracker.all_text_cache_files):
        kept.clear()
    tracker.data_backends.clear()
    tracker.aspect_resolution_map.clear()


def _parsed(output: Path) -> Namespace:
    """Upstream's own defaults."""
    from simpletuner.helpers.configuration.cmd_args import parse_cmdline_args

    given = {
        "model_family": "sdxl",
        "model_type": "lora",
        "optimizer": "adamw_bf16",
        "output_dir": str(output),
        "data_backend_config": str(output / "datasets.json"),
        "pretrained_model_name_or_path": "none",
        "max_train_steps": 10,
        "num_train_epochs": 0,
        "seed": 7,
        "train_batch_size": 1,
    }
    parsed: Namespace = parse_cmdline_args([f"--{name}={value}" for name, value in given.items()])
    return parsed


def private_bytes() -> int:
    """Memory that is this process's alone and has been written."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        return sum(1024 * int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty"))


def measured(folder: Path, way: str) -> dict[str, float]:
    """One start in this process, from the factory to the first batch."""
    from accelerate import PartialState

    PartialState(cpu=True)
    scene = WarmScene(folder)
    with fast_start(way != "upstream", certified=way == "certified"), quietly():
        scene.prepared()
        cpu, wall, private = cpu_seconds(), time.perf_counter(), private_bytes()
        started = scene.started()
        next(iter(started.sampler))
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
        gc.collect()
        return {
            "cpu": cpu,
            "wall": wall,
            "private": private_bytes() - private,
        }


if __name__ == "__main__":
    os.environ.setdefault("SIMPLETUNER_LOG_LEVEL", "ERROR")
    if sys.argv[1] == "make":
        WarmScene(Path(sys.argv[2])).make(int(sys.argv[3]), int(sys.argv[4]))
    else:
        print(json.dumps(measured(Path(sys.argv[2]), sys.argv[1])))
