"""What a run will take, before it starts: time, memory by place, disk, and how often each image is seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class Needs:
    """What the checks have found out; bytes, and 0 or None where it is not known."""

    length: Length
    window: WindowBound
    memory: Memory | None
    latents: int
    staged: int
    available: int
    gpu: int
    managed: str


def add_estimates(report: Report, config: Mapping[str, Any], needs: Needs, found: list[Samples]) -> None:
    """Adds the estimates to the report, and what does not fit."""
    _length(report, config, needs, found)
    _memory(report, config, needs)
    _disk(report, config, needs)


def _length(report: Report, config: Mapping[str, Any], needs: Needs, found: list[Samples]) -> None:
    length = needs.length
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
    seconds = seconds_per_micro_batch(str(config.get("output_dir") or ""), needs.window)
    batches = length.samples / (needs.window.batch_size * needs.window.processes)
    report.facts["minutes"] = None if seconds is None else round(batches * seconds / 60, 1)
    unknown = "unknown: no earlier run in output_dir has measured a micro-batch of this size"
    known = (
        f"about {batches * (seconds or 0) / 60:.3g} minutes, by {seconds or 0:.3g} s a micro-batch in the run before"
    )
    report.show("time", unknown if seconds is None else known)


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


def _memory(report: Report, config: Mapping[str, Any], needs: Needs) -> None:
    report.facts["gpu_memory"] = needs.gpu
    memory = needs.memory
    if memory is None:
        report.add("not_checked", "memory of the model: its weights are not in a local directory")
    else:
        report.facts["memory"] = asdict(memory)
        where = "GPU and CPU, by managed_memory" if needs.managed != "off" else "GPU"
        report.show(
            "memory",
            f"{where}: weights {gb(memory.weights)}, gradients {gb(memory.gradients)}, optimizer {gb(memory.optimizer)}, "
            f"activations not known; {f'the GPU has {gb(needs.gpu)}' if needs.gpu else 'no GPU here'}",
        )
        kind, text = shortage_of(memory, config, needs.gpu) if needs.managed == "off" else (None, "")
        if kind:
            report.add(kind, f"memory of the GPU: {text}")
        kind, text = offload_of(needs.managed, memory, config, needs.gpu, needs.available)
        if kind:
            report.add(kind, f"managed_memory: {text}")
        elif text:
            report.show("offload", text)
    taken = f"datasets {gb(needs.staged)}, latents about {gb(needs.latents)} where cached"
    report.show("RAM", f"{taken}; {gb(needs.available)} can be used")


def _disk(report: Report, config: Mapping[str, Any], needs: Needs) -> None:
    parts, size = [f"latents about {gb(needs.latents)}"] if needs.latents else [], needs.latents
    free = free_disk(str(config.get("output_dir") or "."))
    if needs.memory is not None:
        count = checkpoints_of(config, needs.length.steps)
        size = count * needs.memory.checkpoint
        report.facts["checkpoints"] = {"count": count, "bytes": size, "free": free}
        parts.append(f"{count} checkpoints about {gb(size)}")
        if free is not None and size > free:
            text = f"{count} checkpoints take about {gb(size)}, the disk of the output has {gb(free)} free"
            report.add("problems", f"disk: {text}; keep fewer checkpoints, or use another disk")
    if parts:
        report.show("disk", f"{', '.join(parts)}; {gb(free)} free")
