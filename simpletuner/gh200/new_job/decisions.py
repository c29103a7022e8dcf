"""Every choice of a job, with its reason: the config that trains, from the directory, the model and the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.keys import AUTO
from ..memory.limits import GB
from ..preflight.buckets import rules_of
from .images import ImageDirectory
from .model import Model
from .plan import Buckets, buckets_for, resolution_for, steps_for, window_for
from .write import free_id

_LARGE_GPU = 60 * GB
_LONGEST_PROMPT = 300
_LORA_RANK = 16
_SEED = 42


@dataclass(frozen=True)
class TargetMachine:
    """What a job is sized to."""

    gpus: int
    gpu_bytes: int
    available: int
    cpus: int
    tracker: str


@dataclass(frozen=True)
class JobOptions:
    """What was given on the command line; None is a choice of ours."""

    name: str
    steps: int | None
    resolution: int | None
    batch_size: int | None
    effective_batch: int | None
    prompt: str | None
    caption: str | None
    checkpoint_every: int | None
    processes: int


@dataclass(frozen=True)
class Job:
    """The config, and the reason for each choice."""

    config: dict[str, Any]
    reasons: dict[str, str]


def choose(
    directory: ImageDirectory, data: Path, model: Model, machine: TargetMachine, wishes: JobOptions, root: Path
) -> Job:
    """`data` is where training reads the images: the directory itself, or one of links to what can be used."""
    sizes = list(directory.sizes.values())
    edge, edge_why = resolution_for(sizes, model.edge)
    resolution = wishes.resolution or edge
    batch_size = wishes.batch_size or (4 if machine.gpu_bytes >= _LARGE_GPU else 1)
    unit = batch_size * wishes.processes
    window = max(1, (wishes.effective_batch or window_for(len(sizes), unit)) // unit) * unit
    steps = wishes.steps or steps_for(len(sizes), window)
    rules = rules_of({"resolution": resolution, "resolution_type": "pixel_area"}, {"model_family": model.family})
    assert rules is not None
    buckets = buckets_for(sizes, rules, window)
    config = _base(model, machine, wishes, resolution, batch_size, steps, root)
    config["datasets"] = _datasets(directory, data, machine, wishes, resolution, buckets, root)
    config |= {"gh200_optimizations": AUTO, "gradient_accumulation_steps": window // unit}
    _validation(config, directory, machine, wishes, resolution)
    reasons = {
        "model": f"{config['pretrained_model_name_or_path']}, family {model.family} ({model.why}), "
        f"VAE {'its own' if model.vae == model.name else config['pretrained_vae_model_name_or_path']}",
        "resolution": f"{resolution}, by area ({'--resolution' if wishes.resolution else edge_why})",
        "buckets": f"{_shown(buckets.counts)}: no image is cut to another shape",
        "batch": _batch_words(batch_size, window, buckets, wishes),
        "length": f"{steps} steps ({'--steps' if wishes.steps else 'about 40 looks at every image, 500 to 5000'})",
        "memory": 'gh200_optimizations "auto": the start, and a check of the config, show what it chooses and why',
        "tracker": f"{config['report_to']}; prompt: {config['validation_prompt']!r}",
    }
    return Job(config, reasons)


def _shown(counts: Mapping[str, int]) -> str:
    first = ", ".join(f"{name}: {count}" for name, count in list(counts.items())[:8])
    return first + (f" and {len(counts) - 8} more" if len(counts) > 8 else "")


def _batch_words(batch_size: int, window: int, buckets: Buckets, wishes: JobOptions) -> str:
    smallest = min(buckets.counts.values())
    return (
        f"{batch_size} a micro-batch x {wishes.processes} process{'es' if wishes.processes > 1 else ''}, {window} "
        f"an update; repeats {buckets.repeats}, so the smallest bucket gives {smallest} x {buckets.repeats + 1} = "
        f"{smallest * (buckets.repeats + 1)} >= {window}"
    )


def _base(
    model: Model, machine: TargetMachine, wishes: JobOptions, resolution: int, batch_size: int, steps: int, root: Path
) -> dict[str, Any]:
    gpu = machine.gpu_bytes > 0
    every = wishes.checkpoint_every or max(1, min(500, steps // 4))
    named = {"model_flavour": model.flavour} if model.flavour else {}
    return {
        "model_family": model.family,
        **named,
        "model_type": "lora",
        "lora_type": "standard",
        "lora_rank": _LORA_RANK,
        "lora_alpha": _LORA_RANK,
        "pretrained_model_name_or_path": _placed(model.name, root),
        "pretrained_vae_model_name_or_path": _placed(model.vae, root),
        "output_dir": f"jobs/{wishes.name}/output",
        "optimizer": "adamw_bf16" if gpu else "torch-adamw",
        "mixed_precision": "bf16",
        "base_model_precision": "no_change",
        "gradient_checkpointing": gpu,
        "learning_rate": 1e-4,
        "lr_scheduler": "constant",
        "max_train_steps": steps,
        "num_train_epochs": 0,
        "train_batch_size": batch_size,
        "gradient_accumulation_steps": 1,
        "checkpoint_step_interval": every,
        "checkpoints_total_limit": 3,
        "resume_from_checkpoint": "latest",
        "resolution": resolution,
        "resolution_type": "pixel_area",
        "caption_dropout_probability": 0.1,
        "report_to": machine.tracker,
        "tracker_project_name": "gh200",
        "tracker_run_name": wishes.name,
        "push_to_hub": False,
        "seed": _SEED,
        "enable_multiprocessing": True,
        "aspect_bucket_worker_count": min(12, machine.cpus),
        "disable_bucket_pruning": True,
    }


def _datasets(
    directory: ImageDirectory,
    data: Path,
    machine: TargetMachine,
    wishes: JobOptions,
    resolution: int,
    buckets: Buckets,
    root: Path,
) -> list[dict[str, Any]]:
    captioned = any(directory.captions.values())
    images: dict[str, Any] = {
        "id": free_id(data, wishes.name),
        "type": "local",
        "dataset_type": "image",
        # Upstream writes latents of nested images where it does not look for them, unless it gets the absolute path.
        "instance_data_dir": os.path.abspath(data)
        if any("/" in name for name in directory.sizes)
        else _placed(str(data), root),
        "cache_dir_vae": f"jobs/{wishes.name}/cache/vae",
        "caption_strategy": "textfile" if captioned else "instanceprompt",
        "metadata_backend": "discovery",
        "resolution": resolution,
        "resolution_type": "pixel_area",
        "minimum_image_size": 0,
        "crop": False,
        "repeats": buckets.repeats,
    }
    if not captioned:
        images["instance_prompt"] = wishes.caption or directory.root.resolve().name.replace("_", " ")
    text = {
        "id": f"{wishes.name}-text", "type": "local", "dataset_type": "text_embeds", "default": True,
        "cache_dir": f"jobs/{wishes.name}/cache/text",
    }  # fmt: skip
    return [images, text]


def _validation(
    config: dict[str, Any], directory: ImageDirectory, machine: TargetMachine, wishes: JobOptions, resolution: int
) -> None:
    first = next((directory.captions[name] for name in directory.usable if directory.captions.get(name)), "")
    prompt = wishes.prompt or first.splitlines()[0][:_LONGEST_PROMPT] if (wishes.prompt or first) else ""
    config |= {
        "validation_prompt": prompt or config["datasets"][0].get("instance_prompt", ""),
        "validation_prompt_library": False,
        # Below 128 upstream takes a plain number for megapixels; this form it always takes for pixels.
        "validation_resolution": f"{resolution}x{resolution}",
        "validation_disable_unconditional": True,
        "disable_benchmark": not machine.gpu_bytes,
        "validation_seed": _SEED,
        "validation_num_inference_steps": 20 if machine.gpu_bytes else 2,
        "validation_step_interval": config["checkpoint_step_interval"],
        "num_validation_images": 1,
    }


def _placed(name: str, root: Path) -> str:
    """As a config started in `root` reads it: relative below it, whole elsewhere; a name of the hub as it is."""
    path = Path(name)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else name
