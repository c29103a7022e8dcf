"""docs/report.png: one screen of the last quick start's page, in Debian's chromium."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from ..place import ROOT
from .photograph import browser_for, digest_of, is_marked, keep

IMAGE = "report.png"
PAGE = ROOT / "build/quickstart/report.html"
SOURCES = ("page_parts.py", "report_page.py")
MARK = "page"
SIZE = "1000,1180"


def digest() -> str:
    """The digest of what makes the quick start's page."""
    return digest_of(_sources())


def _sources() -> list[Path]:
    return [ROOT / "gh200_lab/quickstart" / name for name in SOURCES]


def is_current(image: Path) -> bool:
    """Whether the image was made from today's sources."""
    return is_marked(image, MARK, digest())


def photograph(target: Path) -> int:
    """Takes the image; the exit code of the command."""
    browser = browser_for(PAGE)
    if browser is None:
        return 2
    if any(path.stat().st_mtime > PAGE.stat().st_mtime for path in _sources()):
        print("error: the page is older than what makes it\n  fix: scripts/quickstart.sh", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as directory:
        shot = Path(directory) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        options += ["--blink-settings=preferredColorScheme=1", f"--user-data-dir={directory}/profile"]
        subprocess.run([browser, *options, f"--screenshot={shot}", PAGE.as_uri()], check=True, capture_output=True)
        keep(shot, target, MARK, digest())
    return 0
