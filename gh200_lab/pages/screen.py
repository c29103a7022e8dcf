"""docs/report.png: one screen of the last quick start's page, in Debian's chromium."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ..place import ROOT

PICTURE = "report.png"
PAGE = ROOT / "build/quickstart/report.html"
SOURCES = ("page_parts.py", "report_page.py")
MARK = "page"
SIZE = "1000,1180"


def digest() -> str:
    """Of what makes the page look as it does."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _sources())).hexdigest()


def _sources() -> list[Path]:
    return [ROOT / "gh200_lab/quickstart" / name for name in SOURCES]


def is_current(picture: Path) -> bool:
    from PIL import Image

    if not picture.is_file():
        return False
    with Image.open(picture) as image:
        return bool(image.info.get(MARK) == digest())


def photograph(target: Path) -> int:
    browser = shutil.which("chromium")
    if browser is None or not PAGE.is_file():
        what = "chromium is not installed" if browser is None else f"{PAGE.relative_to(ROOT)} is missing"
        fix = "apt-get install chromium" if browser is None else "scripts/quickstart.sh"
        print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
        return 2
    if any(path.stat().st_mtime > PAGE.stat().st_mtime for path in _sources()):
        print("error: the page is older than what makes it\n  fix: scripts/quickstart.sh", file=sys.stderr)
        return 2
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        options += ["--blink-settings=preferredColorScheme=1", f"--user-data-dir={folder}/profile"]
        subprocess.run([browser, *options, f"--screenshot={shot}", PAGE.as_uri()], check=True, capture_output=True)
        mark = PngInfo()
        mark.add_text(MARK, digest())
        with Image.open(shot) as image:
            image.convert("RGB").quantize(128).save(target, pnginfo=mark, optimize=True)
    return 0
