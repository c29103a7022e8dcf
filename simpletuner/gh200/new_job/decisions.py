"""Every choice of a job, with its reason: the config that trains, from the directory, the model and the machine."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from ..config.keys import AUTO
from ..memory.limits import GB
from ..preflight.buckets import Rules, rules_of
from ..preflight.report import many, some
from .contact_sheet import most_cropped
from .images import ImageDirectory, kohya_repeats
from .model import Model
from .plan import Buckets, buckets_for, resolution_for, steps_for, window_for
from .write import CONTACT_SHEET, free_id

_LARGE_GPU = 60 * GB
_LONGEST_PROMPT = 300
_LORA_RANK = 16
_SEED = 42
_NOTED_LOSS = 0.01


@dataclass(frozen=True)
class TargetMachine:
    """What a job is sized to."""

    gpus: int
    gpu_bytes: int
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
    rules: Rules


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
    config = _base(model, machine, wishes, resolution, batch_size, steps, root)
    groups = groups_of(directory)
    buckets = {
        name: buckets_for(list(group.sizes.values()), rules, window, least) for name, (group, least) in groups.items()
    }
    config["datasets"] = [
        *(_dataset(group, data / name, wishes, resolution, buckets[name], root) for name, (group, _) in groups.items()),
        _text_embeds(wishes),
    ]
    config |= {"gh200_optimizations": AUTO, "gradient_accumulation_steps": window // unit}
    _validation(config, directory, machine, wishes, resolution)
    reasons = {
        "model": f"{config['pretrained_model_name_or_path']}, family {model.family} ({model.why}), "
        f"VAE {'its own' if model.vae == model.name else config['pretrained_vae_model_name_or_path']}",
        "resolution": f"{resolution}, by area ({'--resolution' if wishes.resolution else edge_why})",
        "buckets": _shown(reduce(add, (Counter(found.counts) for found in buckets.values()))),
        "cropping": _cropping(directory, rules, wishes),
        "batch": _batch_words(batch_size, window, buckets, wishes),
        "length": f"{steps} steps ({'--steps' if wishes.steps else 'about 40 looks at every image, 500 to 5000'})",
        "memory": 'gh200_optimizations "auto": the start, and a check of the config, show what it chooses and why',
        "tracker": f"{config['report_to']}; prompt: {config['validation_prompt']!r}",
    }
    prompts = [str(entry["instance_prompt"]) for entry in config["datasets"] if "instance_prompt" in entry]
    if prompts:
        reasons["caption"] = (
            f"{', '.join(map(repr, prompts))} for all images, which have none; --caption TEXT gives another"
        )
    return Job(config, reasons, rules)


def _shown(counts: Mapping[str, int]) -> str:
    first = ", ".join(f"{name}: {count}" for name, count in list(counts.items())[:8])
    return first + (f" and {len(counts) - 8} more" if len(counts) > 8 else "")


def _cropping(directory: ImageDirectory, rules: Rules, wishes: JobOptions) -> str:
    cropped = [(lost, name) for lost, name in most_cropped(directory.sizes, rules) if lost >= _NOTED_LOSS]
    sheet = f"jobs/{wishes.name}/{CONTACT_SHEET} shows what is trained"
    if not cropped:
        return f"no image loses {_NOTED_LOSS:.0%} of its area; {sheet}"
    named = some(f"{name} {lost:.0%}" for lost, name in cropped)
    return f"{len(cropped):,} of {many(len(directory.sizes), 'image')} lose up to {cropped[0][0]:.0%} of their area: {named}; {sheet}"


def _batch_words(batch_size: int, window: int, buckets: Mapping[str, Buckets], wishes: JobOptions) -> str:
    repeats = ", ".join(f"{name} {found.repeats}".strip() for name, found in buckets.items())
    return (
        f"{batch_size} a micro-batch x {wishes.processes} process{'es' if wishes.processes > 1 else ''}, {window} "
        f"an update; repeats {repeats}, so that every bucket fills it"
    )


def groups_of(directory: ImageDirectory) -> dict[str, tuple[ImageDirectory, int]]:
    """The datasets of a job: kohya's directories by name, each with its repeats, or all of it under no name."""
    tops = {name.partition("/")[0] if "/" in name else "" for name in directory.sizes}
    if not all(kohya_repeats(top) for top in tops):
        return {"": (directory, (kohya_repeats(directory.root.resolve().name) or 1) - 1)}
    found = {}
    for top in sorted(tops):
        inside = {name.partition("/")[2]: size for name, size in directory.sizes.items() if name.startswith(f"{top}/")}
        captions = {name: directory.captions.get(f"{top}/{name}", "") for name in inside}
        group = replace(directory, root=directory.root / top, sizes=inside, captions=captions)
        found[top] = (group, (kohya_repeats(top) or 1) - 1)
    return found


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


def _dataset(
    directory: ImageDirectory, data: Path, wishes: JobOptions, resolution: int, buckets: Buckets, root: Path
) -> dict[str, Any]:
    captioned = any(directory.captions.values())
    name = directory.root.resolve().name
    own = f"{wishes.name}-{name}" if data.name == name and kohya_repeats(name) else wishes.name
    images: dict[str, Any] = {
        "id": free_id(data, own),
        "type": "local",
        "dataset_type": "image",
        # Upstream writes latents of nested images where it does not look for them, unless it gets the absolute path.
        "instance_data_dir": os.path.abspath(data)
        if any("/" in image for image in directory.sizes)
        else _placed(str(data), root),
        "cache_dir_vae": f"jobs/{wishes.name}/cache/vae" + ("" if own == wishes.name else f"/{own}"),
        "caption_strategy": "textfile" if captioned else "instanceprompt",
        "metadata_backend": "discovery",
        "resolution": resolution,
        "resolution_type": "pixel_area",
        "minimum_image_size": 0,
        "crop": False,
        # Also without crop upstream fits each image to its bucket; centred, as the contact sheet shows it.
        "crop_style": "center",
        "repeats": buckets.repeats,
    }
    if not captioned:
        images["instance_prompt"] = wishes.caption or re.sub(r"^\d+_", "", name).replace("_", " ")
    return images


def _text_embeds(wishes: JobOptions) -> dict[str, Any]:
    return {
        "id": f"{wishes.name}-text", "type": "local", "dataset_type": "text_embeds", "default": True,
        "cache_dir": f"jobs/{wishes.name}/cache/text",
    }  # fmt: skip


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
