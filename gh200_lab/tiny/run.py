"""What a training run left behind, and whether two of them computed the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from ..machine import gpus
from .config import Record

# Kernels of a GPU add in no fixed order.
GPU_TOLERANCE = 0.01


@dataclass(frozen=True)
class Run:
    """Exit code, what was printed, the output directory; steps and last words of the run log; what the driver watched."""

    code: int
    text: str
    seconds: float
    output: Path
    steps: list[Record]
    end: Record
    trace: list[Record]

    def losses(self) -> list[float]:
        """Loss of each optimizer step."""
        return [step["loss"] for step in self.steps]

    def windows(self) -> list[int]:
        """How many micro-batches went into each optimizer step, as the run itself says."""
        return [step["gradient_accumulation_steps"] for step in self.steps]

    def features(self) -> Record:
        """What of the fork was on, with what was said about it."""
        on: Record = (self.end.get("runtime") or {}).get("on", {})
        return on

    def updates(self) -> list[str]:
        """A digest of the trained weights after each optimizer step, as watched."""
        return [entry["weights"] for entry in self.trace if "weights" in entry]

    def micro_losses(self) -> list[str]:
        """The exact loss of each micro-batch."""
        return [entry["loss"] for entry in self.trace if "loss" in entry]

    def batches(self) -> list[list[str]]:
        """The names of the files of each batch, in their order, as watched."""
        return [entry["batch"] for entry in self.trace if "batch" in entry]

    def watched_windows(self) -> list[int]:
        """How many micro-batches went into each optimizer step, as counted from outside."""
        sizes, count = [], 0
        for entry in self.trace:
            count += "loss" in entry
            if "weights" in entry:
                sizes.append(count)
                count = 0
        return sizes


def read_log(path: Path) -> tuple[list[Record], Record]:
    """Steps and end of a run log."""
    records = read_lines(path)
    ends = [record for record in records if record["kind"] == "end"]
    return [record for record in records if record["kind"] == "step"], ends[-1] if ends else {}


def read_lines(path: Path) -> list[Record]:
    """A record per line; one that is still being written does not count."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def differing_losses(one: Run, other: Run, first: int | None = None) -> list[int]:
    """Steps, counted from 1, whose losses differ: on a CPU in any bit, on a GPU beyond its tolerance."""
    pairs = zip(one.losses()[:first], other.losses()[:first], strict=True)
    tolerance = GPU_TOLERANCE if gpus() else 0.0
    return [step for step, pair in enumerate(pairs, 1) if not math.isclose(*pair, rel_tol=tolerance)]


def weights(directory: Path) -> dict[str, str]:
    """A digest per tensor of every safetensors file under a directory; file metadata (dates) does not count."""
    from safetensors import deserialize

    found: dict[str, str] = {}
    for path in sorted(directory.rglob("*.safetensors")):
        for name, tensor in deserialize(path.read_bytes()):
            content = f"{tensor['dtype']}{tensor['shape']}".encode() + bytes(tensor["data"])
            found[f"{path.relative_to(directory)}:{name}"] = hashlib.sha256(content).hexdigest()
    return found


def cached(directory: Path) -> dict[str, bytes]:
    """Upstream's cache files below a directory; it compresses them, and gzip writes the time into them."""
    return {
        str(path.relative_to(directory)): gzip.decompress(path.read_bytes()) for path in sorted(directory.rglob("*.pt"))
    }
