"""Upstream's page as the fork serves it: one script more, which guards saves, and no other host."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

from jinja2 import Environment, FunctionLoader

from ..settings.keys import BLOCK_KEYS
from .assets import folder, from_this_machine

logger = logging.getLogger("gh200.web")
TEMPLATES = Path(__file__).with_name("templates")
_HEAD = "<head>"


def extend_page(environment: Environment) -> None:
    """Upstream's templates, changed a little on the way."""
    upstream = environment.loader
    assert upstream is not None

    def load(name: str) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, path, fresh = upstream.get_source(environment, name)
        return rewritten(name, source), path, fresh

    environment.loader = FunctionLoader(load)


def rewritten(name: str, source: str) -> str:
    """A template of upstream's as we serve it."""
    source = from_this_machine(source, folder())
    if name != "base_htmx.html":
        return source
    if _HEAD not in source:
        logger.warning("The web page has no part of ours: %s of this upstream has no %s.", name, _HEAD)
    return source.replace(_HEAD, f"{_HEAD}{_script()}", 1)


@cache
def _script() -> str:
    code = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return f"{{% raw %}}<script>{code.replace('GH200_KEYS', json.dumps(sorted(BLOCK_KEYS)), 1)}</script>{{% endraw %}}"
