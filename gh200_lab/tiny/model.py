"""A random SDXL pipeline of about 1 MB: every part real, every size as small as diffusers allows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HIDDEN = 32
LATENT_CHANNELS = 4
START, END = "<|startoftext|>", "<|endoftext|>"
SPECIAL_TOKENS = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}


def write_model(directory: Path, seed: int = 0, width: int = 8) -> None:
    """A finished directory is recognised by its index, which is written last; `width` is the UNet's narrowest channel."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vocabulary = vocabulary_of_bytes()
        for name in ("tokenizer", "tokenizer_2"):
            write_tokenizer(directory / name, vocabulary)
        for name, part in _parts(vocabulary, width).items():
            part.save_pretrained(directory / name)
    (directory / "model_index.json").write_text(json.dumps(_index(), indent=1), encoding="utf-8")


def vocabulary_of_bytes() -> dict[str, int]:
    """One token per byte, alone and at the end of a word, with no merges: every caption can be spelled."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(0x100, 0x200))
    letters = [chr(byte) if byte in printable else chr(next(shifted)) for byte in range(256)]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), START, END]
    return {token: number for number, token in enumerate(tokens)}


def write_tokenizer(directory: Path, vocabulary: dict[str, int]) -> None:
    """Write the files of a tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "vocab.json": json.dumps(vocabulary, ensure_ascii=False),
        "merges.txt": "#version: 0.2\n",
        "special_tokens_map.json": json.dumps(SPECIAL_TOKENS),
        "tokenizer_config.json": json.dumps(
            {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True, **SPECIAL_TOKENS}
        ),
    }
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")


def _parts(vocabulary: dict[str, int], width: int) -> dict[str, Any]:
    from diffusers import AutoencoderKL, EulerDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    text = CLIPTextConfig(
        vocab_size=len(vocabulary),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        projection_dim=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=77,
        bos_token_id=vocabulary[START],
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[END],
    )
    time_embedding = 8
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        layers_per_block=1,
        block_out_channels=(width, 2 * width),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 1),
        use_linear_projection=True,
        cross_attention_dim=2 * HIDDEN,
        addition_embed_type="text_time",
        addition_time_embed_dim=time_embedding,
        projection_class_embeddings_input_dim=6 * time_embedding + HIDDEN,
    )
    blocks = 4
    vae = AutoencoderKL(
        latent_channels=LATENT_CHANNELS,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        block_out_channels=(8,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        scaling_factor=0.13025,
    )
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        steps_offset=1,
        timestep_spacing="leading",
    )
    return {
        "text_encoder": CLIPTextModel(text),
        "text_encoder_2": CLIPTextModelWithProjection(text),
        "unet": unet,
        "vae": vae,
        "scheduler": scheduler,
    }


def _index() -> dict[str, object]:
    parts = {
        "text_encoder": ("transformers", "CLIPTextModel"),
        "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"),
        "tokenizer": ("transformers", "CLIPTokenizer"),
        "tokenizer_2": ("transformers", "CLIPTokenizer"),
        "unet": ("diffusers", "UNet2DConditionModel"),
        "vae": ("diffusers", "AutoencoderKL"),
        "scheduler": ("diffusers", "EulerDiscreteScheduler"),
    }
    settings: dict[str, object] = {
        "_class_name": "StableDiffusionXLPipeline",
        "_diffusers_version": "0.40.0",
        "force_zeros_for_empty_prompt": True,
        "add_watermarker": False,
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
    }
    return settings | {name: list(place) for name, place in parts.items()}


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), width=int(sys.argv[2]) if len(sys.argv) > 2 else 8)
