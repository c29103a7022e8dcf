"""Values upstream's parser accepts and no training can use, and keys of other trainers: by name, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config.keys import plain_key
from ..config.problems import Problem, join_path, shown

_RANGES: tuple[tuple[Callable[[float], bool], str, tuple[str, ...]], ...] = (
    (lambda value: value >= 0, "must not be negative", (
        "max_train_steps", "num_train_epochs", "learning_rate", "lr_end", "lr_warmup_steps", "max_grad_norm", "repeats",
        "checkpoint_step_interval", "checkpoints_total_limit", "validation_step_interval", "minimum_image_size",
    )),
    (lambda value: value >= 1, "must be at least 1",
     ("train_batch_size", "gradient_accumulation_steps", "lora_rank", "validation_num_inference_steps")),
    (lambda value: value > 0, "must be above 0", ("resolution", "lora_alpha", "framerate")),
    (lambda value: 0 <= value <= 1, "must be from 0 to 1",
     ("caption_dropout_probability", "lora_dropout", "ema_decay", "probability")),
)  # fmt: skip
# Names in kohya's scripts and in ai-toolkit, and SimpleTuner's for the same.
FOREIGN: Mapping[str, str] = {
    "network_dim": "lora_rank", "network_alpha": "lora_alpha", "network_dropout": "lora_dropout", "unet_lr": "learning_rate",
    "network_module": "lora_type", "network_weights": "init_lora", "optimizer_type": "optimizer", "lr": "learning_rate",
    "max_train_epochs": "num_train_epochs", "min_snr_gamma": "snr_gamma", "output_name": "tracker_run_name",
    "save_every_n_steps": "checkpoint_step_interval", "save_every_n_epochs": "checkpoint_epoch_interval",
    "save_last_n_steps": "checkpoints_total_limit", "sample_every_n_steps": "validation_step_interval",
    "sample_prompts": "validation_prompt", "sample_sampler": "validation_noise_scheduler", "vae": "pretrained_vae_model_name_or_path",
    "train_data_dir": "datasets[].instance_data_dir", "image_dir": "datasets[].instance_data_dir",
    "dataset_config": "data_backend_config", "caption_extension": 'datasets[].caption_strategy "textfile"',
    "num_repeats": "datasets[].repeats", "lr_scheduler_num_cycles": "lr_num_cycles", "resume": "resume_from_checkpoint",
    "name_or_path": "pretrained_model_name_or_path", "steps": "max_train_steps", "batch_size": "train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps", "linear": "lora_rank", "linear_alpha": "lora_alpha",
    "dtype": "mixed_precision", "save_every": "checkpoint_step_interval", "sample_every": "validation_step_interval",
    "max_step_saves_to_keep": "checkpoints_total_limit", "folder_path": "datasets[].instance_data_dir",
    "training_folder": "output_dir", "caption_dropout_rate": "caption_dropout_probability", "quantize": "base_model_precision",
}  # fmt: skip


def range_problems(config: Mapping[str, Any], entries: Iterable[Mapping[str, Any]] = ()) -> Iterator[Problem]:
    """Numbers out of range, in the config and in its datasets."""
    blocks = [("", config), *((join_path("datasets", index), entry) for index, entry in enumerate(entries))]
    for where, block in blocks:
        for key, value in block.items():
            wanted = _wanted(plain_key(key), value)
            if wanted:
                yield Problem(
                    join_path(where, plain_key(key)) if where else plain_key(key), f"{wanted}; got {shown(value)}"
                )


def _wanted(key: str, value: object) -> str:
    try:
        number = float(str(value))
    except ValueError:
        return ""  # upstream's own parser judges what is no number
    return next((text for holds, text, keys in _RANGES if key in keys and not holds(number)), "")


def checkpoint_problems(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Upstream looks for a checkpoint of that name in output_dir, after everything is loaded."""
    named = str(config.get("resume_from_checkpoint") or "").strip()
    if named.lower() in ("", "latest", "none", "false") or "://" in named or not config.get("output_dir"):
        return
    output = Path(str(config["output_dir"])).expanduser()
    if not (output / Path(named).name).is_dir():
        there = sorted(path.name for path in output.glob("checkpoint-*")) or ["none"]
        text = f"{Path(named).name} is not in {output}; there: {', '.join(there[:8])}"
        yield Problem(
            "resume_from_checkpoint", f'{text}. "latest" takes the newest, and starts anew where there is none'
        )
