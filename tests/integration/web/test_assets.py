"""The page's scripts from this machine: vendored by hash, served by name, addresses led to them."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException

from gh200_lab import web_assets
from gh200_lab.web_assets import LOCK, NotVendored, vendor
from simpletuner.gh200.web import assets as served
from simpletuner.gh200.web.assets import ADDRESS, from_this_machine

FILES = {"package.json": b"{}", "LICENSE": b"do as you like", "dist/it.min.js": b"it()", "src/secret.js": b"no"}


def package(name: str, files: dict[str, bytes] = FILES) -> tuple[dict[str, Any], bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = packed.getvalue()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    return {"package": name, "version": "3.2.1", "files": ["dist/it.min.js"], "integrity": integrity}, data


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """A real registry of two packages: its address, its directory, and their lock."""
    directory, lock = tmp_path / "registry", tmp_path / "web.json"
    entries = []
    for name in ("plain", "@scope/it"):
        entry, data = package(name)
        place = directory / name / "-" / f"{name.rpartition('/')[2]}-3.2.1.tgz"
        place.parent.mkdir(parents=True)
        place.write_bytes(data)
        entries.append(entry)
    lock.write_text(json.dumps(entries))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", directory, lock
        server.shutdown()


def test_packages_are_vendored_with_their_licences(
    registry: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _, lock = registry
    place = tmp_path / "build/web"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", address)
    assert vendor(web_assets.registry_of_npm(), place, lock)
    kept = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    assert kept == sorted(
        [
            "packages.json",
            *(f"{name}/{file}" for name in ("plain", "@scope/it") for file in FILES if "secret" not in file),
        ]
    )
    assert not vendor("http://127.0.0.1:9/", place, lock), "made already: nothing is asked for"


def test_another_package_than_the_locked_one_is_rejected(registry: tuple[str, Path, Path], tmp_path: Path) -> None:
    address, directory, lock = registry
    place = tmp_path / "build/web"
    (directory / "plain/-/plain-3.2.1.tgz").write_bytes(package("plain", FILES | {"dist/it.min.js": b"evil()"})[1])
    with pytest.raises(NotVendored, match="plain 3.2.1 is not the one"):
        vendor(address, place, lock)
    with pytest.raises(NotVendored, match="cannot be fetched"):
        vendor("http://127.0.0.1:9/", place, lock)
    assert not place.exists() and not list(place.parent.glob(".web-*"))


def test_without_npm_says_where_to_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotVendored, match="NPM_CONFIG_REGISTRY"):
        web_assets.registry_of_npm()


def test_addresses_lead_to_vendored_files(tmp_path: Path) -> None:
    fonts = {"package": "@fortawesome/fontawesome-free", "version": "7.0.1", "files": ["css/all.min.css"]}
    (tmp_path / "packages.json").write_text(json.dumps([fonts]))
    page = '<link rel="preconnect" href="https://cdn.jsdelivr.net"><script src="https://unpkg.com/alpinejs@3.x.x/dist/cdn.min.js">'
    styles = '<link href="https://cdnjs.cloudflare.com/ajax/libs/font-awesome/7.0.1/css/all.min.css">'
    led = from_this_machine(page + styles, tmp_path)
    assert led == (
        '<script src="https://unpkg.com/alpinejs@3.x.x/dist/cdn.min.js">'
        f'<link href="{ADDRESS}/@fortawesome/fontawesome-free/css/all.min.css">'
    )
    assert from_this_machine(page, None) == page


def test_every_address_of_the_page_is_known() -> None:
    """`build/pristine` is the release the fork was built from."""
    templates = (LOCK.parents[1] / "build" / "pristine" / "simpletuner" / "templates").glob("*_htmx.html")
    sources = [path.read_text(encoding="utf-8") for path in templates]
    if not sources:
        pytest.skip("no upstream here; build the fork first")
    packages = {entry["package"]: entry["files"] for entry in json.loads(LOCK.read_text())}
    for address, package in served._ELSEWHERE.items():
        assert any(f"{address}{path}" in source for source in sources for path in packages[package]), address


@pytest.mark.parametrize(
    "path", ["../x", "@scope/it/../../packages.json", "packages.json", "@scope/it/src/secret.js", "/etc/passwd"]
)
def test_serves_only_what_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (tmp_path / "packages.json").write_text(json.dumps([package("@scope/it")[0]]))
    monkeypatch.setattr(served, "directory", lambda: tmp_path)
    assert Path(served.asset("@scope/it/dist/it.min.js").path) == tmp_path / "@scope/it/dist/it.min.js"
    with pytest.raises(HTTPException):
        served.asset(path)


def test_lock_of_packages_is_whole() -> None:
    entries = json.loads(LOCK.read_text())
    assert [entry["package"] for entry in entries] == sorted(entry["package"] for entry in entries)
    for entry in entries:
        assert (
            len(base64.b64decode(entry["integrity"].removeprefix("sha512-"))) == 64
            and entry["licence"]
            and entry["files"]
        )
