"""Opens a page in Debian's chromium, headless, and returns what a person would see: console messages and pixels."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no chromium here; on Debian: apt-get install chromium"
# No profile of the user's own browser, no background requests.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
]
CONSOLE = re.compile(r':CONSOLE[:(]\d+\)?\] "(.*)", source:')
# No window is narrower than 500 pixels, so a page gets a frame as wide as it is to be; `found` is what juts out of it.
FRAME = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0; }} iframe {{ border: 0; display: block; }}</style>
<iframe id="page" width="{width}" height="{height}" srcdoc="{page}"></iframe><script>
document.getElementById("page").onload = (event) => {{
  const page = event.target.contentDocument, found = [];
  for (const each of page.querySelectorAll("body *")) {{
    const box = each.getBoundingClientRect();
    if (box.width && (box.right > {width} + 0.5 || box.left < -0.5)) found.push(each.tagName + "#" + each.id);
  }}
  const style = page.defaultView.getComputedStyle(page.body);
  const images = [...page.images].map((image) => image.complete && image.naturalWidth > 0);
  console.log("LAYOUT " + JSON.stringify({{ found, wide: page.documentElement.scrollWidth,
    back: style.backgroundColor, text: style.color, images }}).replaceAll('"', "'"));
}};</script>"""


@dataclass(frozen=True)
class Look:
    """Console messages and a screenshot."""

    console: list[str]
    image: Image.Image

    def shows(self, colour: str) -> bool:
        """Whether a visible amount of the image has this colour."""
        wanted = bytes.fromhex(colour.removeprefix("#"))
        pixels = self.image.tobytes()
        return sum(pixels[place : place + 3] == wanted for place in range(0, len(pixels), 3)) > 100


@dataclass(frozen=True)
class Layout:
    """Elements that jut out, the width the page needs, its colours, and whether each image could be drawn."""

    look: Look
    found: list[str]
    wide: int
    back: str
    text: str
    images: list[bool]


def find_browser() -> str | None:
    """Chromium's path, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def need_browser() -> str:
    """Chromium's path; skips the test without it."""
    return find_browser() or pytest.skip(MISSING)


def look(browser: str, page: Path, directory: Path, options: Iterable[str] = ("--window-size=1000,2600",)) -> Look:
    """Opens a page and takes a screenshot."""
    screenshot = directory / "screenshot.png"
    command = [browser, *OPTIONS, *options, f"--user-data-dir={directory / 'profile'}"]
    command += [f"--screenshot={screenshot}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=True)
    return Look(CONSOLE.findall(done.stderr), Image.open(screenshot).convert("RGB"))


def lay_out(browser: str, page: Path, directory: Path, width: int, dark: bool = False, height: int = 3000) -> Layout:
    """The page as it is at that width, in the colours of that time of day."""
    framed = directory / f"framed-{width}-{dark}.html"
    source = html.escape(page.read_text(encoding="utf-8"), quote=True)
    framed.write_text(FRAME.format(width=width, height=height, page=source), encoding="utf-8")
    options = [f"--window-size={max(width, 500)},{height}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    seen = look(browser, framed, directory, options)
    layout = [message for message in seen.console if message.startswith("LAYOUT ")]
    facts: dict[str, Any] = json.loads(layout[0].removeprefix("LAYOUT ").replace("'", '"'))
    rest = [message for message in seen.console if message not in layout]
    return Layout(Look(rest, seen.image.crop((0, 0, width, height))), **facts)
