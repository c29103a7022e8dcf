"""What we change in upstream's templates: one script more, in-memory datasets beside local ones, no other host."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .assets import folder, from_this_machine
from .blocks import KEPT_KEYS

_SCRIPTS = ("page.js", "live.js")
_HEAD = re.compile(r"<head[^>]*>")
_LOCAL = re.compile(r"(?<![\w.])((?:[A-Za-z_]\w*\.)*type) ([=!])== 'local'")
_CHOICE = re.compile(r'<option value="local">[^<]*</option>')
_IN_MEMORY = '<option value="in_memory">In memory (GH200)</option>'


def rewritten(name: str, source: str) -> str:
    """A template of upstream's as we serve it. A pattern that a release does not have changes nothing there."""
    if name == "base_htmx.html":
        source = _HEAD.sub(lambda found: found.group() + _script(), source, count=1)
    source = from_this_machine(source, folder())
    source = _CHOICE.sub(lambda found: found.group() + _IN_MEMORY, source)
    return _LOCAL.sub(lambda found: f"{'!' if found.group(2) == '!' else ''}gh200.isLocal({found.group(1)})", source)


def _script() -> str:
    keys = json.dumps(sorted(KEPT_KEYS))
    templates = Path(__file__).with_name("templates")
    code = "".join((templates / name).read_text(encoding="utf-8") for name in _SCRIPTS).replace("GH200_KEYS", keys, 1)
    return f"{{% raw %}}<script>{code}</script>{{% endraw %}}"
