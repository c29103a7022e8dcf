"""The quick start as a newcomer runs it: few lines, two images, two reports, and weights that diffusers loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from browser import find_browser, lay_out, look
from PIL import Image
from terminal import Seen, in_terminal

WORK = tiny.ROOT / "build" / "quickstart"
LOADS = """
import sys, torch
from diffusers import StableDiffusionXLPipeline
pipeline = StableDiffusionXLPipeline.from_pretrained(sys.argv[1])
pipeline.load_lora_weights(sys.argv[2])
print(sorted(pipeline.get_active_adapters()))
"""
ROWS = 40

pytestmark = pytest.mark.timeout(1500)


def quick_start(columns: int, *arguments: str) -> Seen:
    """The whole command: set-up and fork are there already, and it says so."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GH200_")}
    seen = in_terminal(["scripts/quickstart.sh", *arguments], columns, tiny.ROOT, environment)
    assert seen.code == 0, "\n".join(seen.lines)
    assert seen.rows < ROWS, "\n".join(seen.lines)
    return seen


def test_quick_start_trains_with_everything_on(tmp_path: Path) -> None:
    seen = quick_start(80, "--steps", "16")
    assert [line.split()[0] for line in seen.lines[:4]] == [".venv", "fork", "model", "training"]
    drawn = [frame for frame in seen.frames[3] if "[" in frame]
    assert any("loss " in frame and "lr 0.001" in frame and "/16" in frame for frame in drawn), drawn
    named = dict(line.rsplit(maxsplit=1) for line in seen.lines if "build/" in line and ":" not in line)
    assert {"before", "after", "side by side", "weights", "report", "all curves", "log"} <= named.keys()
    assert all((tiny.ROOT / path).is_file() for path in named.values())
    records = [json.loads(line) for line in (WORK / "run.jsonl").read_text().splitlines()]
    sizes = [record["effective_batch_size"] for record in records if record["kind"] == "step"]
    assert len(sizes) == 16 and sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] > 1
    runtime = records[-1]["runtime"]
    assert runtime["measured"]["Staged into RAM: shapes"]["files"] == 48
    assert runtime["measured"]["Unified memory"]["caches"]["entries"] > 0
    assert {"in-memory datasets", "gradient accumulation ramp"} <= set(runtime["on"])
    weights = WORK / "output" / "pytorch_lora_weights.safetensors"
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS, str(WORK / "model"), str(weights)], capture_output=True, text=True
    )
    assert loaded.returncode == 0 and "default" in loaded.stdout, loaded.stderr[-2000:]
    _console_of_the_run((tiny.ROOT / named["log"]).read_text(encoding="utf-8", errors="replace"))
    _pages(tmp_path)
    _telemetry()


def _telemetry() -> None:
    command = [sys.executable, "-m", "simpletuner.gh200.watch", "--once", "--json", "build/quickstart/output"]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    assert state["state"] == "ended" and state["ranks"]["0"]["step"] == 16 and state["missing_ranks"] == []


def _console_of_the_run(text: str) -> None:
    twice = [line for line in text.splitlines() if line.count("[RANK 0]") > 1]
    assert "[RANK 0]" in text and not twice, twice[:3]
    assert "0.000 GB" not in text and "Staged 48 files, 9.5 KB" in text


def _pages(directory: Path) -> None:
    before, after = (Image.open(WORK / f"{name}.png").convert("RGB") for name in ("before", "after"))
    assert before.size == after.size == (64, 64) and before.tobytes() != after.tobytes()
    metrics = (WORK / "output" / "training_metrics.jsonl").read_text()
    for name in ("effective_batch_size", "resident_gb", "cache_filled_gb", "data_seconds", "compute_seconds"):
        assert f'"gh200/{name}"' in metrics, name
    own = WORK / "output" / "training_report.html"
    assert "gh200/resident_gb" in own.read_text() and own.read_text().count("validation_images/") == 2
    page = (WORK / "report.html").read_text()
    assert "output/training_report.html" in page and page.count("data:image/png") == 2
    if browser := find_browser():
        assert look(browser, own, directory).console == []
        for width in (390, 1280):
            for dark in (False, True):
                seen = lay_out(browser, WORK / "report.html", directory, width, dark)
                assert seen.look.console == [] and seen.found == [] and seen.wide <= width
                assert seen.images == [True, True]


def test_quick_start_in_a_wide_terminal_without_features() -> None:
    seen = quick_start(120, "--features", "off", "--steps", "2")
    assert "No GH200 feature was asked for" in (WORK / "report.html").read_text()
    assert any(line.startswith("2 steps, ") for line in seen.lines)


def test_quick_start_that_fails_shows_why(tmp_path: Path) -> None:
    log = tmp_path / "quick.log"
    environment = os.environ | {"GH200_LOG": str(log), "GH200_UVM_ACCESS_PATTERN": "sideways"}
    command = [sys.executable, "-m", "gh200_lab.quickstart.run"]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode != 0 and len(done.stderr.splitlines()) < ROWS, done.stderr
    assert "training         failed, exit code" in done.stderr
    assert "GH200_UVM_ACCESS_PATTERN" in done.stderr and "sideways" in done.stderr
    shown = min(str(log), os.path.relpath(log, tiny.ROOT), key=len)
    assert f"where: {shown}" in done.stderr and log.is_file()
