"""Small files of the fork's own: where a user's are kept, and how one is written that others read meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def user_cache() -> Path:
    """What can be made again: figures of this machine, keys of an installed upstream."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simpletuner-gh200"


def write_whole(target: Path, content: str | bytes) -> None:
    """Readers see the old file or the new one, never a part; who may read it stays as it was."""
    # A process number is not enough: two machines that share a folder may be at the same one.
    part = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _write(part, content.encode() if isinstance(content, str) else content)
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _write(part: Path, content: bytes) -> None:
    """Without a name until all of it is there, where the file system can do that: who is killed meanwhile leaves nothing behind."""
    try:
        file = os.open(part.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
    except OSError:
        part.write_bytes(content)
        return
    with open(file, "wb") as nameless:
        nameless.write(content)
        nameless.flush()
        try:
            # With a folder named, Python asks for the file that the link in /proc stands for, not for the link.
            os.link(f"/proc/self/fd/{file}", part, src_dir_fd=file, follow_symlinks=True)
        except OSError:
            part.write_bytes(content)
