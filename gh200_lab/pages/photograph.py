"""What photographs of pages share: the mark that says what they show, and what it takes to make one."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from ..place import ROOT


def digest_of(sources: Iterable[Path]) -> str:
    """Of what makes a page look as it does."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def is_marked(image: Path, mark: str, digest: str) -> bool:
    """Whether an image carries this digest under this mark."""
    from PIL import Image

    if not image.is_file():
        return False
    with Image.open(image) as opened:
        return bool(opened.info.get(mark) == digest)


def browser_for(shown: Path) -> str | None:
    """Chromium, where it and what is to be shown are there; otherwise one error that names the fix."""
    browser = shutil.which("chromium")
    if browser is not None and shown.exists():
        return browser
    what = "chromium is not installed" if browser is None else f"{shown.relative_to(ROOT)} is missing"
    fix = "apt-get install chromium" if browser is None else "scripts/quickstart.sh"
    print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
    return None


def keep(shot: Path, target: Path, mark: str, digest: str) -> None:
    """Writes a shot, reduced and marked, to its place."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    marked = PngInfo()
    marked.add_text(mark, digest)
    with Image.open(shot) as image:
        image.convert("RGB").quantize(128).save(target, pnginfo=marked, optimize=True)
