"""docs/web_ui.png: the whole GH200 tab with the run of the last quick start, in Debian's chromium."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ..place import ROOT
from ..web_server import WebServer
from .photograph import browser_for, digest_of, is_marked, keep

PICTURE = "web_ui.png"
CONFIG = ROOT / "config" / "quickstart.json"
OUTPUT = ROOT / "build" / "quickstart" / "output"
FORK = ROOT / "build" / "fork"
TEMPLATES = ROOT / "simpletuner" / "gh200" / "web" / "templates"
MARK = "templates"
WIDTH, LIMIT = 1280, 120_000
_READY = "window.Alpine?.store('trainer')?.activeEnvironmentConfig != null"
_SHOWN = "/^(Ended|Training|No word)/.test(document.querySelector('[data-gh200-told]')?.textContent ?? '')"
# Upstream's dock of events and its messages lie over the page, at the bottom of the window.
_HIDE = ".toast, .toast-container, #event-dock, .event-dock { display: none !important; }"
_HEIGHT = "Math.ceil(document.querySelector('[data-gh200-tab]').getBoundingClientRect().bottom + scrollY) + 24"


def digest() -> str:
    return digest_of(sorted(TEMPLATES.iterdir()))


def is_current(picture: Path) -> bool:
    return is_marked(picture, MARK, digest())


def photograph(target: Path) -> int:
    browser = browser_for(OUTPUT)
    if browser is None:
        return 2
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"output_dir": str(OUTPUT)}
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        with WebServer(Path(folder) / "web", FORK, config) as server:
            _take(browser, server.port, shot)
        keep(shot, target, MARK, digest())
    return 0


def _take(browser: str, port: int, shot: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-quic"])
        page = chromium.new_page(viewport={"width": WIDTH, "height": 1000})
        page.set_default_timeout(LIMIT)
        page.goto(f"http://127.0.0.1:{port}/web/trainer")
        page.wait_for_function(_READY)
        page.evaluate("document.querySelector('[data-tab=gh200]').click()")
        page.wait_for_function(_SHOWN)
        page.add_style_tag(content=_HIDE)
        page.set_viewport_size({"width": WIDTH, "height": page.evaluate(_HEIGHT)})
        page.screenshot(path=str(shot))
        chromium.close()
