"""The quick start as a newcomer runs it: trains, reports, and leaves weights that diffusers loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from tests.browser import find_browser, look

WORK = tiny.ROOT / "build" / "quickstart"
LOADS = """
import sys, torch
from diffusers import StableDiffusionXLPipeline
pipeline = StableDiffusionXLPipeline.from_pretrained(sys.argv[1])
pipeline.load_lora_weights(sys.argv[2])
print(sorted(pipeline.get_active_adapters()))
"""

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_quick_start_trains_with_everything_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gh200_lab.quickstart.run", "--steps", "16"]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "16 steps" in done.stdout and "report" in done.stdout
    records = [json.loads(line) for line in (WORK / "run.jsonl").read_text().splitlines()]
    sizes = [record["effective_batch_size"] for record in records if record["kind"] == "step"]
    assert sizes == sorted(sizes) and sizes[0] == 1 and sizes[-1] > 1
    runtime = records[-1]["runtime"]
    assert runtime["measured"]["Staged into RAM: shapes"]["files"] == 48
    assert runtime["measured"]["Unified memory"]["caches"]["entries"] > 0
    assert {"in-memory datasets", "gradient accumulation ramp"} <= set(runtime["on"])
    page = (WORK / "report.html").read_text()
    assert page.count("<svg") == 3 and "Staged into RAM" in page
    if browser := find_browser():
        seen = look(browser, WORK / "report.html", tmp_path)
        assert seen.console == [] and seen.shows("#1f77b4") and seen.shows("#2ca02c")
    weights = WORK / "output" / "pytorch_lora_weights.safetensors"
    loaded = subprocess.run(
        [sys.executable, "-c", LOADS, str(WORK / "model"), str(weights)], capture_output=True, text=True
    )
    assert loaded.returncode == 0 and "default" in loaded.stdout, loaded.stderr[-2000:]
