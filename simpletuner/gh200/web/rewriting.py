"""What we change in upstream's templates: one script more, in-memory datasets beside local ones, no other host."""

from __future__ import annotations

import json
import logging
import re
from functools import cache
from pathlib import Path

from .assets import folder, from_this_machine
from .blocks import KEPT_KEYS

logger = logging.getLogger("gh200.web")
TEMPLATES = Path(__file__).with_name("templates")
_SCRIPTS = ("page.js", "live.js")
_HEAD = re.compile(r"<head[^>]*>")
_LOCAL = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)*type) ([=!])== 'local'")
_CHOICE = re.compile(r'<option value="local">[^<]*</option>')
_IN_MEMORY = '<option value="in_memory">In memory (GH200)</option>'


def rewritten(name: str, source: str) -> str:
    """A template of upstream's as we serve it. A pattern that a release does not have changes nothing there."""
    source = from_this_machine(source, folder())
    script = _script()
    if script is None:
        return source
    if name == "base_htmx.html":
        source = _HEAD.sub(lambda found: found.group() + script, source, count=1)
    source = _CHOICE.sub(lambda found: found.group() + _IN_MEMORY, source)
    return _LOCAL.sub(lambda found: f"{'!' if found.group(2) == '!' else ''}gh200.isLocal({found.group(1)})", source)


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
