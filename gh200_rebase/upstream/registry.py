"""The package index: which releases of upstream exist, and their verified source archives."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import sys
from bisect import bisect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import requests
from packaging.version import InvalidVersion, Version
from pypi_simple import (
    DigestMismatchError,
    DistributionPackage,
    NoDigestsError,
    NoSuchProjectError,
    PyPISimple,
    UnsupportedContentTypeError,
    tqdm_progress_factory,
)
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from ..errors import Rejected
from ..system.durable import write_atomic

PROJECT = "simpletuner"
_TIMEOUT = (10.0, 60.0)
_SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Release:
    """One source archive of the package index."""

    version: str
    filename: str
    sha256: str
    yanked: bool


class _Unreachable(Exception):
    """The index gave no answer."""


def releases(cache: Path) -> list[str]:
    """All stable releases with a source archive, oldest first; without a network, the last answer the cache holds."""
    try:
        known = _ask(cache)
    except _Unreachable as error:
        known = _cached_list(cache)
        if not known:
            raise _no_network(cache, error) from error
        print(f"note: the package index does not answer; using its last list ({error})", file=sys.stderr)
    return _stable(known)


def latest(cache: Path) -> str:
    """The newest stable release the index offers now; an old list would not be an answer."""
    try:
        return _stable(_ask(cache))[-1]
    except _Unreachable as error:
        raise _no_network(cache, error) from error


def sdist(wanted: Version, cache: Path) -> Path:
    """The source archive of one release, checked against the index's sha256; from the cache when it is there."""
    directory = cache / "downloads"
    for release in _matching(_cached_list(cache), wanted):
        path = directory / release.filename
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == release.sha256:
            return path
    try:
        known = _ask(cache)
        found = _matching(known, wanted)
        if not found:
            raise _unknown(known, wanted)
        return _download(found[0], directory)
    except _Unreachable as error:
        raise _no_network(cache, error) from error


def archives(versions: Sequence[str], cache: Path) -> list[tuple[str, Path, str]]:
    """(version, source archive, sha256) of several releases; downloads what the cache lacks."""
    paths = [(version, sdist(Version(version), cache)) for version in versions]
    return [(version, path, hashlib.sha256(path.read_bytes()).hexdigest()) for version, path in paths]


def cached(cache: Path) -> list[str]:
    """Releases that need no network."""
    names = {path.stem.removeprefix("pypi-") for path in cache.glob("pypi-*.json")}
    names |= {r.version for r in _cached_list(cache) if (cache / "downloads" / r.filename).is_file()}
    return sorted(names, key=Version)


def _matching(known: list[Release], wanted: Version) -> list[Release]:
    return [release for release in known if Version(release.version) == wanted]


def _stable(known: list[Release]) -> list[str]:
    return [r.version for r in known if not r.yanked and not Version(r.version).is_prerelease]


def _ask(cache: Path) -> list[Release]:
    with _client() as client:
        packages = _packages(client)
    found = {r.version: r for package in packages if (r := _release(package))}
    known = sorted(found.values(), key=lambda release: Version(release.version))
    if not _stable(known):
        raise _no_project()
    write_atomic(cache / "releases.json", json.dumps([asdict(release) for release in known], indent=1).encode())
    return known


def _packages(client: PyPISimple) -> list[DistributionPackage]:
    try:
        return client.get_project_page(PROJECT, timeout=_TIMEOUT).packages
    except NoSuchProjectError as error:
        raise _no_project() from error
    except (requests.RequestException, UnsupportedContentTypeError) as error:
        raise _Unreachable(type(error).__name__) from error


def _no_project() -> Rejected:
    return Rejected(
        f"The package index has no release of {PROJECT}",
        fix="check which index is configured (UV_DEFAULT_INDEX, UV_INDEX_URL, PIP_INDEX_URL, pip.conf)",
    )


def _release(package: DistributionPackage) -> Release | None:
    try:
        version = str(Version(package.version or ""))
    except InvalidVersion:
        return None
    if package.package_type != "sdist" or not package.filename.endswith(_SUFFIX):
        return None
    return Release(version, f"{PROJECT}-{version}{_SUFFIX}", package.digests.get("sha256", ""), package.is_yanked)


def _cached_list(cache: Path) -> list[Release]:
    try:
        return [Release(**entry) for entry in json.loads((cache / "releases.json").read_bytes())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def _download(release: Release, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    part = directory / f".{release.filename}.part"
    bar = tqdm_progress_factory(unit="B", unit_scale=True, desc=release.filename) if sys.stderr.isatty() else None
    with _client() as client:
        package = next(p for p in _packages(client) if _release(p) == release)
        try:
            client.download_package(package, part, progress=bar, timeout=_TIMEOUT)
        except (DigestMismatchError, NoDigestsError) as error:
            raise Rejected(
                f"The archive of {release.version} is not the one the index vouches for",
                where=release.filename,
                why=str(error),
                fix="the file was removed; try again, and if it happens again check the mirror you use",
            ) from error
        except requests.RequestException as error:
            raise _Unreachable(type(error).__name__) from error
        finally:
            if sys.exc_info()[0] is not None:
                part.unlink(missing_ok=True)
    return part.replace(directory / release.filename)


def _client() -> PyPISimple:
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(
            scheme, HTTPAdapter(max_retries=Retry(total=2, backoff_factor=0.2, status_forcelist=(502, 503, 504)))
        )
    mirror = _mirror()
    return PyPISimple(mirror, session=session) if mirror else PyPISimple(session=session)


def _mirror() -> str | None:
    """The index the user configured for pip or uv; None means the library's own default."""
    named = [os.environ.get(name, "") for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")]
    # uv writes a named index as name=url.
    urls = [text.partition("=")[2] if "=" in text.partition("://")[0] else text for text in named]
    return next((url for url in (*urls, _pip_config()) if url), None)


def _pip_config() -> str:
    config = configparser.RawConfigParser(strict=False)
    home = Path.home()
    config.read(
        [
            Path("/etc/pip.conf"),
            home / ".pip/pip.conf",
            home / ".config/pip/pip.conf",
            Path(sys.prefix) / "pip.conf",
            os.environ.get("PIP_CONFIG_FILE", os.devnull),
        ]
    )
    return config.get("global", "index-url", fallback="")


def _no_network(cache: Path, error: _Unreachable) -> Rejected:
    ready = ", ".join(cached(cache)) or "none yet"
    return Rejected(
        "The package index does not answer",
        why=str(error),
        fix=f"connect to the network, or use path:DIR, git:PATH@REF or a release that is in the cache ({ready})",
    )


def _unknown(known: list[Release], wanted: Version) -> Rejected:
    stable = _stable(known)
    at = bisect([Version(v) for v in stable], wanted)
    near = ", ".join(stable[max(0, at - 2) : at + 2])
    return Rejected(
        f"There is no release {wanted} of {PROJECT}",
        why=f"the nearest are {near}",
        fix=f"use one of them, or the newest: pypi:{stable[-1]}",
    )
