"""Opens a page in Debian's chromium, headless, and tells what a person would see: console messages and pixels."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome")
# Nothing of the user's own browser, and no talk to its maker.
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
    "--window-size=1000,2600",
]
CONSOLE = re.compile(r':CONSOLE[:(]\d+\)?\] "(.*)", source:')


@dataclass(frozen=True)
class Look:
    console: list[str]
    picture: Image.Image

    def shows(self, colour: str) -> bool:
        """Whether a visible amount of the picture has this colour."""
        wanted = bytes.fromhex(colour.removeprefix("#"))
        pixels = self.picture.tobytes()
        return sum(pixels[place : place + 3] == wanted for place in range(0, len(pixels), 3)) > 100


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def look(browser: str, page: Path, folder: Path) -> Look:
    screenshot = folder / "screenshot.png"
    command = [browser, *OPTIONS, f"--user-data-dir={folder / 'profile'}", f"--screenshot={screenshot}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, check=True)
    return Look(CONSOLE.findall(done.stderr), Image.open(screenshot).convert("RGB"))
