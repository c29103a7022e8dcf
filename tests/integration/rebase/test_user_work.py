"""A user's work in and around the fork's tree is never lost: not by a run, a kill or a rollback."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab, snapshot

from gh200_rebase.workspace.retention import _in_use
from tests.integration.rebase.test_workspace import TRAINER, add_submodule, git, own_git_settings

__all__ = ["own_git_settings"]

LAUNCH = FAKE.parents[1] / "simpletuner/gh200/launch.py"
KILLS = int(os.environ.get("GH200_TEST_KILLS", "100"))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_configs_stay_through_a_rebase_and_back(lab: Lab) -> None:
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


def test_changes_are_rejected_before_anything_is_fetched(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    (lab.fork / TRAINER).write_text("mine = 1\n")
    before = snapshot(lab.fork)
    # Nothing is there to be fetched: a later rejection would name that.
    output = lab.run("--skip-tests", "--upstream", "path:nowhere", code=4)
    assert "not ready for a run" in output and "nowhere" not in output
    assert snapshot(lab.fork) == before


def test_four_runs_at_once_one_builds_the_others_say_so(lab: Lab) -> None:
    command = [sys.executable, str(lab.root / "gh200_rebase"), "--skip-tests", "--upstream", lab.upstream("v1")]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    output = [run.communicate() for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, output
    assert sorted("already there: " in out for out, _ in output) == [False, True, True, True], output
    assert lab.git("status", "--porcelain") == "" and len(list((lab.root / "build/forks").iterdir())) == 1


def test_a_running_process_keeps_the_build_it_started_on(lab: Lab) -> None:
    """As train.py does: the link is resolved once, so imports after a rebase come from the same build."""
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    code = "import sys; input(); import simpletuner; print(simpletuner.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(lab.fork.resolve())}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        lab.run("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"))
        assert child.communicate("\n")[0].strip() == "1.0.0"


def test_a_training_locks_the_build_it_runs_from(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    tree = lab.fork.resolve()
    code = f"import runpy; runpy.run_path({str(LAUNCH)!r})['_lock_build'](__import__('pathlib').Path({str(tree)!r})); input()"
    with subprocess.Popen([sys.executable, "-c", code + "; print()"], stdin=subprocess.PIPE, text=True) as child:
        deadline = time.monotonic() + 60
        while not _in_use(tree, tree) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _in_use(tree, tree)
        child.communicate("\n")
    assert not _in_use(tree, tree)


def test_a_requeued_job_finds_the_build_it_started_on(lab: Lab) -> None:
    train = lab.root / "train.py"
    train.write_bytes((FAKE.parents[1] / "train.py").read_bytes())
    (lab.root / "simpletuner/train.py").unlink(missing_ok=True)

    def run(job: str) -> str:
        code = f"import runpy; print(runpy.run_path({str(train)!r})['TREE'])"
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "SLURM_JOB_ID": job}, capture_output=True, text=True
        )
        return done.stdout.splitlines()[-1]

    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    first = run("17")
    lab.run("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"))
    assert run("17") == first != run("18") == str(lab.fork.resolve())


# Pieces of work: each is done to the checkout and returns a question whether it is still there.
type Piece = Callable[[], bool]


def reachable(place: Path, commit: str) -> bool:
    return commit in git(place, "rev-list", "--all", "HEAD").split()


def edit_tracked(place: Path, mark: str) -> Piece:
    path = place / "simpletuner/helpers/caching/store.py"
    path.write_text(path.read_text() + f"# {mark}\n") if path.exists() else path.write_text(f"# {mark}\n")
    return lambda: mark in path.read_text()


def new_file(place: Path, mark: str) -> Piece:
    path = place / f"simpletuner/helpers/mine_{mark}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(mark)
    return lambda: path.read_text() == mark


def ignored_file(place: Path, mark: str) -> Piece:
    path = place / "output" / mark
    path.parent.mkdir(exist_ok=True)
    path.write_text(mark)
    return lambda: path.read_text() == mark


def staged_file(place: Path, mark: str) -> Piece:
    path = place / f"staged_{mark}.txt"
    path.write_text(mark)
    git(place, "add", path.name)
    return lambda: mark == git(place, "cat-file", "blob", f":{path.name}") == path.read_text()


def index_only(place: Path, mark: str) -> Piece:
    staged = staged_file(place, f"index-{mark}")
    path = place / f"staged_index-{mark}.txt"
    path.write_text("something else")
    return lambda: git(place, "cat-file", "blob", f":{path.name}") == f"index-{mark}" and bool(staged)


def renamed(place: Path, mark: str) -> Piece:
    git(place, "mv", "pyproject.toml", f"renamed_{mark}.toml")
    return lambda: (place / f"renamed_{mark}.toml").exists() and f"renamed_{mark}.toml" in git(place, "ls-files")


def commit_here(place: Path, mark: str) -> Piece:
    git(place, "commit", "-q", "--allow-empty", "-m", mark)
    made = git(place, "rev-parse", "HEAD")
    return lambda: reachable(place, made)


def other_branch(place: Path, mark: str) -> Piece:
    git(place, "checkout", "-q", "-b", f"mine-{mark}")
    return commit_here(place, mark)


def in_submodule(place: Path, mark: str) -> Piece:
    path = place / "sub" / mark
    if not path.parent.exists():
        return lambda: True
    path.write_text(mark)
    return lambda: path.read_text() == mark


def in_worktree(place: Path, mark: str) -> Piece:
    tree = place.parent / f"tree-{mark}"
    git(place, "worktree", "add", "-q", "-b", f"tree-{mark}", str(tree))
    (tree / "mine.txt").write_text(mark)
    commit = commit_here(tree, mark)
    return lambda: (tree / "mine.txt").read_text() == mark and commit()


def stashed(place: Path, mark: str) -> Piece:
    (place / "stash.txt").write_text(mark)
    git(place, "stash", "push", "-q", "-u", "--", "stash.txt")
    made = git(place, "rev-parse", "stash@{0}")
    return lambda: reachable(place, made) or made in git(place, "reflog", "--format=%H", "stash")


BEFORE = (edit_tracked, new_file, ignored_file, staged_file, index_only, renamed, other_branch, in_submodule)
BEFORE += (in_worktree, stashed, commit_here)  # type: ignore[assignment]
AFTER = (edit_tracked, new_file, ignored_file, staged_file, index_only, commit_here, in_submodule)


def checkout_of(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    subprocess.run(["cp", "-r", str(FAKE / "v1"), str(place)], check=True)
    (place / ".gitignore").write_text("__pycache__/\n/output\n")
    git(place, "init", "-q", "-b", "work")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "mine")
    add_submodule(place)
    return place


@pytest.mark.timeout(3600)
@pytest.mark.slow(reason="kills 100 rebases, each at another time")
@pytest.mark.parametrize("target", ["checkout", "build"])
def test_kills_at_random_times_lose_nothing(lab: Lab, tmp_path: Path, target: str) -> None:
    """Work before a run, while it is dead, and after the next run or rollback; every piece is looked for again."""
    chance = random.Random(target)
    checkout = checkout_of(tmp_path)
    into = ("--into", str(checkout)) if target == "checkout" else ()
    command = [sys.executable, str(lab.root / "gh200_rebase"), "--skip-tests", "--accept-drift", *into]
    started = time.monotonic()
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    took = time.monotonic() - started
    pieces, lost, number, killed = 0, [], 0, 0
    while killed < KILLS // 2 and number < 4 * KILLS:
        number += 1
        place = lab.fork.resolve() if target == "build" else checkout
        work: list[Piece] = []

        def do(among: tuple[Callable[[Path, str], Piece], ...], place: Path, work: list[Piece], number: int) -> None:
            for piece in chance.sample(among, chance.randint(0, 3)):
                try:
                    work.append(piece(place, f"n{number}x{len(work)}"))
                except AssertionError as error:
                    # git itself says no, for example while a checkout is half done.
                    assert "lock" in str(error) or "fatal" in str(error), error

        do(BEFORE, place, work, number)
        child = subprocess.Popen(
            [*command, "--upstream", lab.upstream(chance.choice(["v1", "v2"]))],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(chance.uniform(0.2 * took, took))
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        was_killed = child.wait() == -signal.SIGKILL
        killed += was_killed
        # Later runs are shorter, so the time to wait follows them.
        took *= 1.1 if was_killed else 0.85
        (place / ".git/index.lock").unlink(missing_ok=True)
        do(AFTER, place, work, number)
        if chance.random() < 0.5:
            subprocess.run([*command, "--upstream", lab.upstream("v1")], capture_output=True, timeout=120)
        else:
            roll_back = [sys.executable, str(lab.root / "gh200_rebase"), "--rollback", "--yes", *into]
            subprocess.run(roll_back, capture_output=True, timeout=120)
        pieces += len(work)
        lost += [f"{number}: {index}" for index, piece in enumerate(work) if not _there(piece)]
        tidy(place)
    print(f"{target}: {killed} of {number} runs were killed, {pieces} pieces of work, {len(lost)} lost")
    assert not lost and killed == KILLS // 2 and pieces > killed


def _there(piece: Piece) -> bool:
    try:
        return piece()
    except (OSError, AssertionError):
        return False


def tidy(place: Path) -> None:
    """The user's own doing: everything is committed, so that the next round starts from a clean tree."""
    git(place, "add", "-A", "--", ".", ":!sub") if (place / "sub").exists() else git(place, "add", "-A")
    git(place, "commit", "-q", "--allow-empty", "--no-verify", "-m", "tidy")
    subprocess.run(["git", "-C", str(place / "sub"), "clean", "-qfd"], capture_output=True)
