"""What a user has in the fork's tree is never forced away: not by a run, a kill, a resume or a rollback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rebase_lab import Lab, make_lab, snapshot

from gh200_rebase.errors import Rejected
from gh200_rebase.upstream.fetch import Upstream
from gh200_rebase.workspace import journal
from gh200_rebase.workspace.rollback import resume, rollback
from gh200_rebase.workspace.switch import Step, build
from tests.integration.rebase.test_workspace import (
    MINE,
    STEPS,
    TRAINER,
    clone,
    directory,
    drive,
    files_of,
    git,
    kept,
    make,
    own_git_settings,
    plain,
    state_of,
)

__all__ = ["own_git_settings"]

KILLS = int(os.environ.get("GH200_TEST_KILLS", "200"))
CONFIG_STEPS = [*STEPS, Step("Configs", "", {}, {"config/gh200.json": (b"{}\n", False)})]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return plain(directory(make(tmp_path / "upstream")))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_user_edits_in_config_stay_through_a_rebase_and_back(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    mine = {lab.fork / "config/myjob/config.json": "{}", lab.fork / "config/default.json": "[]"}
    for path, text in mine.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert "already there" in lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    lab.run("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"))
    assert all(path.read_text() == text for path, text in mine.items())
    lab.run("--rollback", "--yes")
    assert all(path.read_text() == text for path, text in mine.items())


def test_user_edits_in_the_way_of_a_config_of_ours_are_kept_aside(
    tmp_path: Path, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    into = tmp_path / "fork"
    build(into, upstream, STEPS)
    (into / "config").mkdir()
    (into / "config/gh200.json").write_bytes(b"mine\n")
    build(into, upstream, CONFIG_STEPS)
    assert (into / "config/gh200.json").read_bytes() == b"{}\n" and kept(into, b"mine\n")
    assert "config/gh200.json is now " in capsys.readouterr().out


def test_user_edits_of_the_checklist_survive_a_rollback(tmp_path: Path, upstream: Upstream) -> None:
    into = tmp_path / "fork"
    build(into, upstream, STEPS)
    (into / journal.CHECKLIST).write_bytes(b"- [x] looked at by me\n")
    rollback(into, True)
    assert kept(into, b"- [x] looked at by me\n")


@pytest.mark.parametrize("way", ["resume", "rollback"])
def test_user_edits_where_a_directory_belongs_are_kept_aside(tmp_path: Path, upstream: Upstream, way: str) -> None:
    place = clone(tmp_path)
    child = drive("build", place, upstream.root, GH200_REBASE_CRASH_AT="journal")
    child.communicate()
    (place / "scripts").write_bytes(b"mine where a directory comes\n")
    said = resume(place) if way == "resume" else rollback(place, True)
    assert kept(place, b"mine where a directory comes\n")
    assert "scripts is now " in said or (place / "scripts").read_bytes() == b"mine where a directory comes\n"


def test_user_edits_are_rejected_before_anything_is_fetched(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    (lab.fork / TRAINER).write_text("mine = 1\n")
    before = snapshot(lab.fork)
    # Nothing is there to be fetched: a rejection that came later would speak of that.
    output = lab.run("--skip-tests", "--upstream", "path:nowhere", code=4)
    assert "not ready for a run" in output and "nowhere" not in output
    assert snapshot(lab.fork) == before


def test_four_runs_at_once_one_builds_the_others_say_so(lab: Lab) -> None:
    command = [sys.executable, str(lab.root / "gh200_rebase"), "--skip-tests", "--upstream", lab.upstream("v1")]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, said
    assert sorted("already there: " in out for out, _ in said) == [False, True, True, True], said
    assert lab.git("status", "--porcelain") == ""


@pytest.mark.parametrize("at", ["pristine", "checkout"])
def test_a_terminated_run_says_what_it_left(lab: Lab, at: str) -> None:
    if at == "checkout":
        lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    before = snapshot(lab.fork) if lab.fork.exists() else {}
    arguments = ("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"))
    output = lab.run(*arguments, code=4, GH200_REBASE_CRASH_AT=f"{at}:TERM")
    assert "terminated: " in output
    assert ("nothing was written" if at == "pristine" else "is whole, on gh200-reintegration") in output
    assert (snapshot(lab.fork) if lab.fork.exists() else {}) == before


@pytest.mark.slow(reason="kills 200 rebases, each at another moment")
def test_user_edits_and_kills_at_random_moments_lose_nothing(tmp_path: Path, upstream: Upstream) -> None:
    """Edits before a run, while it is dead, and after it was finished or taken back."""
    chance = random.Random(20)
    place = clone(tmp_path, files=200)
    clean = state_of(place)
    started = time.monotonic()
    drive("build", place, upstream.root).communicate()
    took = time.monotonic() - started
    rollback(place, True)
    names = [*MINE, "config/myjob/a.json", "simpletuner/helpers/new/deep.py"]
    for number in range(KILLS):
        wrote: list[bytes] = []

        def edit(place: Path, wrote: list[bytes], number: int, *, among: list[str]) -> None:
            name = chance.choice(among)
            data = f"edit {number} {len(wrote)} of {name}\n".encode()
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(data)
            wrote.append(data)

        edit(place, wrote, number, among=["config/myjob/a.json", "output/model"])
        child = drive("build", place, upstream.root)
        time.sleep(chance.uniform(0, took))
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        edit(place, wrote, number, among=names)
        if journal.read(place):
            chance.choice([resume, lambda repo: rollback(repo, True)])(place)
        edit(place, wrote, number, among=names)
        try:
            if git(place, "symbolic-ref", "HEAD") == "refs/heads/gh200-reintegration":
                rollback(place, True)
        except Rejected as error:
            assert "would lose" in error.what
        lost = [data for data in wrote if not kept(place, data) and wrote.index(data) == _last_of(wrote, data)]
        assert not lost, (number, lost)
        _clean_up(place)
        assert state_of(place) == clean, number


def _last_of(wrote: list[bytes], data: bytes) -> int:
    """A later edit of the same file takes the place of an earlier one, which is the user's own doing."""
    name = data.split(b" of ")[1]
    return max(index for index, other in enumerate(wrote) if other.split(b" of ")[1] == name)


def _clean_up(place: Path) -> None:
    git(place, "checkout", "-q", "-f", "work" if git(place, "branch", "--list", "work") else "HEAD")
    for _ in range(3):
        if journal.read(place) or (place / journal.LOG).exists():
            git(place, "checkout", "-q", "-f", ".")
            git(place, "clean", "-qfd")
            rollback(place, True)
    git(place, "clean", "-qfd")
    (place / "output/model").write_text("m")
    assert files_of(place)
