"""Where a picture lies below its dataset's folder, for plain paths, as upstream would say it."""

from __future__ import annotations

import os
from functools import lru_cache


@lru_cache(maxsize=64)
def _plain_root(root: str) -> str | None:
    return (
        root if root.startswith("/") and os.path.normpath(root) == root != "/" and not root.startswith("//") else None
    )


def relative_path(path: object, root: object) -> str | None:
    """None, and upstream decides, unless both are absolute and nothing about them needs to be resolved."""
    if type(path) is not str or type(root) is not str or _plain_root(root) is None:
        return None
    count = len(root)
    rest = path[count + 1 :]
    if path[count : count + 1] != "/" or not path.startswith(root) or not rest or rest[0] == "/":
        return None
    # "/." also begins names that need nothing; upstream takes its time over those.
    return None if "//" in rest or "/." in rest or rest[0] == "." or rest[-1] == "/" else rest
