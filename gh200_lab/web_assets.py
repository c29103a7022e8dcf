"""Vendors the npm packages that upstream's web page loads from elsewhere: into build/web, checked against the lock."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from .place import ROOT

LOCK = ROOT / "requirements" / "web.json"
PLACE = ROOT / "build" / "web"
LIMIT = 60.0
_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice)[\w.-]*$")


class NotVendored(Exception):
    """Why the page goes on loading its scripts from where upstream says."""


def vendor(registry: str, place: Path = PLACE, lock: Path = LOCK) -> bool:
    """Makes `place` what the lock says; False where it was that already."""
    wanted = lock.read_bytes()
    made = place / "packages.json"
    if made.is_file() and made.read_bytes() == wanted:
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".web-") as work:
        for entry in json.loads(wanted):
            _unpack(entry, _fetched(entry, registry), Path(work) / entry["package"])
        (Path(work) / "packages.json").write_bytes(wanted)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(work, place)
    return True


def registry_of_npm() -> str:
    """As npm itself would find it."""
    named = os.environ.get("NPM_CONFIG_REGISTRY")
    if named:
        return named
    npm = shutil.which("npm")
    if npm is None:
        raise NotVendored("neither NPM_CONFIG_REGISTRY nor npm says where packages are")
    asked = subprocess.run(
        [npm, "config", "get", "registry"], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if asked.returncode or not asked.stdout.strip().startswith("http"):
        raise NotVendored("npm config get registry gave no address")
    return asked.stdout.strip()


def _fetched(entry: dict[str, Any], registry: str) -> bytes:
    name = entry["package"]
    address = f"{registry.rstrip('/')}/{name}/-/{name.rpartition('/')[2]}-{entry['version']}.tgz"
    try:
        with urllib.request.urlopen(address, timeout=LIMIT) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise NotVendored(f"{name} {entry['version']} cannot be fetched: {error}") from error
    found = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != entry["integrity"]:
        raise NotVendored(f"{name} {entry['version']} is not the one of requirements/web.json: {found}")
    return data


def _unpack(entry: dict[str, Any], data: bytes, into: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        # The top directory of a package is not always called "package".
        members = {member.name.partition("/")[2]: member for member in archive if member.isfile()}
        licences = [name for name in members if "/" not in name and _LICENCE.match(name)]
        for name in [*entry["files"], *licences, "package.json"]:
            file = archive.extractfile(members[name]) if name in members else None
            if file is None:
                raise NotVendored(f"{entry['package']} has no {name}")
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(file.read())


def main() -> int:
    """The command: vendors, and prints what it did."""
    try:
        made = vendor(registry_of_npm())
    except NotVendored as error:
        print(f"asks other hosts for its scripts: {error}")
        return 1
    print(f"scripts and styles {'vendored in' if made else 'are in'} build/web")
    return 0


if __name__ == "__main__":
    sys.exit(main())
