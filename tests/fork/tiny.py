"""A tiny SDXL LoRA training run on CPU: model, datasets, config, and one function that runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
FORK = Path(os.environ.get("GH200_FORK_TREE", REPO / "build" / "fork"))
PRISTINE = Path(os.environ.get("GH200_PRISTINE_TREE", REPO / "build" / "pristine"))
_MODEL_MAKER = (
    "import sys; from pathlib import Path; sys.path.insert(0, {here!r}); from gh200_lab.quickstart import tiny_model; "
    "tiny_model.make_model(Path({out!r}))"
)


@dataclass(frozen=True)
class Run:
    """A finished run: exit code, what it printed, its output folder, what was watched, and its full log file."""

    code: int
    log: str
    output: Path
    trace: list[dict[str, Any]]
    debug: str = ""

    def updates(self) -> list[str]:
        """A digest of the trained weights after each optimizer step, in order."""
        return [entry["weights"] for entry in self.trace if "weights" in entry]

    def windows(self) -> list[int]:
        """How many micro-batches went into each optimizer step."""
        sizes, count = [], 0
        for entry in self.trace:
            count += "loss" in entry
            if "weights" in entry:
                sizes.append(count)
                count = 0
        return sizes


class Lab:
    """A folder with a tiny model, datasets and caches. Runs share absolute paths, so their results can be compared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets: dict[str, int] = {}
        self.entry_changes: dict[str, Any] = {}
        folder.mkdir(parents=True, exist_ok=True)
        make_model(folder / "model")

    def add_dataset(self, name: str, images: int) -> None:
        make_images(self.folder / "data" / name, images, first_colour=37 * len(self.datasets))
        self.datasets[name] = images

    def add_shapes(self, name: str = "shapes", per_aspect: int = 3) -> Path:
        """The quick start's pictures, uncropped: four aspect ratios, so four buckets."""
        from gh200_lab.quickstart.tiny_dataset import ASPECTS, make_dataset

        self.datasets[name] = per_aspect * len(ASPECTS)
        self.entry_changes["crop"] = False
        return make_dataset(self.folder / "data" / name, per_aspect)

    def forget_caches(self) -> None:
        """As if nothing had run here yet: upstream compares only cold with cold."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        for path in (self.folder / "data").glob("*/aspect_ratio*"):
            path.unlink()

    def config(self, **changes: Any) -> Path:
        """Write the training config and the dataset file; `changes` are config keys."""
        backends = self.folder / "datasets.json"
        backends.write_text(json.dumps([*map(self._dataset_entry, self.datasets), self._text_entry()]))
        path = self.folder / "config.json"
        path.write_text(json.dumps({**self._defaults(), "data_backend_config": str(backends), **changes}))
        return path

    def run(
        self,
        name: str,
        *,
        tree: Path = FORK,
        resume: str = "",
        ranks: int = 1,
        drive: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Run:
        """Train in processes of its own and keep its output folder as `runs/NAME`; `resume` continues another run's."""
        output, kept = self.folder / "output", self.folder / "runs" / name
        shutil.rmtree(output, ignore_errors=True)
        if resume:
            shutil.copytree(self.folder / "runs" / resume, output)
            changes.setdefault("resume_from_checkpoint", "latest")
        output.mkdir(exist_ok=True)
        trace = output / "trace.jsonl"
        trace.unlink(missing_ok=True)
        triggers = self.folder / "triggers.json"
        triggers.write_text("{}")
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "CONFIG_BACKEND": "json",
            "CONFIG_PATH": str(self.config(**changes)),
            "TINY_DRIVE": json.dumps({"trace": str(trace), "triggers": str(triggers), **(drive or {})}),
            "SIMPLETUNER_ACCELERATE_SIGNAL_FILE": str(triggers),
            "HF_HUB_OFFLINE": "1",
            "PYTHONHASHSEED": "0",
            "SIMPLETUNER_LOG_LEVEL": "DEBUG",
            "CUDA_VISIBLE_DEVICES": "",
            "ACCELERATE_USE_CPU": "true",
        }
        launcher = [] if ranks == 1 else ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        script = [str(Path(__file__).with_name("drive.py")), str(tree / "simpletuner" / "train.py")]
        command = [sys.executable, *launcher, *script]
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
        )
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(exist_ok=True)
        lines = trace.read_text().splitlines() if trace.exists() else []
        debug = self.folder / "debug.log"
        output.rename(kept)
        watched = [json.loads(line) for line in lines]
        return Run(done.returncode, done.stdout, kept, watched, debug.read_text() if debug.exists() else "")

    def _defaults(self) -> dict[str, Any]:
        return {
            "model_family": "sdxl",
            "model_type": "lora",
            "lora_type": "standard",
            "lora_rank": 4,
            "lora_alpha": 4,
            "pretrained_model_name_or_path": str(self.folder / "model"),
            "pretrained_vae_model_name_or_path": str(self.folder / "model"),
            "output_dir": str(self.folder / "output"),
            "optimizer": "torch-adamw",
            "mixed_precision": "bf16",
            "base_model_precision": "no_change",
            "learning_rate": 0.001,
            "lr_scheduler": "constant",
            "max_train_steps": 6,
            "num_train_epochs": 0,
            "train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "checkpoint_step_interval": 1000,
            "resolution": 64,
            "resolution_type": "pixel",
            "vae_batch_size": 1,
            "caption_dropout_probability": 0.0,
            "report_to": "none",
            "push_to_hub": False,
            "seed": 42,
            "validation_disable": True,
            "validation_prompt_library": False,
            "disable_bucket_pruning": True,
            "aspect_bucket_worker_count": 1,
            # Upstream's scanning threads lose entries on a busy machine, its processes do not.
            "enable_multiprocessing": True,
            "torch_num_threads": 1,
        }

    def _dataset_entry(self, name: str) -> dict[str, Any]:
        entry = {
            "id": name,
            "type": "local",
            "dataset_type": "image",
            "instance_data_dir": str(self.folder / "data" / name),
            "caption_strategy": "textfile",
            "metadata_backend": "discovery",
            "resolution": 64,
            "resolution_type": "pixel",
            "minimum_image_size": 0,
            "crop": True,
            "crop_style": "center",
            "crop_aspect": "square",
            "cache_dir_vae": str(self.folder / "cache" / "vae" / name),
            **self.entry_changes,
        }
        return entry if entry["crop"] else {key: entry[key] for key in entry if not key.startswith("crop_")}

    def _text_entry(self) -> dict[str, Any]:
        cache = str(self.folder / "cache" / "text")
        return {"id": "text", "type": "local", "dataset_type": "text_embeds", "default": True, "cache_dir": cache}


def digests(folder: Path) -> dict[str, str]:
    """A digest per tensor of every safetensors file under a folder; file metadata (dates) does not count."""
    from safetensors import deserialize

    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, tensor in deserialize(path.read_bytes()):
            content = f"{tensor['dtype']}{tensor['shape']}".encode() + bytes(tensor["data"])
            found[f"{path.relative_to(folder)}:{name}"] = hashlib.sha256(content).hexdigest()
    return found


def make_images(folder: Path, count: int, *, first_colour: int = 0, size: int = 64) -> None:
    """Square pictures with captions; one aspect bucket, because several are not deterministic in upstream."""
    from PIL import Image, ImageDraw

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        shade = (first_colour + 53 * number) % 256
        picture = Image.new("RGB", (size, size), (shade, 255 - shade, (7 * shade) % 256))
        corner = 4 + number % 20
        ImageDraw.Draw(picture).rectangle([corner, corner, corner + 30, corner + 24], fill=(255 - shade, 80, shade))
        picture.save(folder / f"{number:03}.png")
        (folder / f"{number:03}.txt").write_text(f"picture {number} of shade {shade}")


def make_model(folder: Path) -> None:
    """The quick start's model, built in another process: torch is slow to import."""
    if (folder / "model_index.json").exists():
        return
    code = _MODEL_MAKER.format(here=str(REPO), out=str(folder))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
