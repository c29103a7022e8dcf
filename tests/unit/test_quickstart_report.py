"""The quick start's page: complete, self-contained, and honest about what was not on."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gh200_lab.quickstart.report_page import Report, write_page
from gh200_lab.tiny.run import read_log
from tests.browser import find_browser, look

STEP = {"kind": "step", "loss": 1.0, "effective_batch_size": 2, "resident_bytes": 2**30, "learning_rate": 1e-3}


def make_page(folder: Path, runtime: dict) -> str:
    log = folder / "run.jsonl"
    steps = [{**STEP, "step": number, "time": float(number)} for number in range(1, 4)]
    log.write_text("".join(json.dumps(record) + "\n" for record in [*steps, {"kind": "end", "runtime": runtime}]))
    found, end = read_log(log)
    report = Report(found, end, "accelerate launch <x>", 3.0, {"device": "CPU & more"}, "weights.safetensors")
    return write_page(report, folder / "report.html").read_text()


def test_page_has_its_plots_and_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = make_page(tmp_path, {})
    for name in ("loss", "batch", "memory"):
        assert re.search(rf"<figure id='{name}'><svg", page)
    fetched = re.findall(r"""(?:src|href)\s*=\s*["'](?!#)([^"']+)""", page)
    assert not fetched and "<script" not in page and "@import" not in page
    HTMLParser().feed(page)
    assert "&lt;x&gt;" in page and "CPU &amp; more" in page


def test_page_says_what_was_on_and_what_was_not(tmp_path: Path) -> None:
    assert "No GH200 feature was asked for" in make_page(tmp_path, {})
    page = make_page(
        tmp_path,
        {
            "on": {"ramp": "1 -> 4"},
            "unavailable": {"hints": "no driver"},
            "measured": {"Staged into RAM: x": {"files": 48}, "Unified memory": {"caches": {"hits": 7}}},
        },
    )
    for words in ("1 -&gt; 4", "no driver", "Staged into RAM: x", "caches: hits", "<td>7</td>"):
        assert words in page


def test_a_log_that_was_cut_off_by_a_kill_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps({**STEP, "step": 1, "time": 0.0}) + "\n")
    steps, end = read_log(tmp_path / "run.jsonl")
    assert len(steps) == 1 and end == {}


@pytest.fixture(scope="module")
def browser() -> str:
    found = find_browser()
    if found is None:
        pytest.skip("no chromium here; on Debian: apt-get install chromium")
    return found


@pytest.mark.integration
def test_a_browser_draws_every_plot_and_has_nothing_to_complain_about(tmp_path: Path, browser: str) -> None:
    make_page(tmp_path, {"on": {"ramp": "1 -> 4"}})
    seen = look(browser, tmp_path / "report.html", tmp_path)
    assert seen.console == []
    # matplotlib's blue, green and purple: the curves of loss, batch size and memory.
    assert [seen.shows(colour) for colour in ("#1f77b4", "#2ca02c", "#9467bd")] == [True] * 3


@pytest.mark.integration
def test_what_the_browser_complains_about_is_seen(tmp_path: Path, browser: str) -> None:
    page = tmp_path / "broken.html"
    page.write_text("<script>nosuch()</script>")
    seen = look(browser, page, tmp_path)
    assert any("nosuch" in message for message in seen.console) and not seen.shows("#1f77b4")
