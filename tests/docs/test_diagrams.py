"""The documents' images are of what they show: layers, the table of access patterns, the ramp's example, the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import look, need_browser

from gh200_lab.pages import diagrams, screen, web_screen
from tests.doc_pages import ROOT

DOCS = ROOT / "docs"


def test_every_image_is_current() -> None:
    assert diagrams.stale(DOCS) == [], f"fix: {diagrams.COMMAND} --screen"


def test_an_image_that_is_not_current_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diagrams.main(["--write", "--into", str(tmp_path)]) == 0
    assert diagrams.stale(tmp_path) == [screen.IMAGE, web_screen.IMAGE]
    (tmp_path / "packages.svg").write_text("<svg/>")
    (tmp_path / diagrams.RAMP).write_bytes((DOCS / screen.IMAGE).read_bytes())
    assert diagrams.main(["--check", "--into", str(tmp_path)]) == 1
    printed = capsys.readouterr().err
    assert (
        "packages.svg, ramp.png, report.png, web_ui.png" in printed and "places" not in printed and "--write" in printed
    )


def test_the_packages_are_those_of_the_contract() -> None:
    found = diagrams.layers()
    assert {"ramp", "backends", "offload", "preemption", "telemetry"} in map(set, found) and found[0] == ["watch"]
    drawn = diagrams.packages()
    assert all(f">{name}" in drawn for layer in found for name in layer) and ">ramp/<" in drawn


def test_the_places_are_those_of_the_table() -> None:
    found = {name: (where, ahead) for name, where, ahead in diagrams.patterns((DOCS / "UNIFIED_MEMORY.md").read_text())}
    assert found == {
        "gpu_first": ({diagrams.GPU}, True),
        "cpu_first": ({diagrams.CPU}, False),
        "balanced": ({diagrams.CPU, diagrams.GPU}, True),
    }


def test_a_screen_that_cannot_be_taken_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert screen.photograph(tmp_path / "a.png") == 2
    assert "apt-get install chromium" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["packages.svg", "places.svg"])
def test_a_drawing_can_be_seen_by_day_and_by_night(name: str, tmp_path: Path) -> None:
    browser = need_browser()
    for scheme, colour in ((1, "#e6f4e1"), (0, "#12261a")):
        options = ["--window-size=900,700", f"--blink-settings=preferredColorScheme={scheme}"]
        seen = look(browser, DOCS / name, tmp_path, options)
        assert seen.console == [] and seen.shows(colour)
