"""A random ACE-Step model, every part real and as small as upstream allows, and a directory of captioned audio files for it."""

from __future__ import annotations

import math
import struct
import sys
import wave
from pathlib import Path
from typing import Any

RATE = 48000
TONES = {"low": 110.0, "middle": 220.0, "high": 440.0, "shrill": 880.0}
WIDTH = 32
VOCABULARY = ("<pad>", "</s>", "<unk>")


def make_audio(directory: Path, seconds: float = 1.0) -> Path:
    """One stereo tone per name, with a caption and lyrics beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, pitch in TONES.items():
        with wave.open(str(directory / f"{name}.wav"), "wb") as audio:
            audio.setparams((2, 2, RATE, 0, "NONE", "not compressed"))
            audio.writeframes(_tone(pitch, int(seconds * RATE)))
        (directory / f"{name}.txt").write_text(f"a {name} tone", encoding="utf-8")
        (directory / f"{name}.lyrics").write_text(f"{name}, {name}", encoding="utf-8")
    return directory


def _tone(pitch: float, frames: int) -> bytes:
    left = [int(9000 * math.sin(2 * math.pi * pitch * frame / RATE)) for frame in range(frames)]
    return struct.pack(f"<{2 * frames}h", *(value for one in left for value in (one, -one)))


def write_model(directory: Path, seed: int = 0) -> None:
    """In a process that can import `simpletuner`. Most of it is the lyric encoder, whose width upstream fixes."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        _tokenizer().save_pretrained(directory / "umt5-base")
        for name, part in _parts().items():
            part.to(torch.bfloat16).save_pretrained(directory / name)


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(ord(" "), ord("~") + 1)]
    known = {token: number for number, token in enumerate([*VOCABULARY, *letters])}
    letter_by_letter = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    letter_by_letter.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=letter_by_letter, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def _parts() -> dict[str, Any]:
    from diffusers import AutoencoderDC
    from transformers import UMT5Config, UMT5EncoderModel

    from simpletuner.helpers.models.ace_step.music_dcae.music_vocoder import ADaMoSHiFiGANV1
    from simpletuner.helpers.models.ace_step.transformer import ACEStepTransformer2DModel

    stages = 4
    text = UMT5Config(vocab_size=128, d_model=WIDTH, d_kv=8, d_ff=2 * WIDTH, num_layers=1, num_heads=4)
    autoencoder = AutoencoderDC(
        in_channels=2,
        latent_channels=8,
        encoder_block_out_channels=(8,) * stages,
        decoder_block_out_channels=(8,) * stages,
        encoder_layers_per_block=(1,) * stages,
        decoder_layers_per_block=(1,) * stages,
        encoder_qkv_multiscales=((),) * stages,
        decoder_qkv_multiscales=((),) * stages,
        encoder_block_types="ResBlock",
        decoder_block_types="ResBlock",
    )
    vocoder = ADaMoSHiFiGANV1(depths=[1] * stages, dims=[8] * stages, num_mels=8, upsample_initial_channel=128)
    transformer = ACEStepTransformer2DModel(
        num_layers=2,
        num_attention_heads=4,
        attention_head_dim=WIDTH // 4,
        inner_dim=WIDTH,
        mlp_ratio=2.0,
        speaker_embedding_dim=WIDTH,
        text_embedding_dim=WIDTH,
        ssl_encoder_depths=[1, 1],
        max_position=1024,
        max_width=256,
    )
    return {
        "umt5-base": UMT5EncoderModel(text),
        "music_dcae_f8c8": autoencoder,
        "music_vocoder": vocoder,
        "ace_step_transformer": transformer,
    }


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
