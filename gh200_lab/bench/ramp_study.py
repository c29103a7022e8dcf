"""`python -m gh200_lab.bench.ramp_study`: fixed, quadratic and measured batches on the tiny model, several seeds, one plot.

The tiny run's U-Net learns its images' latents with the fork's own ramp, noise meter and a real Accelerator; upstream's
trainer is left out, because its start takes longer than such a training. All batches have the same learning rate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from simpletuner.gh200.ramp.apply import RampControl
from simpletuner.gh200.ramp.noise_meter import NoiseMeter
from simpletuner.gh200.ramp.schedule import GH200GradientRamp

from ..place import ROOT
from ..tiny.images import make_images
from ..tiny.make import shared_model
from .result import spread

MICRO_BATCH, SMALL, LARGE = 2, 4, 64
RATE, WORDS, HELD_OUT = 1e-3, 8, 64
Ramp = partial(GH200GradientRamp, train_batch_size=MICRO_BATCH, unit="samples")
Points = list[tuple[int, int, float, int]]


@dataclass(frozen=True)
class Plan:
    """What to compare, and how long."""

    seeds: int
    samples: int

    def ramps(self) -> dict[str, GH200GradientRamp]:
        """The schedules by name."""
        return {
            f"fixed {SMALL}": Ramp(SMALL, SMALL, 0),
            f"fixed {LARGE}": Ramp(LARGE, LARGE, 0),
            f"quadratic {SMALL} to {LARGE}": Ramp(SMALL, LARGE, self.samples * 3 // 4),
            f"measured {SMALL} to {LARGE}": Ramp(SMALL, LARGE, max(self.samples // 12, 1), shape="measured"),
        }


class Material:
    """Latents of the tiny run's images, an embedding for each caption, and draws that are held out for the loss."""

    def __init__(self) -> None:
        from diffusers import AutoencoderKL, DDPMScheduler

        with tempfile.TemporaryDirectory() as name:
            make_images(Path(name), 24, [(64, 64)])
            images = torch.stack([_image(path) for path in sorted(Path(name).glob("*.png"))])
        vae = AutoencoderKL.from_pretrained(shared_model() / "vae")
        fixed = torch.Generator().manual_seed(1)
        with torch.no_grad():
            self.latents = vae.encode(images).latent_dist.mean
        self.latents = (self.latents - self.latents.mean()) / self.latents.std()
        self.words = torch.randn(len(self.latents), WORDS, 64, generator=fixed)
        self.pooled = torch.randn(len(self.latents), 32, generator=fixed)
        self.schedule = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
        self.held_out = self.draw(HELD_OUT, fixed)

    def draw(self, count: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
        """A random batch."""
        chosen = torch.randint(len(self.latents), (count,), generator=generator)
        noise = torch.randn(count, *self.latents.shape[1:], generator=generator)
        timesteps = torch.randint(1000, (count,), generator=generator)
        return {
            "latents": self.schedule.add_noise(self.latents[chosen], noise, timesteps),
            "noise": noise,
            "timesteps": timesteps,
            "words": self.words[chosen],
            "pooled": self.pooled[chosen],
        }


def _image(path: Path) -> torch.Tensor:
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return torch.from_numpy(np.asarray(image, dtype="float32")).permute(2, 0, 1) / 127.5 - 1


def _loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    conditions = {"text_embeds": batch["pooled"], "time_ids": torch.full((len(batch["noise"]), 6), 64.0)}
    predicted = model(batch["latents"], batch["timesteps"], batch["words"], added_cond_kwargs=conditions).sample
    return torch.nn.functional.mse_loss(predicted, batch["noise"])


def train(material: Material, ramp: GH200GradientRamp, seed: int, samples: int) -> Points:
    """Samples, steps, held-out loss and effective batch along one run."""
    from diffusers import UNet2DConditionModel

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    model = UNet2DConditionModel.from_pretrained(shared_model() / "unet")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=RATE))
    config = SimpleNamespace(train_batch_size=MICRO_BATCH, gradient_accumulation_steps=1, total_batch_size=0)
    state = {"global_step": 0, "current_epoch": 1}
    trainer = SimpleNamespace(accelerator=accelerator, optimizer=optimizer, config=config, state=state)
    control = RampControl(trainer, ramp, "target")
    control.meter = NoiseMeter(trainer) if ramp.shape == "measured" else None
    generator = torch.Generator().manual_seed(1000 + seed)
    points: Points = [(0, 0, _held_out(model, material), control.ramp.effective_batch_size(0))]
    for number in range(samples // MICRO_BATCH):
        if control.window != state["global_step"]:
            control.open(state["global_step"])
        batch = material.draw(MICRO_BATCH, generator)
        if control.meter is not None:
            control.meter.begin(batch)
        with accelerator.accumulate(model):
            accelerator.backward(_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            state["global_step"] += 1
        seen = (number + 1) * MICRO_BATCH
        if seen % LARGE == 0:
            points.append((seen, state["global_step"], _held_out(model, material), config.total_batch_size))
    return points


@torch.no_grad()
def _held_out(model: Any, material: Material) -> float:
    return float(_loss(model, material.held_out))


def study(plan: Plan) -> Iterator[tuple[str, list[Points]]]:
    """Train once per schedule and seed."""
    material = Material()
    for name, ramp in plan.ramps().items():
        runs = []
        for seed in range(plan.seeds):
            runs.append(train(material, ramp, seed, plan.samples))
            print(f"\r{name}: {seed + 1} of {plan.seeds} seeds", end="", file=sys.stderr, flush=True)
        last = [run[-1] for run in runs]
        middle, low, high = spread([loss for _, _, loss, _ in last])
        steps = statistics.median(steps for _, steps, _, _ in last)
        print(f"\r{name:<22} loss {middle:.4f} ({low:.4f} .. {high:.4f}) after {plan.samples} samples, {steps:g} steps")
        yield name, runs


def draw(found: dict[str, list[Points]], image: Path) -> None:
    """Plot loss and batch size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    for name, runs in found.items():
        points = list(zip(*runs, strict=True))
        samples = [at_once[0][0] for at_once in points]
        steps = [statistics.median(point[1] for point in at_once) for at_once in points]
        for axes, across, value in ((panels[0], samples, 2), (panels[1], steps, 2), (panels[2], samples, 3)):
            _line(axes, across, [[float(point[value]) for point in at_once] for at_once in points], name)
    panels[0].set(xlabel="samples", ylabel="held-out loss", yscale="log")
    panels[1].set(xlabel="optimizer steps", ylabel="held-out loss", yscale="log")
    panels[2].set(xlabel="samples", ylabel="effective batch size", yscale="log")
    panels[0].legend(fontsize="small")
    figure.savefig(image, dpi=100)


def _line(axes: Any, across: Sequence[float], values: Sequence[Sequence[float]], name: str) -> None:
    middle, low, high = zip(*map(spread, values), strict=True)
    line = axes.plot(across, middle, label=name)[0]
    axes.fill_between(across, low, high, color=line.get_color(), alpha=0.2)
    axes.grid(alpha=0.25, which="both")


def main(arguments: list[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gh200_lab.bench.ramp_study", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each kind (10)")
    parser.add_argument("--samples", type=int, default=640, help="samples each run sees (640)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench" / "ramp_study.png", help="the plot")
    given = parser.parse_args(arguments)
    if given.seeds < 1 or given.samples < LARGE:
        parser.error(f"at least 1 seed and {LARGE} samples")
    torch.set_num_threads(1)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    found = dict(study(Plan(given.seeds, given.samples)))
    draw(found, given.output)
    given.output.with_suffix(".json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    print(f"written: {given.output} and {given.output.with_suffix('.json').name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
