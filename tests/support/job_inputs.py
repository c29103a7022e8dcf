"""Directories of images as users have them, and an upstream of a few keys to check configs against."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from simpletuner.gh200.preflight.upstream_keys import Upstream


def key(kind: str = "text", default: Any = None, choices: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "options": more.pop("options", []),
        "type": kind,
        "choices": choices,
        "required": False,
        "default": default,
    } | more


def upstream() -> Upstream:
    keys = {
        "model_family": key(choices=["sdxl", "sd3", "flux"], required=True),
        "model_type": key(default="full", choices=["full", "lora"], required=True),
        "output_dir": key(default="results", required=True),
        "optimizer": key(choices=["adamw_bf16", "torch-adamw"], required=True),
        "data_backend_config": key(required=True),
        "learning_rate": key("float", 1e-4),
        "train_batch_size": key("int", 4),
        "gradient_accumulation_steps": key("int", 1),
        "max_train_steps": key("int"),
        "num_train_epochs": key("int", 1),
        "resolution": key("int", 1024),
        "disable_bucket_pruning": key("bool", False),
        "mixed_precision": key(default="bf16", choices=["bf16", "no"]),
        "report_to": key("other", "none", ["simpletuner", "tensorboard", "none"]),
        "pretrained_model_name_or_path": key(),
        "pretrained_vae_model_name_or_path": key(default="madebyollin/sdxl-vae-fp16-fix"),
        "validation_prompt": key(),
        "tread_config": key(),
        "aspect_bucket_alignment": key(default="64", choices=["8", "64"]),
    }
    for name, known in keys.items():
        known["options"] = [name]
    known_family = {"subfolder": "unet", "vae_class": "AutoencoderKL", "default_flavour": "base"}
    families = {
        "sdxl": known_family | {"pipelines": ["StableDiffusionXLPipeline"], "models": {"base": "stabilityai/sdxl"}},
        "sd3": known_family
        | {
            "subfolder": "transformer",
            "pipelines": ["StableDiffusion3Pipeline"],
            "models": {"base": "stabilityai/sd3"},
        },
    }
    precision = {"adamw_bf16": "bf16", "torch-adamw": "any"}
    return Upstream(keys, frozenset({"validation_steps"}), frozenset({"tread_config"}), precision, families)


def image(
    path: Path, size: tuple[int, int] = (64, 64), caption: str | None = None, mode: str = "RGB", **save: Any
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(path, **save)
    if caption is not None:
        path.with_suffix(".txt").write_text(caption, encoding="utf-8")


def images(directory: Path, sizes: Iterable[tuple[int, int]], caption: str | None = "an image") -> Path:
    for number, size in enumerate(sizes):
        image(directory / f"{number:03d}.png", size, None if caption is None else f"{caption} {number}")
    return directory


def model(directory: Path, pipeline: str = "StableDiffusionXLPipeline", part: str = "unet", edge: int = 8) -> Path:
    """A model directory: its metadata, and weights of a few numbers."""
    for name in (part, "vae"):
        (directory / name).mkdir(parents=True)
    (directory / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    (directory / part / "config.json").write_text(json.dumps({"sample_size": edge}))
    (directory / "vae" / "config.json").write_text(json.dumps({"block_out_channels": [8] * 4}))
    header = json.dumps({"a.to_q.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}).encode()
    (directory / part / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    return directory
