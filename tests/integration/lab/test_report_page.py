"""The quick start's page: what upstream's report lacks, self-contained, whole on a phone and at night."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import lay_out, look, need_browser
from PIL import Image

from gh200_lab.quickstart import samples
from gh200_lab.quickstart.page_parts import size
from gh200_lab.quickstart.report_page import Report, write_page
from gh200_lab.tiny.run import read_log

STEP = {"kind": "step", "loss": 1.0, "effective_batch_size": 2, "resident_bytes": 2**30, "learning_rate": 1e-3}
NOVEMBER = 1_795_000_000.0
RUNTIME: dict[str, Any] = {
    "on": {"ramp": "1 -> 4", "VAE cache in unified memory": "plain RAM: " + "there is no driver " * 9},
    "unavailable": {"hints": "no driver"},
    "measured": {
        "Staged into RAM: " + "a_long_dataset_name_without_a_blank_" * 4: {
            "files": 48,
            "bytes": 9520,
            "bytes in RAM": 8898,
        },
        "Unified memory": {
            "enabled": True,
            "device_gone": None,
            "errors": {},
            "hints": {"batch": {"no_driver": 360}},
            "caches": {
                "hits": 7,
                "managed": False,
                "packed_bytes": 287232,
                "limit_bytes": None,
                "counts": {"admitted": 3},
            },
            "note": "the arenas hold caches",
        },
    },
}


def make_page(directory: Path, runtime: dict[str, Any], count: int = 3, **more: Any) -> str:
    log = directory / "run.jsonl"
    steps = [
        {**STEP, "step": number, "time": NOVEMBER + number, "effective_batch_size": number}
        for number in range(1, count + 1)
    ]
    log.write_text("".join(json.dumps(record) + "\n" for record in [*steps, {"kind": "end", "runtime": runtime}]))
    found, end = read_log(log)
    command = "accelerate launch <x> --" + "long_argument" * 20
    report = Report(found, end, command, 3.0, {"device": "CPU & more"}, "weights.safetensors", **more)
    return write_page(report, directory / "report.html").read_text()


def make_images(directory: Path) -> tuple[Path, Path]:
    paths = directory / "before.png", directory / "after.png"
    for path, colour in zip(paths, ("#cc3311", "#1133cc"), strict=True):
        Image.new("RGB", (64, 64), colour).save(path)
    return paths


def test_report_page_needs_nothing_from_outside(tmp_path: Path) -> None:
    page = make_page(tmp_path, {}, images=make_images(tmp_path), upstream=tmp_path / "output/training_report.html")
    fetched = re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)([^"']+)""", page)
    assert fetched == ["output/training_report.html"] and "<script" not in page and "@import" not in page
    HTMLParser().feed(page)
    assert "&lt;x&gt;" in page and "CPU &amp; more" in page and "18 November 2026" in page


def test_report_page_leaves_to_upstream_what_upstream_shows(tmp_path: Path) -> None:
    page = make_page(tmp_path, RUNTIME)
    assert page.count("<svg") == 1 and "id='batch'" in page
    assert "<img" not in page and "<a " not in page


def test_report_page_says_what_was_on_and_what_was_not(tmp_path: Path) -> None:
    assert "No GH200 feature was asked for" in make_page(tmp_path, {})
    page = make_page(tmp_path, RUNTIME)
    for words in ("1 -&gt; 4", "no driver", "not possible here", "caches: hits</th><td>7", "the arenas hold caches"):
        assert words in page, words


def test_report_page_has_words_instead_of_raw_names(tmp_path: Path) -> None:
    page = make_page(tmp_path, RUNTIME)
    seen = re.sub(
        r"<style>.*?</style>|<[^>]*>", " ", page.replace("a_long_dataset_name_without_a_blank_", ""), flags=re.DOTALL
    )
    seen = seen.replace("long_argument", "")
    assert not re.search(r"\b\w+_\w+\b|\bNone\b|\bTrue\b|\{", seen), seen
    for words in ("memory hints: batch: not given, no driver", "8.9 KB", "287.2 KB", "1.1 GB", "caches: taken in"):
        assert words in seen, words


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (9520, "9.5 KB"), (287232, "287.2 KB"), (3.2e12, "3200.0 GB")],
)
def test_report_page_has_measurements_with_sensible_units(number: float, shown: str) -> None:
    assert size(number) == shown


def test_a_log_that_was_cut_off_by_a_kill_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text(json.dumps({**STEP, "step": 1, "time": 0.0}) + "\n")
    steps, end = read_log(tmp_path / "run.jsonl")
    assert len(steps) == 1 and end == {}
    assert "1 steps trained" in write_page(Report(steps, end, "c", 1.0, {}, "w"), tmp_path / "report.html").read_text()


def media(directory: Path, *made: tuple[int, str]) -> None:
    for step, label in made:
        Image.new("RGB", (64, 100), (step, 0, 0)).save(directory / f"{step}-{label}.png")
    lines = [json.dumps({"type": "image", "step": s, "label": label, "path": f"{s}-{label}.png"}) for s, label in made]
    (directory / samples.MEDIA).write_text("".join(line + "\n" for line in lines) + '{"type": "ima')


def test_report_page_images_are_of_one_prompt_first_and_last(tmp_path: Path) -> None:
    assert samples.before_and_after(tmp_path) is None
    media(tmp_path, (0, "b"), (0, "a"), (12, "a"), (24, "a"), (24, "b"))
    before, after = samples.before_and_after(tmp_path) or pytest.fail("none found")
    assert (before.name, after.name) == ("0-a.png", "24-a.png")
    cut = samples.without_caption(after, (64, 64), tmp_path / "cut.png")
    assert Image.open(cut).size == (64, 64)
    sheet = Image.open(samples.side_by_side(before, after, tmp_path / "sheet.png"))
    assert sheet.size == (528, 256) and sheet.getpixel((5, 5)) != sheet.getpixel((500, 5))
    media(tmp_path, (24, "a"), (24, "b"))
    assert samples.before_and_after(tmp_path) is None


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False), (1280, True)])
def test_report_page_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    browser = need_browser()
    make_page(tmp_path, RUNTIME, count=300, images=make_images(tmp_path))
    seen = lay_out(browser, tmp_path / "report.html", tmp_path, width, dark)
    assert seen.look.console == [] and seen.found == [] and seen.wide <= width
    assert (seen.back, seen.text) == (
        ("rgb(20, 24, 28)", "rgb(227, 231, 235)") if dark else ("rgb(255, 255, 255)", "rgb(28, 33, 38)")
    )
    assert seen.images == [True, True] and seen.look.shows("#cc3311") and seen.look.shows("#1133cc")
    # The ramp's stair, in the green of that time of day.
    assert seen.look.shows("#66c26a" if dark else "#2e7d32")


def test_report_page_that_juts_out_is_noticed(tmp_path: Path) -> None:
    browser = need_browser()
    page = tmp_path / "wide.html"
    page.write_text(
        "<body><div id='far' style='width:900px'>x</div><img src='nosuch.png'><script>nosuch()</script></body>"
    )
    seen = lay_out(browser, page, tmp_path, 390)
    assert "DIV#far" in seen.found and seen.wide > 390 and seen.images == [False]
    assert any("nosuch" in message for message in seen.look.console)


def test_what_the_browser_complains_about_is_seen(tmp_path: Path) -> None:
    browser = need_browser()
    page = tmp_path / "broken.html"
    page.write_text("<script>nosuch()</script>")
    seen = look(browser, page, tmp_path)
    assert any("nosuch" in message for message in seen.console) and not seen.shows("#1f77b4")
