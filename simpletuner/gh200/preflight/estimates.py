"""What a run will take, before it starts: time, memory by place, disk, and how often each image is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..telemetry.reader import read_directory
from .config import gb
from .memory_estimate import Length, Memory, checkpoints_of, free_disk, shortage_of
from .offload_estimate import offload_of
from .report import Report
from .samples import Samples
from .window_check import WindowBound


def add_length(
    report: Report, config: Mapping[str, Any], length: Length, window: WindowBound, found: list[Samples]
) -> None:
    """Steps, samples, how often each image is seen, and minutes."""
    report.facts["length"] = asdict(length)
    if not length.steps or length.samples is None:
        return
    epochs = f", {length.epochs:.1f} epochs" if length.epochs else ""
    report.show("length", f"{length.steps} steps, {length.samples} samples{epochs}")
    seen = {item.id: round((length.epochs or 0) * (item.repeats + 1), 1) for item in found if item.buckets}
    report.facts["seen"] = seen
    if seen:
        report.show(
            "seen", "each image about " + ", ".join(f"{times:g} times ({name})" for name, times in seen.items())
        )
    seconds = seconds_per_micro_batch(str(config.get("output_dir") or ""), window)
    minutes = None if seconds is None else length.samples / (window.batch_size * window.processes) * seconds / 60
    report.facts["minutes"] = None if minutes is None else round(minutes, 1)
    known = f"about {minutes:.3g} minutes, by {seconds:.3g} s a micro-batch in the run before" if minutes else ""
    report.show("time", known or "unknown: no earlier run in output_dir has measured a micro-batch of this size")


def seconds_per_micro_batch(output_dir: str, window: WindowBound) -> float | None:
    """By the telemetry of the newest run there; None where it has none, or of micro-batches of another size."""
    try:
        last = read_directory(Path(output_dir).expanduser()).first.latest
    except (GH200Error, OSError):
        return None
    samples = window.batch_size * window.processes
    spent, then = last.seconds, last.window
    if then is None or not spent.micro_batches or then.effective_batch_size != then.accumulation_steps * samples:
        return None
    return (spent.data + spent.compute + spent.other) / spent.micro_batches


def add_memory(
    report: Report, config: Mapping[str, Any], memory: Memory | None, gpu: int, managed: str, available: int
) -> None:
    """What the model takes, and where; a problem or a warning where that is too much."""
    report.facts["gpu_memory"] = gpu
    if memory is None:
        report.add("not_checked", "memory of the model: its weights are not in a local directory")
        return
    report.facts["memory"] = asdict(memory)
    where = "GPU and CPU, by managed_memory" if managed != "off" else "GPU"
    report.show(
        "memory",
        f"{where}: weights {gb(memory.weights)}, gradients {gb(memory.gradients)}, optimizer {gb(memory.optimizer)}, "
        f"activations not known; {f'the GPU has {gb(gpu)}' if gpu else 'no GPU here'}",
    )
    kind, text = shortage_of(memory, config, gpu) if managed == "off" else (None, "")
    if kind:
        report.add(kind, f"memory of the GPU: {text}")
    kind, text = offload_of(managed, memory, config, gpu, available)
    if kind:
        report.add(kind, f"managed_memory: {text}")
    elif text:
        report.show("offload", text)


def add_disk(report: Report, config: Mapping[str, Any], memory: Memory | None, latents: int, steps: int | None) -> None:
    """Latents and checkpoints; a problem where these do not fit."""
    parts, free = [f"latents about {gb(latents)}"] if latents else [], free_disk(str(config.get("output_dir") or "."))
    if memory is not None:
        count = checkpoints_of(config, steps)
        size = count * memory.checkpoint
        report.facts["checkpoints"] = {"count": count, "bytes": size, "free": free}
        parts.append(f"{count} checkpoints about {gb(size)}")
        if free is not None and size > free:
            text = f"{count} checkpoints take about {gb(size)}, the disk of the output has {gb(free)} free"
            report.add("problems", f"disk: {text}; keep fewer checkpoints, or use another disk")
    if parts:
        report.show("disk", f"{', '.join(parts)}; {gb(free)} free")
