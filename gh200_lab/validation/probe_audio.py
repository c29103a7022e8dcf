"""Run in one tree: loads an audio file it makes through upstream's own audio code, in every way a dataset does. Writes JSON."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import sys
import wave
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

RATE, FRAMES = 16_000, 4_000


def samples() -> list[tuple[int, int]]:
    """A tone on the left, a quieter one on the right."""
    return [
        (round(20_000 * math.sin(0.05 * moment)), round(9_000 * math.sin(0.11 * moment))) for moment in range(FRAMES)
    ]


def write_audio(path: Path) -> None:
    """Write a wave file."""
    with wave.open(str(path), "wb") as audio:
        audio.setnchannels(2)
        audio.setsampwidth(2)
        audio.setframerate(RATE)
        audio.writeframes(b"".join(struct.pack("<hh", *pair) for pair in samples()))


def ways(path: Path) -> dict[str, Callable[[], Any]]:
    """The loaders by name."""
    from simpletuner.helpers.audio import load_audio
    from simpletuner.helpers.data_backend.local import LocalDataBackend

    backend = LocalDataBackend(accelerator=SimpleNamespace(is_main_process=True), id="audio")
    return {
        "path": lambda: load_audio(str(path)),
        "bytes": lambda: load_audio(path.read_bytes()),
        "stream": lambda: load_audio(io.BytesIO(path.read_bytes())),
        "data backend": lambda: load_audio(backend.read(str(path))),
    }


def measure(load: Callable[[], Any]) -> dict[str, Any]:
    """Compare what a loader returns with what was written."""
    import torch

    waveform, rate = load()
    wanted = torch.tensor(samples(), dtype=torch.float32).t() / 32768
    return {
        "rate": rate,
        "shape": list(waveform.shape),
        "digest": hashlib.sha256(waveform.contiguous().numpy().tobytes()).hexdigest(),
        "worst": float((waveform - wanted).abs().max()),
    }


def main() -> None:
    """Print the results as JSON."""
    import simpletuner

    path = Path(sys.argv[1]).with_suffix(".wav")
    write_audio(path)
    seen: dict[str, Any] = {}
    for name, load in ways(path).items():
        try:
            seen[name] = measure(load)
        except Exception as problem:
            seen[name] = {"unavailable": " ".join(f"{type(problem).__name__}: {problem}".split())[:200]}
    Path(sys.argv[1]).write_text(json.dumps({"from": simpletuner.__file__, "seen": seen}), encoding="utf-8")


if __name__ == "__main__":
    main()
