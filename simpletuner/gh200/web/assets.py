"""The scripts and styles of upstream's page from this machine: addresses of npm packages led to the vendored ones."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from fastapi.responses import FileResponse

ROOT = Path(__file__).resolve().parents[3]
ADDRESS = "/web/gh200/assets"
_FONT_AWESOME = "@fortawesome/fontawesome-free"
_PACKAGE = re.compile(r"https?://[\w.-]+(?:/npm)?/((?:@[\w.-]+/)?[\w.-]+)@([\w.]+)/([\w./-]+)")
_FONTS = re.compile(r"https?://[\w./-]+/font-awesome/([\w.]+)/([\w./-]+)")
_PRECONNECT = re.compile(r"""[ \t]*<link rel="preconnect" href="https?://[^"]*">\n?""")


@cache
def folder() -> Path | None:
    """Where set-up put the packages: in this tree's build/, or beside the fork in the build/ it was made in."""
    places = [ROOT / "build" / "web", *([ROOT.parent / "web"] if ROOT.parent.name == "build" else [])]
    return next((place for place in places if (place / "packages.json").is_file()), None)


@cache
def packages(place: Path) -> dict[str, dict[str, Any]]:
    return {entry["package"]: entry for entry in json.loads((place / "packages.json").read_text(encoding="utf-8"))}


def from_this_machine(source: str, place: Path | None) -> str:
    """A template with every address led to a vendored file of the same major version; what is not vendored stays."""
    if place is None:
        return source
    left: list[str] = []

    def led(address: str, package: str, version: str, path: str) -> str:
        known = packages(place).get(package)
        if known and path in known["files"] and known["version"].split(".")[0] == version.split(".")[0]:
            return f"{ADDRESS}/{package}/{path}"
        left.append(address)
        return address

    source = _PACKAGE.sub(lambda found: led(found[0], *found.groups()), source)
    source = _FONTS.sub(lambda found: led(found[0], _FONT_AWESOME, *found.groups()), source)
    return source if left else _PRECONNECT.sub("", source)


def add_route(router: Any) -> None:
    router.add_api_route("/gh200/assets/{path:path}", asset, include_in_schema=False)


def asset(path: str) -> FileResponse:
    """One vendored file, and nothing that is not named in the list of them."""
    place = folder()
    if place is not None:
        for name, entry in packages(place).items():
            if path.startswith(f"{name}/") and path.removeprefix(f"{name}/") in entry["files"]:
                return FileResponse(place / path, headers={"Cache-Control": "max-age=86400"})
    raise HTTPException(404, detail="no such file is vendored")
