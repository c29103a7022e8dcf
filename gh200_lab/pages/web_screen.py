"""docs/web_ui.png: the whole GH200 tab with the run of the last quick start, in Debian's chromium."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from ..place import ROOT
from ..web_server import WebServer

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
    """Of what makes the tab look as it does."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(TEMPLATES.iterdir()))).hexdigest()


def is_current(picture: Path) -> bool:
    from PIL import Image

    if not picture.is_file():
        return False
    with Image.open(picture) as image:
        return bool(image.info.get(MARK) == digest())


def photograph(target: Path) -> int:
    browser = shutil.which("chromium")
    if browser is None or not OUTPUT.is_dir():
        what = "chromium is not installed" if browser is None else f"{OUTPUT.relative_to(ROOT)} is missing"
        fix = "apt-get install chromium" if browser is None else "scripts/quickstart.sh"
        print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
        return 2
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"output_dir": str(OUTPUT)}
    with tempfile.TemporaryDirectory() as folder:
        server = WebServer(Path(folder) / "web", FORK, config)
        try:
            server.wait()
            _take(browser, server.port, Path(folder) / "shot.png")
        finally:
            server.stop()
        _keep(Path(folder) / "shot.png", target)
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


def _keep(shot: Path, target: Path) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    mark = PngInfo()
    mark.add_text(MARK, digest())
    with Image.open(shot) as image:
        image.convert("RGB").quantize(128).save(target, pnginfo=mark, optimize=True)
