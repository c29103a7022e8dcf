"""A config that upstream writes in place is written whole: the old one, or the new one."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from ..own_files import write_whole


def keep_whole(store: Any) -> None:
    """From here on this store writes its training configs whole. Upstream empties a file before it writes: a server
    that dies then, or a full disk, would leave no config. A store without files has nothing to keep."""
    if getattr(store, "config_type", None) == "model" and not isinstance(store._get_config_path("any"), WholeFile):
        upstream = store._get_config_path
        store._get_config_path = lambda name: WholeFile(upstream(name))


def check_inside(store: Any, path: Path) -> None:
    """Upstream takes `..` for a name."""
    if Path(os.path.abspath(store.config_dir)) not in Path(os.path.abspath(path)).parents:
        raise HTTPException(400, detail="Nothing was saved: this name leads out of the folder of configs.")


class WholeFile(Path):
    """The path of a file, and of those beside it, that appears under its name when its last byte is written."""

    def open(self, mode: str = "r", *args: Any, **options: Any) -> Any:
        return _written(self) if mode == "w" else super().open(mode, *args, **options)


@contextmanager
def _written(path: Path) -> Iterator[io.StringIO]:
    text = io.StringIO()
    yield text
    # A link stays a link, as with upstream.
    write_whole(Path(os.path.realpath(path)), text.getvalue())
