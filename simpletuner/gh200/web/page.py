"""Upstream's page as the fork serves it: one script more, which guards saves, and its packages from this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from fastapi.responses import FileResponse
from jinja2 import Environment, FunctionLoader

from ..config.keys import BLOCK_KEYS

logger = logging.getLogger("gh200.web")
TEMPLATES = Path(__file__).with_name("templates")
_HEAD = "<head>"
ROOT = Path(__file__).resolve().parents[3]
ADDRESS = "/gh200/assets"
# Where upstream's page loads its packages from.
_ELSEWHERE = {
    "https://cdn.jsdelivr.net/npm/bootstrap@5.3.8/": "bootstrap",
    "https://cdn.jsdelivr.net/npm/dompurify@3/": "dompurify",
    "https://cdn.jsdelivr.net/npm/js-yaml@4/": "js-yaml",
    "https://cdn.jsdelivr.net/npm/markdown-it@14/": "markdown-it",
    "https://cdnjs.cloudflare.com/ajax/libs/font-awesome/7.0.1/": "@fortawesome/fontawesome-free",
    "https://unpkg.com/@alpinejs/collapse@3.x.x/": "@alpinejs/collapse",
    "https://unpkg.com/alpinejs@3.x.x/": "alpinejs",
    "https://unpkg.com/htmx.org@2.0.8/": "htmx.org",
}
_CONNECTIONS = (
    '<link rel="preconnect" href="https://cdn.jsdelivr.net">',
    '<link rel="preconnect" href="https://cdnjs.cloudflare.com">',
)


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
    source = from_this_machine(source, directory())
    if name != "base_htmx.html":
        return source
    if _HEAD not in source:
        logger.warning("The web page has no part of ours: %s of this upstream has no %s.", name, _HEAD)
    return source.replace(_HEAD, f"{_HEAD}{_script()}", 1)


@cache
def _script() -> str:
    code = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return f"{{% raw %}}<script>{code.replace('GH200_KEYS', json.dumps(sorted(BLOCK_KEYS)), 1)}</script>{{% endraw %}}"


@cache
def directory() -> Path | None:
    """Where set-up put the packages: in this tree's build/, or beside the fork in the build/ it was made in."""
    places = [ROOT / "build" / "web", *([ROOT.parent / "web"] if ROOT.parent.name == "build" else [])]
    return next((place for place in places if (place / "packages.json").is_file()), None)


@cache
def packages(place: Path) -> dict[str, dict[str, Any]]:
    """The vendored packages by name."""
    return {entry["package"]: entry for entry in json.loads((place / "packages.json").read_text(encoding="utf-8"))}


def from_this_machine(source: str, place: Path | None) -> str:
    """A template with the addresses of vendored files led to them; every other address stays."""
    if place is None:
        return source
    for address, package in _ELSEWHERE.items():
        for path in packages(place).get(package, {}).get("files", ()):
            source = source.replace(f"{address}{path}", f"{ADDRESS}/{package}/{path}")
    for link in _CONNECTIONS:
        source = source.replace(link, "")
    return source


def asset(path: str) -> FileResponse:
    """One vendored file, and nothing that is not named in the list of them."""
    place = directory()
    if place is not None:
        for name, entry in packages(place).items():
            if path.startswith(f"{name}/") and path.removeprefix(f"{name}/") in entry["files"]:
                return FileResponse(place / path, headers={"Cache-Control": "max-age=86400"})
    raise HTTPException(404, detail="no such file is vendored")
