"""Drift is stepped through, old beside new, and what is accepted is recorded, for directories and commits too."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab

from gh200_rebase.patches import lockfile


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_review_drift_lists_without_an_answer_and_records_nothing(lab: Lab) -> None:
    before = (lab.root / "patches/lock.json").read_bytes()
    output = lab.run("review", "--upstream", lab.upstream("v2"), "--verified", lab.upstream("v1"), code=2)
    assert "last verified: trainer.py:" in output and "| now: trainer.py:" in output and "ours: " in output
    assert (lab.root / "patches/lock.json").read_bytes() == before


def test_review_drift_accepts_one_by_one(lab: Lab, tmp_path: Path) -> None:
    arguments = ("review", "--upstream", lab.upstream("v2"), "--verified", lab.upstream("v1"))
    lab.run("check", "--upstream", lab.upstream("v2"), code=2)
    said = tmp_path / "said.json"
    lab.run(*arguments, "--accept", "01/begin", "--json", str(said), code=2)
    done = json.loads(said.read_text())
    assert done["accepted"] == ["01/begin"] and "01/begin" not in done["left"]
    lab.run(*arguments, "--accept", "all")
    assert "as accepted in path:2.0.0" in lab.run("check", "--upstream", lab.upstream("v2"))
    lab.run("--skip-tests", "--upstream", lab.upstream("v2"))
    # What was verified before is still as it was.
    lab.run("check", "--upstream", lab.upstream("v1"))
    assert "Nothing to review for 01/begin" in lab.run(*arguments, "--accept", "01/begin", code=4)


def test_review_drift_of_a_commit(lab: Lab, tmp_path: Path) -> None:
    repo = tmp_path / "upstream.git"
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    subprocess.run(["cp", "-r", f"{FAKE / 'v2'}/.", str(repo)], check=True)
    who = ["-c", "user.name=a", "-c", "user.email=b@c"]
    subprocess.run(["git", "-C", str(repo), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(repo), *who, "commit", "-qm", "two"], check=True)
    spec = f"git:{repo}@HEAD"
    lab.run("review", "--upstream", spec, "--verified", lab.upstream("v1"), "--accept", "all")
    assert "as accepted in git:" in lab.run("check", "--upstream", spec)


def test_review_drift_asks_at_a_terminal(lab: Lab) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"maybe\ny\nq\n")
    command = [sys.executable, str(lab.root / "gh200_rebase"), "review", "--upstream", lab.upstream("v2")]
    command += ["--verified", lab.upstream("v1")]
    done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=120)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2 and "1 accepted" in done.stdout, done.stdout + done.stderr


def test_what_was_accepted_stays_until_a_release_has_it(tmp_path: Path) -> None:
    entry = lockfile.Entry("1.0", "applied", hits=1, anchor="a")
    other = lockfile.Entry("git:abc", "applied", hits=1, anchor="b")
    third = lockfile.Entry("git:def", "applied", hits=1, anchor="c")
    lock = lockfile.accept(
        lockfile.accept(lockfile.build({"1.0": ("0", {"01/x": entry})}), {"01/x": other}), {"01/x": third}
    )
    lockfile.save(lock, tmp_path / "lock.json")
    assert lockfile.load(tmp_path / "lock.json") == lock
    new = lockfile.build({"1.0": ("0", {"01/x": entry}), "2.0": ("1", {"01/x": other})})
    assert lockfile.still_accepted(lock, new).accepted == {"01/x": (third,)}
