"""build/quickstart/report.html: what upstream's report lacks. What was on and why, the ramp, memory by kind and place."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from simpletuner.gh200.summary import loss_trend

from ..tiny.config import Record
from . import page_parts as parts


@dataclass(frozen=True)
class Report:
    """Everything the page shows. `images` are what the model drew before and after; `upstream` is its own report."""

    steps: list[Record]
    end: Record
    command: str
    seconds: float
    machine: dict[str, str]
    checkpoint: str
    images: tuple[Path, Path] | None = None
    upstream: Path | None = None
    notes: tuple[str, ...] = field(default=())


def write_page(run: Report, path: Path) -> Path:
    """Write the page of a run."""
    runtime = run.end.get("runtime") or {}
    made = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Quick start: what of the GH200 was used</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{parts.STYLE}</style></head><body>",
        _head(run, path),
        _images(run),
        "<h2>What was on, and what was not possible here</h2>",
        _features(runtime),
        "<h2>Effective batch size</h2>",
        _ramp(run.steps),
        "<h2>Memory, by kind and place</h2>",
        _memory(run.steps, runtime),
        _measurements(runtime),
        "<h2>How it was run</h2>",
        f"<pre>{parts.text(run.command)}</pre>",
        parts.rows((parts.text(name), parts.text(value)) for name, value in _facts(run)),
        "</body></html>",
    ]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join(made), encoding="utf-8")
    fresh.replace(path)
    return path


def _head(run: Report, path: Path) -> str:
    when = datetime.fromtimestamp(run.steps[-1]["time"], UTC)
    samples = sum(step["effective_batch_size"] for step in run.steps)
    first, last = loss_trend([step["loss"] for step in run.steps]) or (math.nan, math.nan)
    shown = {
        "mean loss, first and last quarter": f"{first:.4f} → {last:.4f}",
        "samples seen": f"{samples:,}",
        "seconds in all": f"{run.seconds:.0f}",
        "most memory of the trainer": parts.size(max(step["resident_bytes"] for step in run.steps)),
    }
    more = ""
    if run.upstream is not None:
        link = parts.text(os.path.relpath(run.upstream, path.parent))
        more = f"<p><a href='{link}'>Loss, learning rate, timesteps and all samples: SimpleTuner's own report</a></p>"
    device = parts.text(run.machine.get("device", ""))
    date = f"{when.day} {when:%B %Y, %H:%M} UTC"
    return f"<h1>{len(run.steps)} steps trained</h1><p class='quiet'>{date} · {device}</p>{parts.tiles(shown)}{more}"


def _images(run: Report) -> str:
    notes = "".join(f"<p class='quiet'>{parts.text(note)}</p>" for note in run.notes)
    if run.images is None:
        return notes
    before, after = run.images
    shown = parts.image(before, "before training") + parts.image(after, f"after {len(run.steps)} steps")
    caption = (
        "The model is tiny and random, so no shape is to be expected; the prompt and the seed of both are the same."
    )
    return (
        f"<h2>The same image, before and after</h2><div class='pair'>{shown}</div><p class='quiet'>{caption}</p>{notes}"
    )


def _features(runtime: Record) -> str:
    on, missing = runtime.get("on", {}), runtime.get("unavailable", {})
    if not on and not missing:
        return "<p>No GH200 feature was asked for: this was upstream's own training, unchanged.</p>"
    shown = [(f"<span class='on'>on</span> {parts.text(name)}", parts.text(value)) for name, value in on.items()]
    shown += [
        (f"<span class='off'>not possible here</span> {parts.text(name)}", parts.text(reason))
        for name, reason in missing.items()
    ]
    return parts.rows(shown)


def _ramp(steps: list[Record]) -> str:
    sizes = [step["effective_batch_size"] for step in steps]
    label = (
        f"{sizes[0]} → {sizes[-1]} samples per update" if sizes[0] != sizes[-1] else f"{sizes[0]} samples per update"
    )
    return parts.step_chart("batch", [step["step"] for step in steps], sizes, label, "optimizer step")


def _memory(steps: list[Record], runtime: Record) -> str:
    measured = runtime.get("measured", {})
    found: list[tuple[str, str, float]] = []
    for title, values in measured.items():
        if title.startswith("Staged into RAM") and "bytes in RAM" in values:
            name = title.partition(": ")[2]
            found.append((f"dataset {name}", "RAM, one copy per machine", values["bytes in RAM"]))
    caches = measured.get("Unified memory", {}).get("caches") or {}
    if "packed_bytes" in caches:
        place = "managed memory, where the GPU reads it" if caches.get("managed") else "RAM"
        found.append(("VAE and text caches", place, caches["packed_bytes"]))
    if caches.get("bytes_resident"):
        found.append(("latents that stay on the GPU", "HBM", caches["bytes_resident"]))
    resident = max(step["resident_bytes"] for step in steps)
    found.append(("the whole trainer process, at most", "RAM", resident))
    most = max(amount for _, _, amount in found) or 1
    return parts.rows(
        (
            parts.text(kind),
            f"{parts.size(amount)} <span class='quiet'>in {parts.text(place)}</span>"
            f"<span class='bar' style='width:{100 * amount / most:.1f}%'></span>",
        )
        for kind, place, amount in found
    )


def _measurements(runtime: Record) -> str:
    """What features measured about themselves, in words."""
    made = ""
    for title, values in runtime.get("measured", {}).items():
        lines = [(parts.text(name), parts.text(value)) for name, value in _flat(values)]
        note = f"<p class='quiet'>{parts.text(values['note'])}</p>" if values.get("note") else ""
        made += f"<h2>{parts.text(title)}</h2>{parts.rows(lines)}{note}" if lines else ""
    return made


def _flat(values: Record, above: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            words = parts.WORDS.get(name, name.replace("_", " "))
            found += _flat(value, (*above, words) if words else above)
        elif (shown := parts.formatted(name, value)) is not None:
            found.append((": ".join((*above, shown[0])), shown[1]))
    return found


def _facts(run: Report) -> list[tuple[str, str]]:
    return [*sorted(run.machine.items()), ("LoRA weights", run.checkpoint)]
