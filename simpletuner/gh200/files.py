"""Small files of the fork's own: where a user's are kept, and how one is written that others read meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def user_cache() -> Path:
    """What can be made again: measurements of this machine, keys of an installed upstream."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simpletuner-gh200"


def write_whole(target: Path, content: str | bytes) -> None:
    """Readers see the old file or the new one, never a part; who may read it stays as it was."""
    # A process number is not enough: two machines that share a directory may be at the same one.
    part = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
