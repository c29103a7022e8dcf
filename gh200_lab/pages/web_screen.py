"""docs/web_ui.png: the page at /gh200 with the run of the last quick start, in Debian's chromium."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ..place import ROOT
from ..web_server import WebServer
from .photograph import browser_for, digest_of, is_marked, keep

IMAGE = "web_ui.png"
CONFIG = ROOT / "config" / "quickstart.json"
OUTPUT = ROOT / "build" / "quickstart" / "output"
FORK = ROOT / "build" / "fork"
TEMPLATES = ROOT / "simpletuner" / "gh200" / "web" / "templates"
MARK = "templates"
WIDTH, LIMIT = 1280, 120_000
_SHOWN = "/^(Finished|Training|Stopped)/.test(document.querySelector('[data-gh200-status]')?.textContent ?? '')"

_RENAMED = "(shown, text) => { shown.textContent = text }"


def digest() -> str:
    """The digest of what makes the page at /gh200."""
    return digest_of(sorted(path for path in TEMPLATES.rglob("*") if path.is_file()))


def is_current(image: Path) -> bool:
    """Whether the image was made from today's sources."""
    return is_marked(image, MARK, digest())


def photograph(target: Path) -> int:
    """Takes the image; the exit code of the command."""
    browser = browser_for(OUTPUT)
    if browser is None:
        return 2
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"output_dir": str(OUTPUT)}
    with tempfile.TemporaryDirectory() as directory:
        shot = Path(directory) / "shot.png"
        with WebServer(Path(directory) / "web", FORK, config) as server:
            _take(browser, server.port, shot)
        keep(shot, target, MARK, digest())
    return 0


def _take(browser: str, port: int, shot: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-quic"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": 400})
        page.set_default_timeout(LIMIT)
        page.goto(f"http://127.0.0.1:{port}/gh200")
        page.wait_for_function(_SHOWN)
        # No path of the machine that took it.
        page.get_by_text(str(OUTPUT), exact=True).evaluate(_RENAMED, OUTPUT.relative_to(ROOT).as_posix())
        page.screenshot(path=str(shot), full_page=True)
        chromium.close()
