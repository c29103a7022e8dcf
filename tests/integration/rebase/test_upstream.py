"""Upstream from an index, a git ref or a directory: real archives, a real server on this machine, real repositories."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from gh200_rebase.errors import Rejected
from gh200_rebase.upstream import registry
from gh200_rebase.upstream.fetch import Spec, fetch, parse_spec


def tree(version: str) -> dict[str, bytes]:
    return {
        "simpletuner/__init__.py": f'raise SystemExit("upstream ran")\n__version__: str = "{version}"\n'.encode(),
        "simpletuner/helpers/training/trainer.py": b"def train():\r\n    pass\r\n",
        ".gitattributes": b"* text=auto eol=crlf ident\nhidden.txt export-ignore\nsubst.txt export-subst\n",
        "hidden.txt": b"here\n",
        "subst.txt": b"$Format:%H$ $Id$\n",
    }


def sdist(directory: Path, version: str, files: dict[str, bytes] | None = None) -> Path:
    path = directory / f"simpletuner-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in (files or tree(version)).items():
            info = tarfile.TarInfo(f"simpletuner-{version}/{name}")
            info.size, info.mtime = len(data), 1_700_000_000
            tar.addfile(info, io.BytesIO(data))
    return path


class Index:
    """A package index over HTTP, as small as the standard allows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "simple/simpletuner").mkdir(parents=True)
        handler = partial(QuietHandler, directory=str(directory))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/simple/"

    def publish(self, *versions: str, yanked: str = "", digest: str = "") -> None:
        lines = []
        for version in versions:
            path = sdist(self.directory, version)
            sha = digest or hashlib.sha256(path.read_bytes()).hexdigest()
            extra = ' data-yanked=""' if version == yanked else ""
            lines.append(f'<a href="../../{path.name}#sha256={sha}"{extra}>{path.name}</a>')
        (self.directory / "simple/simpletuner/index.html").write_text(
            "<html><body>" + "".join(lines) + "</body></html>"
        )

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    found = Index(tmp_path / "index")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", found.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield found
    found.stop()


@pytest.mark.parametrize(
    "good",
    [
        "pypi:4.10.1",
        "pypi:latest",
        "git:https://host/x.git@main",
        "git:git@host:x/y.git@v1",
        "git:../a b@feature/x",
        "path:/some/where",
    ],
)
def test_specs(good: str) -> None:
    assert str(parse_spec(good)) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "4.10.1",
        "pypi:",
        "pypi:newest",
        "svn:x@y",
        "git:x",
        "git:@main",
        "git:x@",
        "git:x@-upload",
        "git:--upload-pack=x@main",
        "git:x@a..b",
        "git:git@host:x/y",
        "path:",
    ],
)
def test_bad_specs_show_the_grammar(bad: str) -> None:
    with pytest.raises(Rejected) as caught:
        parse_spec(bad)
    assert "git:URL_OR_PATH@REF" in caught.value.fix and caught.value.why


def test_releases_are_sorted_as_versions(index: Index, tmp_path: Path) -> None:
    index.publish("4.10.0", "4.9.3", "4.9.0rc1", "4.11.0", yanked="4.11.0")
    assert registry.releases(tmp_path / "cache") == ["4.9.3", "4.10.0"]
    assert fetch(parse_spec("pypi:latest"), tmp_path / "cache").version == "4.10.0"


def test_a_release_is_exact_and_then_needs_no_network(index: Index, tmp_path: Path) -> None:
    index.publish("4.9.3", "4.10.0")
    cache = tmp_path / "cache"
    first = fetch(parse_spec("pypi:4.10"), cache)
    assert (first.label, first.version, first.seconds, first.git_commit) == (
        "pypi:4.10.0",
        "4.10.0",
        1_700_000_000,
        None,
    )
    assert {p.relative_to(first.root).as_posix(): p.read_bytes() for p in first.root.rglob("*") if p.is_file()} == tree(
        "4.10.0"
    )
    index.stop()
    assert fetch(parse_spec("pypi:4.10"), cache) == first
    (first.root / "hidden.txt").write_bytes(b"touched by accident\n")
    assert fetch(parse_spec("pypi:4.10"), cache) == first
    assert (first.root / "hidden.txt").read_bytes() == b"here\n"
    assert registry.releases(cache) == ["4.9.3", "4.10.0"]
    for spec in ("pypi:4.9.3", "pypi:latest"):
        with pytest.raises(Rejected) as caught:
            fetch(parse_spec(spec), cache)
        assert (
            "does not answer" in caught.value.what and "4.10.0" in caught.value.fix and "path:DIR" in caught.value.fix
        )


def test_an_unknown_release_names_its_neighbours(index: Index, tmp_path: Path) -> None:
    index.publish("4.8.0", "4.9.3", "4.10.0", "4.10.1", "3.0.0")
    with pytest.raises(Rejected) as caught:
        fetch(parse_spec("pypi:4.9.9"), tmp_path / "cache")
    assert "4.8.0, 4.9.3, 4.10.0, 4.10.1" in caught.value.why and "pypi:4.10.1" in caught.value.fix


def test_a_wrong_hash_leaves_no_file(index: Index, tmp_path: Path) -> None:
    index.publish("4.10.0", digest="0" * 64)
    with pytest.raises(Rejected, match="vouches"):
        fetch(parse_spec("pypi:4.10.0"), tmp_path / "cache")
    assert not list((tmp_path / "cache/downloads").iterdir())


def test_a_hostile_release_is_removed(index: Index, tmp_path: Path) -> None:
    index.publish("4.10.0")
    bad = sdist(index.directory, "4.10.0", {"../../x": b""})
    page = index.directory / "simple/simpletuner/index.html"
    page.write_text(f'<a href="../../{bad.name}#sha256={hashlib.sha256(bad.read_bytes()).hexdigest()}">{bad.name}</a>')
    with pytest.raises(Rejected, match="not safe"):
        fetch(parse_spec("pypi:4.10.0"), tmp_path / "cache")
    assert not list((tmp_path / "cache/downloads").iterdir()) and not (tmp_path / "cache/pypi-4.10.0").exists()


def test_no_such_project(index: Index, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no release of"):
        registry.releases(tmp_path / "cache")
    (index.directory / "simple/simpletuner").rmdir()
    with pytest.raises(Rejected, match="no release of"):
        registry.releases(tmp_path / "cache")


def test_killed_while_fetching(index: Index, tmp_path: Path) -> None:
    index.publish("4.10.0")
    cache, code = (
        tmp_path / "cache",
        "import sys, pathlib; from gh200_rebase.upstream.fetch import *; "
        "fetch(parse_spec('pypi:4.10.0'), pathlib.Path(sys.argv[1]))",
    )
    for delay in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
        child = subprocess.Popen([sys.executable, "-c", code, str(cache)], cwd=ROOT)
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
    found = fetch(parse_spec("pypi:4.10.0"), cache)
    assert found.version == "4.10.0" and not list(cache.glob(".*.part")) and not list((cache / "downloads").glob(".*"))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A git repository with two commits, a tag, a link, and attributes that would change every byte."""
    place = tmp_path / "up stream"
    for name, data in tree("4.11.0").items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    (place / "run.sh").write_bytes(b"#!/bin/sh\r\n")
    (place / "run.sh").chmod(0o755)
    (place / "near").symlink_to("run.sh")
    git(place, "init", "-q", "-b", "main")
    (place / ".git/info/attributes").write_text("* -text -ident\n")
    commit(place, "one")
    git(place, "tag", "v4.11.0")
    (place / "later.txt").write_text("x")
    commit(place, "two")
    return place


def git(place: Path, *args: str) -> str:
    people = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        ["git", "-C", str(place), *args], check=True, capture_output=True, text=True, env={**os.environ, **people}
    ).stdout.strip()


def commit(place: Path, message: str) -> None:
    git(place, "add", "-A")
    git(place, "commit", "-qm", message)


def test_git_refs_give_exact_bytes(repo: Path, tmp_path: Path) -> None:
    cache, tagged = tmp_path / "cache", git(repo, "rev-parse", "v4.11.0")
    found = fetch(Spec("git", str(repo), "v4.11.0"), cache)
    assert (found.git_commit, found.label, found.version) == (tagged, f"git:{tagged[:12]}", "4.11.0")
    for name, data in tree("4.11.0").items():
        assert (found.root / name).read_bytes() == data, name
    assert (found.root / "near").readlink() == Path("run.sh") and os.access(found.root / "run.sh", os.X_OK)
    assert not (found.root / "later.txt").exists()
    for ref in ("main", "HEAD", git(repo, "rev-parse", "HEAD")[:9]):
        assert (fetch(Spec("git", str(repo), ref), cache).root / "later.txt").exists()
    repo.rename(tmp_path / "gone")
    with pytest.raises(Rejected, match="no git repository"):
        fetch(Spec("git", str(repo), tagged), cache)


def test_a_missing_ref_names_the_nearest(repo: Path, tmp_path: Path) -> None:
    with pytest.raises(Rejected) as caught:
        fetch(Spec("git", str(repo), "v4.11.1"), tmp_path / "cache")
    assert "v4.11.0" in caught.value.why


@pytest.mark.parametrize("address", ["ext::sh -c touch% {mark}", "fd::3"])
def test_an_address_cannot_run_a_command(tmp_path: Path, address: str) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(Rejected, match="not allowed"):
        fetch(Spec("git", address.format(mark=mark), "main"), tmp_path / "cache")
    assert not mark.exists()


def test_a_git_tree_with_a_link_out_is_rejected(repo: Path, tmp_path: Path) -> None:
    (repo / "out").symlink_to("../../secret")
    commit(repo, "bad")
    with pytest.raises(Rejected, match="outside"):
        fetch(Spec("git", str(repo), "main"), tmp_path / "cache")


def test_a_directory_is_used_where_it_is(repo: Path, tmp_path: Path) -> None:
    found = fetch(parse_spec(f"path:{repo}"), tmp_path / "cache")
    assert found.root == repo and found.git_commit == git(repo, "rev-parse", "HEAD")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("gone", ["simpletuner/helpers/training/trainer.py", "simpletuner/__init__.py"])
def test_not_a_simpletuner_tree(repo: Path, tmp_path: Path, gone: str) -> None:
    (repo / gone).unlink()
    with pytest.raises(Rejected, match="not a SimpleTuner tree"):
        fetch(Spec("path", str(repo)), tmp_path / "cache")
    commit(repo, "gone")
    with pytest.raises(Rejected, match="not a SimpleTuner tree"):
        fetch(Spec("git", str(repo), "main"), tmp_path / "cache")


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no directory"):
        fetch(parse_spec(f"path:{tmp_path}/nowhere"), tmp_path / "cache")


def test_a_user_who_distrusts_bare_repositories(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gitconfig").write_text("[safe]\n\tbareRepository = explicit\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    assert fetch(Spec("git", str(repo), "main"), tmp_path / "cache").git_commit
