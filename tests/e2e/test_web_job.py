"""A training that people start from the page: its arguments, what the page shows, its end."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

from tests.support.web_browser import opened
from tests.support.web_lab import OURS, Server

pytestmark = [pytest.mark.slow(reason="a browser, and trainings started from the page"), pytest.mark.timeout(1800)]
LIMIT = 900_000
STEP = "Number(document.querySelector('[data-gh200-status]')?.textContent.match(/^Training: step (\\d+)/)?.[1] ?? -1)"


@pytest.fixture
def job(tmp_path: Path, web_server: Server) -> Iterator[dict[str, Any]]:
    """The tiny training with every block of ours, and more steps than anybody waits for. The page wants 256 pixels."""
    lab = tiny.Lab(tmp_path)
    config = lab.config("on", resolution=256, max_train_steps=5000, checkpoint_step_interval=10_000)
    config["gh200_optimizations"] |= {"telemetry_interval": 1, "batch_rampup_steps": 4000}
    yield config
    web_server.http.post("/api/training/stop")


def test_from_the_page_carries_everything_and_is_watched(
    chromium: Any, web_server: Server, job: dict[str, Any]
) -> None:
    web_server.show("job", job)
    with opened(chromium, web_server) as browser:
        page = browser.page
        assert "Training Starting" in browser.press("runBtn", "#training-status")
        page.goto(f"{browser.home}/gh200")
        page.wait_for_selector("[data-gh200-live] polyline")
        page.wait_for_function(f"{STEP} > 0", timeout=LIMIT)
        first = page.evaluate(STEP)
        measurements = page.inner_text("[data-gh200-measurements]")
        page.wait_for_function(f"{STEP} > {first}", timeout=LIMIT)
        assert page.inner_text("[data-gh200-measurements]") != measurements
        assert {"window", "step time", "RAM of the process", "datasets in RAM", "cache hits"} <= set(
            page.locator("[data-gh200-measurements] dt").all_inner_texts()
        )
        assert int(page.get_attribute("[data-gh200-here]", "data-gh200-here") or 0) >= first
        assert browser.juts_out() == []
        trainers = {
            pid: words for pid, words in web_server.descendants().items() if any("train.py" in word for word in words)
        }
        assert trainers
        for words in trainers.values():
            arguments = {flag.removeprefix("--"): text for flag, _, text in (word.partition("=") for word in words)}
            for key in job.keys() & {*OURS} - {"$schema"}:
                assert json.loads(arguments[key]) == job[key]
        for pid in trainers:
            os.kill(pid, signal.SIGKILL)
        page.wait_for_function(
            "document.querySelector('[data-gh200-status]').textContent.startsWith('Silent for')", timeout=60_000
        )
