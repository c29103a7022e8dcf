"""build/quickstart/report.html: one self-contained page that says what a run did, from its run log."""

from __future__ import annotations

import html
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..tiny.config import Record

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #b35900; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: .2rem; } h2 { margin-top: 2.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--soft); border-radius: .5rem; padding: .7rem .9rem; }
.tile b { display: block; font-size: 1.35rem; } .tile span { opacity: .75; font-size: .85rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
figure { margin: 1rem 0; background: #fff; border-radius: .5rem; padding: .5rem; } figure svg { width: 100%; height: auto; }
code, pre { background: var(--soft); border-radius: .3rem; padding: .1rem .3rem; } pre { padding: .7rem; overflow-x: auto; }
.on { color: var(--good); } .off { color: var(--bad); }
"""


@dataclass(frozen=True)
class Report:
    """Everything the page shows."""

    steps: list[Record]
    end: Record
    command: str
    seconds: float
    machine: dict[str, str]
    checkpoint: str


def write_page(run: Report, path: Path) -> Path:
    runtime = run.end.get("runtime") or {}
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Quick start report</title>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>{len(run.steps)} steps trained</h1><p>{html.escape(run.machine.get('device', ''))}</p>",
        _tiles(run),
        "<h2>Loss</h2>",
        _figure("loss", _loss_plot(run.steps)),
        "<h2>Effective batch size</h2>",
        _figure("batch", _batch_plot(run.steps)),
        "<h2>Memory of the trainer process</h2>",
        _figure("memory", _memory_plot(run.steps)),
        "<h2>What was on</h2>",
        _features(runtime),
        _measurements(runtime),
        "<h2>How it was run</h2>",
        f"<pre>{html.escape(run.command)}</pre>",
        _table(sorted({**run.machine, "LoRA weights": run.checkpoint}.items())),
        "</body></html>",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _tiles(run: Report) -> str:
    samples = sum(step["effective_batch_size"] for step in run.steps)
    training = run.steps[-1]["time"] - run.steps[0]["time"]
    after_first = samples - run.steps[0]["effective_batch_size"]
    peak = max(step["resident_bytes"] for step in run.steps)
    tiles = {
        "final loss": f"{run.steps[-1]['loss']:.4f}",
        "samples seen": f"{samples}",
        "samples per second": f"{after_first / training:.1f}" if training > 0 else "n/a",
        "seconds in all": f"{run.seconds:.0f}",
        "peak memory": _size(peak),
    }
    return (
        "<div class='tiles'>"
        + "".join(
            f"<div class='tile'><b>{html.escape(value)}</b><span>{name}</span></div>" for name, value in tiles.items()
        )
        + "</div>"
    )


def _features(runtime: Record) -> str:
    on, missing = runtime.get("on", {}), runtime.get("unavailable", {})
    if not on and not missing:
        return "<p>No GH200 feature was asked for: this was upstream's own training, unchanged.</p>"
    rows = [(f"<span class='on'>on</span> {html.escape(name)}", html.escape(str(text))) for name, text in on.items()]
    rows += [
        (f"<span class='off'>not possible here</span> {html.escape(name)}", html.escape(str(text)))
        for name, text in missing.items()
    ]
    return "<table>" + "".join(f"<tr><td>{name}</td><td>{text}</td></tr>" for name, text in rows) + "</table>"


def _measurements(runtime: Record) -> str:
    """What features measured about themselves, under the names they chose."""
    measured = runtime.get("measured", {})
    return "".join(f"<h2>{html.escape(title)}</h2>{_table(_flat(values))}" for title, values in measured.items())


def _flat(values: Record, above: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        rows += _flat(value, f"{above}{name}: ") if isinstance(value, dict) else [(f"{above}{name}", value)]
    return rows


def _table(rows: Any) -> str:
    return (
        "<table>"
        + "".join(
            f"<tr><td>{html.escape(str(name))}</td><td>{html.escape(str(value))}</td></tr>" for name, value in rows
        )
        + "</table>"
    )


def _figure(name: str, svg: str) -> str:
    return f"<figure id='{name}'>{svg}</figure>"


def _plot(draw: Any, label: str) -> str:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    draw(axes)
    axes.set(xlabel="optimizer step", ylabel=label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _loss_plot(steps: list[Record]) -> str:
    return _plot(lambda axes: axes.plot([s["step"] for s in steps], [s["loss"] for s in steps], marker="."), "loss")


def _batch_plot(steps: list[Record]) -> str:
    x, y = [s["step"] for s in steps], [s["effective_batch_size"] for s in steps]

    def draw(axes: Any) -> None:
        axes.step(x, y, where="mid", color="tab:green")
        axes.set_ylim(bottom=0)

    return _plot(draw, "samples per update")


def _memory_plot(steps: list[Record]) -> str:
    x, y = [s["step"] for s in steps], [s["resident_bytes"] / 2**30 for s in steps]

    def draw(axes: Any) -> None:
        axes.plot(x, y, color="tab:purple")
        axes.set_ylim(bottom=0)

    return _plot(draw, "resident GiB")


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError
