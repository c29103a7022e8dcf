"""What we change in upstream's templates: one script more, and no other host."""

from __future__ import annotations

import json
import logging
from functools import cache
from pathlib import Path

from .assets import folder, from_this_machine
from .blocks import KEPT_KEYS

logger = logging.getLogger("gh200.web")
TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("page.js", "live.js")
_HEAD = "<head>"


def rewritten(name: str, source: str) -> str:
    """A template of upstream's as we serve it."""
    source = from_this_machine(source, folder())
    script = _script() if name == "base_htmx.html" else None
    if script is None:
        return source
    if _HEAD not in source:
        logger.warning("The web page has no part of ours: %s of this upstream has no %s.", name, _HEAD)
    return source.replace(_HEAD, f"{_HEAD}{script}", 1)


@cache
def _script() -> str | None:
    """Our script as a part of the page; None where its files are missing, and the page is upstream's own then."""
    keys = json.dumps(sorted(KEPT_KEYS))
    try:
        code = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    except OSError as error:
        logger.warning(
            "The web page has no part of ours, and a save cannot see what changed on disk: %s. Build the fork again.",
            error,
        )
        return None
    return f"{{% raw %}}<script>{code.replace('GH200_KEYS', keys, 1)}</script>{{% endraw %}}"
