"""A random Stable Diffusion 3 of about 1 MB: the smallest transformer family upstream trains from a local directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .model import HIDDEN, vocabulary_of_bytes, write_tokenizer

LATENT_CHANNELS = 16
JOINT = 2 * HIDDEN
PIECES = ("<pad>", "</s>", "<unk>")


def write_model(directory: Path, seed: int = 0) -> None:
    """A finished directory is recognised by its index, which is written last."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vocabulary = vocabulary_of_bytes()
        for name in ("tokenizer", "tokenizer_2"):
            write_tokenizer(directory / name, vocabulary)
        _pieces().save_pretrained(directory / "tokenizer_3")
        for name, part in _parts(vocabulary).items():
            part.save_pretrained(directory / name)
    (directory / "model_index.json").write_text(json.dumps(_index(), indent=1), encoding="utf-8")


def _letters() -> list[str]:
    return [chr(code) for code in range(ord("!"), ord("~") + 1)]


def _pieces() -> Any:
    """One piece per letter and the blank, as sentencepiece writes it."""
    from transformers import T5TokenizerFast

    scores = [
        (piece, 0.0 if number < len(PIECES) else -1.0) for number, piece in enumerate((*PIECES, "\u2581", *_letters()))
    ]
    return T5TokenizerFast(vocab=scores, extra_ids=0, model_max_length=77)


def _parts(vocabulary: dict[str, int]) -> dict[str, Any]:
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    clip = CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, projection_dim=HIDDEN,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=77,
        bos_token_id=len(vocabulary) - 2, eos_token_id=len(vocabulary) - 1, pad_token_id=len(vocabulary) - 1,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=128, d_model=JOINT, d_kv=16, d_ff=JOINT, num_layers=1, num_heads=4, pad_token_id=0, eos_token_id=1,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=LATENT_CHANNELS, out_channels=LATENT_CHANNELS, num_layers=2,
        attention_head_dim=8, num_attention_heads=4, joint_attention_dim=JOINT, caption_projection_dim=32,
        pooled_projection_dim=2 * HIDDEN, pos_embed_max_size=64,
    )  # fmt: skip
    blocks = 4
    vae = AutoencoderKL(
        latent_channels=LATENT_CHANNELS, layers_per_block=1, norm_num_groups=4, sample_size=64,
        block_out_channels=(8,) * blocks, down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks, scaling_factor=1.5305, shift_factor=0.0609,
        use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    return {
        "text_encoder": CLIPTextModelWithProjection(clip),
        "text_encoder_2": CLIPTextModelWithProjection(clip),
        "text_encoder_3": T5EncoderModel(t5),
        "transformer": transformer,
        "vae": vae,
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=3.0),
    }


def _index() -> dict[str, object]:
    transformers, diffusers = "transformers", "diffusers"
    return {
        "_class_name": "StableDiffusion3Pipeline",
        "_diffusers_version": "0.40.0",
        "scheduler": [diffusers, "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": [transformers, "CLIPTextModelWithProjection"],
        "text_encoder_2": [transformers, "CLIPTextModelWithProjection"],
        "text_encoder_3": [transformers, "T5EncoderModel"],
        "tokenizer": [transformers, "CLIPTokenizer"],
        "tokenizer_2": [transformers, "CLIPTokenizer"],
        "tokenizer_3": [transformers, "T5TokenizerFast"],
        "transformer": [diffusers, "SD3Transformer2DModel"],
        "vae": [diffusers, "AutoencoderKL"],
    }


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
