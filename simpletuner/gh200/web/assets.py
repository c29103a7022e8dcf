"""The npm packages of SimpleTuner's page from this machine, where set-up has vendored them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from fastapi.responses import FileResponse
from jinja2.ext import Extension

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = "/gh200/assets"
# Where the page loads its packages from.
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


class LocalAssets(Extension):
    """Leads the addresses of vendored files to them when Jinja reads a template; every other address stays."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """What Jinja compiles instead of the source."""
        return from_this_machine(source, directory())


@cache
def directory() -> Path | None:
    """Where set-up put the packages: in this tree's build/, or in the build/ that a built fork lies in."""
    places = [ROOT / "build" / "web", *(parent / "web" for parent in ROOT.parents if parent.name == "build")]
    return next((place for place in places if (place / "packages.json").is_file()), None)


@cache
def packages(place: Path) -> dict[str, dict[str, Any]]:
    """The vendored packages by name."""
    return {entry["package"]: entry for entry in json.loads((place / "packages.json").read_text(encoding="utf-8"))}


def from_this_machine(source: str, place: Path | None) -> str:
    """A template with the addresses of vendored files led to them."""
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
