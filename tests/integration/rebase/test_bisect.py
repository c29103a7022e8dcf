"""`check` as the program of a `git bisect run`: which commit of upstream broke or moved an edit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab

TRAINER = "simpletuner/helpers/training/trainer.py"


def git(repo: Path, *arguments: str) -> str:
    command = ["git", "-C", str(repo), "-c", "user.name=Ann", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ}).stdout.strip()


def commit(repo: Path, subject: str, **files: str) -> str:
    for name, text in files.items():
        (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", subject)
    return git(repo, "rev-parse", "HEAD")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("self.fetch(number)  #", "self.get(number)  #", id="anchor"),
        pytest.param("while number <", "while 1 + number <", id="surroundings"),
    ],
)
def test_bisect_names_the_commit_that_broke_or_moved_an_edit(lab: Lab, tmp_path: Path, old: str, new: str) -> None:
    repo = tmp_path / "up"
    shutil.copytree(FAKE / "v1", repo)
    git(tmp_path, "init", "-q", "-b", "main", str(repo))
    good = commit(repo, "one")
    commit(repo, "a note", NOTES="n")
    text = (repo / TRAINER).read_text()
    assert text.count(old) >= 1
    moved = commit(repo, "the move", **{TRAINER: text.replace(old, new)})
    commit(repo, "another note", NOTES="m")
    git(repo, "bisect", "start", "HEAD", good)
    said = git(repo, "bisect", "run", sys.executable, str(lab.root / "gh200_rebase"), "check", "--upstream", "path:.")
    assert f"{moved} is the first bad commit" in said
    assert git(repo, "status", "--porcelain") == ""
