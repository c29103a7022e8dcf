"""A new release in a real index becomes a branch with a description; the tree that people work in is not touched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab, snapshot

from gh200_lab.place import ROOT
from gh200_rebase.pages.watch import replay
from gh200_rebase.patches.lockfile import Entry, build
from gh200_rebase.project import Project
from tests.integration.rebase.test_upstream import Index, index, sdist
from tests.integration.rebase.test_workspace import git

__all__ = ["index"]

TRAINER = "simpletuner/helpers/training/trainer.py"
type Change = Callable[[dict[str, bytes]], object]


def release(version: str, change: Change | None = None) -> dict[str, bytes]:
    """The first invented release under another number, and with a change."""
    source = FAKE / "v1"
    paths = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {path.relative_to(source).as_posix(): path.read_bytes() for path in paths}
    files["simpletuner/__init__.py"] = files["simpletuner/__init__.py"].replace(b"1.0.0", version.encode())
    if change:
        change(files)
    return files


def replaced(old: bytes, new: bytes) -> Change:
    def change(files: dict[str, bytes]) -> None:
        assert files[TRAINER].count(old) == 1
        files[TRAINER] = files[TRAINER].replace(old, new)

    return change


@pytest.fixture
def lab(tmp_path: Path, index: Index) -> Lab:
    """A repository with a lock that ends at 1.0.0."""
    lab = make_lab(tmp_path)
    publish(index, {"1.0.0": None})
    (lab.root / ".gitignore").write_text("/build/\n__pycache__/\n")
    lab.run("lock", "--from", "1.0.0")
    git(lab.root, "init", "-q", "-b", "main")
    git(lab.root, "add", "-A")
    git(lab.root, "commit", "-qm", "one")
    return lab


def publish(index: Index, versions: dict[str, Change | None]) -> None:
    lines = []
    for version, change in versions.items():
        path = sdist(index.directory, version, release(version, change))
        lines.append(
            f'<a href="../../{path.name}#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}">{path.name}</a>'
        )
    (index.directory / "simple/simpletuner/index.html").write_text(f"<html><body>{''.join(lines)}</body></html>")


def test_no_newer_release(lab: Lab) -> None:
    assert "nothing to do: 1.0.0 is the newest" in lab.run("watch-upstream", "--skip-tests")
    assert git(lab.root, "branch", "--list", "rebase-*") == ""


def test_a_release_that_changes_nothing_of_ours_is_ready(lab: Lab, index: Index) -> None:
    publish(index, {"1.0.0": None, "1.1.0": None})
    (lab.root / "mine.txt").write_text("untracked")
    before = snapshot(lab.root / "patches"), git(lab.root, "status", "--porcelain"), git(lab.root, "rev-parse", "HEAD")
    output = lab.run("watch-upstream", "--skip-tests")
    assert "Every edit landed where it was last reviewed" in output and "push it yourself" in output
    after = snapshot(lab.root / "patches"), git(lab.root, "status", "--porcelain"), git(lab.root, "rev-parse", "HEAD")
    assert after == before
    lock = json.loads(git(lab.root, "show", "rebase-1.1.0:patches/lock.json"))
    assert list(lock["releases"]) == ["1.0.0", "1.1.0"]
    assert "SimpleTuner 1.1.0" in git(lab.root, "log", "-1", "--format=%B", "rebase-1.1.0")
    assert git(lab.root, "worktree", "list").count("\n") == 0
    assert "is there already" in lab.run("watch-upstream", "--skip-tests")


def test_drift_is_described_for_a_person(lab: Lab, index: Index) -> None:
    publish(index, {"1.0.0": None, "1.1.0": replaced(b"while number <", b"while 1 + number <")})
    lab.run("watch-upstream", "--skip-tests", code=2)
    text = (lab.root / "build/watch/1.1.0.md").read_text()
    assert "For a person: moved" in text and "01/begin" in text and "built with exit code 0" in text
    assert "1.1.0" not in git(lab.root, "show", "rebase-1.1.0:patches/lock.json")


def test_a_lost_anchor_is_repaired_on_the_branch(lab: Lab, index: Index) -> None:
    moved = replaced(b"pair = self.fetch(number)", b"pair = self.take(number)")
    publish(index, {"1.0.0": None, "1.1.0": moved})
    lab.run("watch-upstream", "--skip-tests", code=2)
    text = (lab.root / "build/watch/1.1.0.md").read_text()
    assert "Repairs that were written" in text and "01/begin" in text
    assert "self.take(...)" in git(lab.root, "show", "rebase-1.1.0:patches/01-loop.toml")
    assert "self.take" not in (lab.root / "patches/01-loop.toml").read_text()


def test_what_cannot_be_repaired_is_for_a_person(lab: Lab, index: Index) -> None:
    publish(
        index, {"1.0.0": None, "1.1.0": replaced(b"class Loop:", b"class Other:\n    pass\n\n\nclass Cycle(Other):")}
    )
    lab.run("watch-upstream", "--skip-tests", "--json", str(lab.root / "build/out.json"), code=1)
    text = (lab.root / "build/watch/1.1.0.md").read_text()
    assert "For a person: edits without a place" in text or "Repairs that were written" in text
    assert "the fork cannot be built" in text


def test_the_workflow_runs_the_command_and_pushes_nothing() -> None:
    text = (ROOT / ".github/workflows/watch-upstream.yml").read_text()
    assert "./execute_gh200_rebase.sh watch-upstream" in text and "schedule:" in text
    assert "git push" not in text and "contents: read" in text


def test_the_replay_says_which_release_needed_a_person() -> None:
    one = Entry("1.0", "applied", hits=1, anchor="a")
    two = Entry("1.2", "applied", hits=1, anchor="b")
    three = Entry("1.3", "applied", variant=1, hits=1, anchor="b")
    seen = {"1.0": one, "1.1": one, "1.2": two, "1.3": three}
    text = replay(build({version: ("0", {"01/x": entry}) for version, entry in seen.items()}))
    assert "1 of 3 releases needed nobody" in text
    assert "| 1.1 | 0 | 0 | no |" in text and "| 1.2 | 0 | 1 | yes |" in text and "| 1.3 | 1 | 0 | yes |" in text


def test_the_replay_of_this_repository_covers_every_release_since_the_first() -> None:
    lock = Project(ROOT).lock
    text = (ROOT / "docs/UPSTREAM_REPLAY.md").read_text()
    assert all(f"| {version} |" in text for version in list(lock.releases)[1:])
