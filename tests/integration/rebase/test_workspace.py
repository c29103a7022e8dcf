"""The fork's tree: exact bytes, repeatable commits, and a way back from every kind of interruption."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from gh200_rebase.errors import Rejected
from gh200_rebase.system import durable
from gh200_rebase.upstream.fetch import Spec, Upstream, fetch
from gh200_rebase.workspace import journal
from gh200_rebase.workspace import switch as workspace
from gh200_rebase.workspace.rollback import append_log, resume, rollback
from gh200_rebase.workspace.switch import Built, Step, build

TRAINER = "simpletuner/helpers/training/trainer.py"
IN_PLACE_STEPS = [
    "commits",
    "prepared",
    "journal",
    "refs",
    "checkout",
    "branches",
    "head",
    "file-MERGE_LOG.txt",
    "file-ROLLBACK.sh",
    "file-gh200-current.patch",
    "file-GH200_REBASE_CHECKLIST.md",
    "done",
]
DRIVER = """
import sys
from pathlib import Path
from tests.integration.rebase.test_workspace import STEPS, directory
from gh200_rebase.workspace.rollback import rollback
from gh200_rebase.workspace.switch import build
what, into, root = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
print("ready", flush=True)
build(into, directory(root), STEPS) if what == "build" else rollback(into, True)
"""
STEPS = [
    Step(
        "Add the overlay",
        "It holds all behaviour.",
        {"Gh200-Patch": "06-overlay"},
        {"simpletuner/gh200/__init__.py": (b"on = True\n", False), "scripts/run me.sh": (b"#!/bin/sh\r\n", True)},
    ),
    Step(
        "Call it",
        "",
        {"Gh200-Patch": "01-trainer", "Gh200-Upstream": "path 1.0"},
        {TRAINER: (b"import gh200\r\n", False)},
    ),
]


@pytest.fixture(autouse=True)
def own_git_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "gitconfig").write_text(
        "[core]\n\tautocrlf = true\n[commit]\n\tgpgsign = true\n[status]\n\tshowUntrackedFiles = no\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(place: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(place), "-c", "user.name=u", "-c", "user.email=u@v", "-c", "commit.gpgsign=false", *args],
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def make(root: Path, version: str = "1.0", files: int = 3) -> Path:
    """A directory that passes for upstream, with everything git likes to change."""
    contents = {
        "simpletuner/__init__.py": f'__version__ = "{version}"\n'.encode(),
        TRAINER: b"def train():\r\n    pass\n",
        ".gitattributes": b"* text=auto eol=crlf\n*.id ident\n*.bin filter=lfs\nwide.txt working-tree-encoding=UTF-16",
        "unix.txt": b"a\nb\n",
        "dos.txt": b"a\r\nb\r\n",
        "mixed.txt": b"a\r\nb\n",
        "x.id": b"$Id$\n",
        "x.bin": bytes(range(256)),
        "wide.txt": b"\xff\xfea\0",
        "with space/\u00fc\u4e2d.txt": b"u",
        'quote"d.txt': b"q",
        "-dash": b"d",
        f"only-{version}/deep/er.txt": b"o",
    } | {f"many/{i}.txt": f"{version} {i}\n".encode() * 50 for i in range(files)}
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("with space")
    return root


def directory(root: Path) -> Upstream:
    found = fetch(Spec("path", str(root)), root.parent / "cache")
    return replace(found, seconds=1_700_000_000)


def files_of(root: Path) -> dict[str, tuple[str, bytes]]:
    bare = {p.relative_to(root).as_posix(): p for p in root.rglob("*") if ".git" not in p.relative_to(root).parts}
    return {
        n: ("link", os.fsencode(p.readlink())) if p.is_symlink() else (oct(p.stat().st_mode & 0o111), p.read_bytes())
        for n, p in bare.items()
        if p.is_symlink() or p.is_file()
    }


def state_of(repo: Path) -> tuple[object, ...]:
    """Everything a rollback must restore; backup branches are allowed to stay."""
    refs = [
        line
        for line in git(repo, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
        if "gh200-backup" not in line and "refs/gh200/build" not in line and "refs/notes/gh200" not in line
    ]
    head = (repo / ".git/HEAD").read_text()
    return files_of(repo), refs, head, git(repo, "status", "--porcelain", "--untracked-files=all")


def plain(upstream: Upstream) -> Upstream:
    """Without attributes: then a user's checkout, which follows them, keeps every byte too."""
    (upstream.root / ".gitattributes").unlink()
    return directory(upstream.root)


def clone(tmp_path: Path, files: int = 3) -> Path:
    """A user's own checkout of upstream on a branch of theirs, with ignored files."""
    place = make(tmp_path / "user's clone", files=files)
    (place / ".gitattributes").unlink()
    (place / ".gitignore").write_text("/secret.env\noutput/\n")
    git(place, "init", "-q", "-b", "work")
    git(place, "config", "core.autocrlf", "false")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "mine")
    (place / "secret.env").write_text("k")
    (place / "output").mkdir()
    (place / "output/model").write_text("m")
    return place


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return directory(make(tmp_path / "upstream"))


def test_a_fresh_fork(tmp_path: Path, upstream: Upstream) -> None:
    into = tmp_path / "a b" / "fork"
    built = build(into, upstream, STEPS)
    assert {n: v for n, v in files_of(into).items() if n not in journal.RUN_FILES} == {
        **files_of(upstream.root),
        TRAINER: ("0o0", b"import gh200\r\n"),
        "simpletuner/gh200/__init__.py": ("0o0", b"on = True\n"),
        "scripts/run me.sh": ("0o111", b"#!/bin/sh\r\n"),
    }
    assert git(into, "log", "--reverse", "--format=%s|%an|%ae|%at").splitlines() == [
        f"{subject}|GH200 rebase|gh200@localhost|1700000000"
        for subject in ("Upstream SimpleTuner 1.0, untouched", "Add the overlay", "Call it")
    ]
    assert git(into, "log", "-1", "--format=%(trailers:key=Gh200-Patch,valueonly)") == "01-trainer"
    assert (
        git(into, "symbolic-ref", "HEAD") == "refs/heads/gh200-reintegration"
        and git(into, "rev-parse", "HEAD") == built.tip
    )
    assert git(into, "rev-parse", "upstream") == git(into, "rev-parse", built.backup) == built.pristine
    assert git(into, "status", "--porcelain", "-uall") == "" and git(into, "fsck", "--strict") == ""
    assert f"Backup branch: {built.backup}\n" in (into / "MERGE_LOG.txt").read_text()
    assert (into / "gh200-current.patch").read_text().startswith("# The tree had no changes")
    assert sorted(p.name for p in into.parent.iterdir()) == ["fork"]
    git(into, "checkout", "-q", "upstream")
    git(into, "checkout", "-q", "gh200-reintegration")
    assert (into / "mixed.txt").read_bytes() == b"a\r\nb\n"
    append_log(into, "more\n")
    rollback(into, True)
    assert files_of(into) == files_of(upstream.root) and git(into, "symbolic-ref", "HEAD") == "refs/heads/upstream"


def test_the_same_input_is_the_same_fork(tmp_path: Path, upstream: Upstream) -> None:
    first = build(tmp_path / "fork", upstream, STEPS)
    before = state_of(tmp_path / "fork")
    os.utime(upstream.root / "unix.txt")
    again = build(tmp_path / "fork", replace(upstream, seconds=5), STEPS)
    assert (
        again.already
        and again.backup == ""
        and again.commits == first.commits
        and state_of(tmp_path / "fork") == before
    )
    (tmp_path / "other").mkdir()
    assert build(tmp_path / "other", upstream, STEPS).commits == first.commits
    (tmp_path / "other/loose").touch()
    with pytest.raises(Rejected, match="loose"):
        build(tmp_path / "other", upstream, STEPS)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_reproducible_commits_wherever_and_whoever(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    first = build(tmp_path / "fork", upstream, STEPS)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ann")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "77")
    for key, value in {"user.name": "Bob", "user.email": "b@c", "init.defaultObjectFormat": "sha256"}.items():
        git(tmp_path, "config", "--file", str(tmp_path / "gitconfig"), key, value)
    copied = shutil.copytree(upstream.root, tmp_path / "elsewhere", symlinks=True)
    os.utime(copied / "unix.txt", (1, 1))
    usual = os.umask(umask)
    try:
        # In a directory that held another upstream before.
        build(tmp_path / "other place", directory(make(tmp_path / "up2", "2.0")), STEPS)
        again = build(tmp_path / "other place", directory(copied), STEPS)
    finally:
        os.umask(usual)
    assert again.commits == first.commits and again.pristine == first.pristine
    assert git(tmp_path / "other place", "log", "-1", "--format=%an %cn") == "GH200 rebase GH200 rebase"
    assert "Built by Bob <b@c> on " in git(tmp_path / "other place", "notes", "--ref=gh200", "show", again.tip)


def test_the_next_upstream_and_back(tmp_path: Path, upstream: Upstream) -> None:
    into = tmp_path / "fork"
    first = build(into, upstream, STEPS)
    before = state_of(into)
    second = build(into, directory(make(tmp_path / "up2", "2.0")), STEPS)
    assert git(into, "rev-parse", "upstream") == second.pristine != first.pristine
    assert not (into / "only-1.0").exists() and (into / "only-2.0/deep/er.txt").exists()
    git(into, "checkout", "-q", first.pristine)
    git(into, "apply", "gh200-current.patch")
    assert git(into, "add", "-A") == "" and git(into, "write-tree") == git(into, "rev-parse", f"{first.tip}^{{tree}}")
    git(into, "checkout", "-qf", "gh200-reintegration")
    (into / "only-2.0/deep/__pycache__").mkdir()
    rollback(into, True)
    assert state_of(into) == before and not (into / "only-2.0").exists()
    rollback(into, True)
    assert files_of(into) == files_of(upstream.root)
    with pytest.raises(Rejected, match="Nothing to roll back"):
        rollback(into, True)


def test_a_users_checkout_starts_from_the_git_commit(tmp_path: Path) -> None:
    place = clone(tmp_path)
    base = git(place, "rev-parse", "HEAD")
    (place / "mine.txt").write_bytes(b"\x00old fork work")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "the old fork")
    before = state_of(place)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(place, elsewhere, symlinks=True)
    git(elsewhere, "checkout", "-q", "-b", "newer", base)
    (elsewhere / "newer.txt").write_text("n")
    git(elsewhere, "add", "-A")
    git(elsewhere, "commit", "-qm", "newer upstream")
    found = fetch(Spec("git", str(elsewhere), "newer"), tmp_path / "cache")
    built = build(place, found, STEPS)
    assert built.pristine == found.git_commit == git(place, "rev-parse", "gh200-reintegration~2")
    assert (
        (place / "newer.txt").exists()
        and not (place / "mine.txt").exists()
        and (place / "secret.env").read_text() == "k"
    )
    assert "GIT binary patch" in (place / "gh200-current.patch").read_text()
    assert build(place, found, STEPS).already
    rollback(place, True)
    assert state_of(place) == before


def test_a_release_in_a_users_checkout(tmp_path: Path, upstream: Upstream) -> None:
    place, found = clone(tmp_path), plain(upstream)
    git(place, "branch", "upstream")
    git(place, "checkout", "-q", "--detach")
    before = state_of(place)
    build(place, found, STEPS)
    assert git(place, "rev-parse", "upstream") == git(place, "rev-parse", "work")
    assert git(place, "status", "--porcelain", "-uall") == "" and build(place, found, STEPS).already
    rollback(place, True)
    assert state_of(place) == before


def test_a_users_checkout_that_would_rewrite_upstream(tmp_path: Path, upstream: Upstream) -> None:
    place = clone(tmp_path)
    before = state_of(place)
    with pytest.raises(Rejected) as caught:
        build(place, upstream, STEPS)
    assert "wide.txt" in caught.value.why and state_of(place) == before and journal.read(place) is None


def break_dirty(place: Path) -> None:
    (place / TRAINER).write_text("edited")


def break_untracked(place: Path) -> None:
    (place / "new.txt").touch()


def break_merge(place: Path) -> None:
    (place / ".git/MERGE_HEAD").write_text(git(place, "rev-parse", "HEAD"))


def break_in_way(place: Path) -> None:
    (place / ".git/info/exclude").write_text("gh200\n")
    (place / "simpletuner/gh200").mkdir()
    (place / "simpletuner/gh200/__init__.py").touch()


def break_parent_in_way(place: Path) -> None:
    (place / ".git/info/exclude").write_text("scripts\n")
    (place / "scripts").touch()


def break_other_project(place: Path) -> None:
    git(place, "rm", "-q", TRAINER)
    git(place, "commit", "-qm", "no")


def break_lock(place: Path) -> None:
    (place / ".git/index.lock").touch()


def break_other_worktree(place: Path) -> None:
    git(place, "worktree", "add", "-q", "-b", "gh200-reintegration", str(place.parent / "tree"))


def break_no_git(place: Path) -> None:
    shutil.rmtree(place / ".git")


def break_empty_git(place: Path) -> None:
    shutil.rmtree(place / ".git")
    git(place, "init", "-q")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (break_dirty, "git stash -u"),
        (break_untracked, "new.txt"),
        (break_merge, "merge --abort"),
        (break_in_way, "simpletuner/gh200/__init__.py"),
        (break_parent_in_way, "scripts"),
        (break_other_project, "not a checkout of SimpleTuner"),
        (break_lock, "index.lock"),
        (break_other_worktree, "another worktree"),
        (break_no_git, "not a git checkout"),
        (break_empty_git, "no commit yet"),
    ],
)
def test_what_is_rejected_stays_as_it_is(tmp_path: Path, upstream: Upstream, spoil: object, says: str) -> None:
    place = clone(tmp_path)
    spoil(place)  # type: ignore[operator]
    before = (files_of(place), state_of(place) if (place / ".git").exists() and spoil is not break_empty_git else None)
    with pytest.raises(Rejected) as caught:
        build(place, upstream, STEPS)
    assert says in str(caught.value) and caught.value.fix
    assert before == (files_of(place), state_of(place) if before[1] else None) and journal.LOG not in files_of(place)


def test_problems_are_listed_together(tmp_path: Path, upstream: Upstream) -> None:
    place = clone(tmp_path)
    break_merge(place)
    for number in range(12):
        (place / f"n{number}").touch()
    with pytest.raises(Rejected, match=r"(?s)a merge is under way.*and 2 more"):
        build(place, upstream, STEPS)


def test_no_git(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Rejected, match="git was not found"):
        build(tmp_path / "fork", upstream, STEPS)


@pytest.mark.parametrize("path", ["../x", "/x", ".git/hooks/post-checkout", "a/../../b"])
def test_a_step_cannot_write_outside(tmp_path: Path, upstream: Upstream, path: str) -> None:
    with pytest.raises(Rejected, match="not safe"):
        build(tmp_path / "fork", upstream, [Step("s", "", {}, {path: (b"", False)})])
    assert not (tmp_path / "fork").exists()


def test_the_fork_is_not_written_into_upstream(tmp_path: Path, upstream: Upstream) -> None:
    with pytest.raises(Rejected, match="its own upstream"):
        build(upstream.root / "fork", upstream, STEPS)


def test_the_callers_environment_and_hooks_have_no_say(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = plain(upstream)
    place, bystander = clone(tmp_path), tmp_path / "bystander"
    git(tmp_path, "init", "-q", str(bystander))
    hook = place / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hook-ran'\n")
    hook.chmod(0o755)
    for name, value in {"GIT_DIR": ".git", "GIT_WORK_TREE": ".", "GIT_INDEX_FILE": "index"}.items():
        monkeypatch.setenv(name, str(bystander / value))
    build(place, upstream, STEPS)
    rollback(place, True)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert not (tmp_path / "hook-ran").exists() and sorted(p.name for p in bystander.iterdir()) == [".git"]


def test_rollback_keeps_later_work(tmp_path: Path, upstream: Upstream) -> None:
    upstream = plain(upstream)
    place = clone(tmp_path)
    before = state_of(place)
    build(place, upstream, STEPS)
    (place / "later.txt").write_text("l")
    with pytest.raises(Rejected) as caught:
        rollback(place, True)
    assert "later.txt" in caught.value.what and "git stash -u" in caught.value.fix
    git(place, "add", "-A")
    git(place, "commit", "-qm", "later")
    later = git(place, "rev-parse", "HEAD")
    said = rollback(place, True)
    kept = git(place, "for-each-ref", "--format=%(refname:short)", "refs/heads/gh200-undone-*")
    assert kept in said and git(place, "rev-parse", kept) == later
    git(place, "branch", "-D", kept)
    assert state_of(place) == before


def test_the_script_alone_asks_and_rolls_back(tmp_path: Path, upstream: Upstream) -> None:
    upstream = plain(upstream)
    place = clone(tmp_path)
    before = state_of(place)
    built = build(place, upstream, STEPS)
    after = state_of(place)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in [
        "git",
        "sh",
        "sed",
        "head",
        "dirname",
        "rm",
        "mv",
        "cp",
        "grep",
        "sort",
        "rmdir",
        "mkdir",
        "comm",
        "tr",
        "cat",
    ]:
        (tools / name).symlink_to(shutil.which(name) or "")

    def script(answer: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [place / "ROLLBACK.sh", *args],
            input=answer,
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": str(tools)},
        )

    for answer in ("", "n\n", "\n"):
        assert script(answer).returncode == 4 and state_of(place) == after
    assert script("", "--force").returncode == 4 and state_of(place) == after
    done = script("y\n")
    assert done.returncode == 0, done.stderr
    assert state_of(place) == before and (place / ".git/gh200" / built.backup / "MERGE_LOG.txt").exists()


def drive(what: str, into: Path, root: Path, **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, what, str(into), str(root)],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(repo: Path, before: tuple[object, ...], upstream: Upstream, way: str) -> None:
    """After a kill: as before, or complete, or one of the two ways out leads there."""
    if journal.read(repo) is None:
        if state_of(repo) == before:
            return
    elif way == "resume":
        with pytest.raises(Rejected, match="--resume"):
            build(repo, upstream, STEPS)
        resume(repo)
    else:
        rollback(repo, True)
        assert state_of(repo) == before
        return
    assert build(repo, upstream, STEPS).already and git(repo, "fsck", "--no-dangling") == ""
    assert set(journal.RUN_FILES) <= set(files_of(repo))
    rollback(repo, True)
    assert state_of(repo) == before


@pytest.mark.parametrize(
    ("at", "way"),
    [
        *((at, "resume") for at in IN_PLACE_STEPS),
        *((at, "rollback") for at in ("journal", "refs", "checkout", "branches", "head")),
    ],
)
def test_killed_at_each_step(tmp_path: Path, upstream: Upstream, at: str, way: str) -> None:
    upstream = plain(upstream)
    place = clone(tmp_path)
    before = state_of(place)
    child = drive("build", place, upstream.root, GH200_REBASE_CRASH_AT=at)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert (journal.read(place) is None) == (at in ("commits", "prepared", "done"))
    finish(place, before, upstream, way)


@pytest.mark.parametrize("at", ["pristine", "journal", "checkout", "done", "renamed"])
def test_a_fresh_fork_killed_at_each_step_is_all_or_nothing(tmp_path: Path, upstream: Upstream, at: str) -> None:
    into = tmp_path / "new" / "fork"
    child = drive("build", into, upstream.root, GH200_REBASE_CRASH_AT=at)
    child.communicate()
    assert child.returncode == -signal.SIGKILL and into.exists() == (at == "renamed")
    assert build(into, upstream, STEPS).already == (at == "renamed")
    assert [p.name for p in into.parent.iterdir()] == ["fork"]


@pytest.mark.parametrize(
    ("what", "sign"), [("build", signal.SIGKILL), ("rollback", signal.SIGKILL), ("build", signal.SIGINT)]
)
def test_stopped_at_random(tmp_path: Path, what: str, sign: signal.Signals) -> None:
    """The whole process group dies, git half way through a checkout included."""
    place, upstream = clone(tmp_path, files=400), plain(directory(make(tmp_path / "up2", "2.0", files=400)))
    before, chance = state_of(place), random.Random(what + str(sign))
    began = time.monotonic()
    build(place, upstream, STEPS)
    rollback(place, True)
    took = time.monotonic() - began
    for _ in range(6):
        if what == "rollback":
            build(place, upstream, STEPS)
        child = drive(what, place, upstream.root)
        assert child.stdout and child.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, took))
        os.killpg(child.pid, sign)
        child.communicate()
        if what == "build":
            finish(place, before, upstream, chance.choice(["resume", "rollback"]))
        elif journal.read(place):
            chance.choice([resume, lambda repo: rollback(repo, True)])(place)
        elif state_of(place) != before:
            rollback(place, True)
        assert state_of(place) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def fill(disk: Path, leave: int) -> None:
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(max(0, free - leave)))


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("leave", [0, 200_000, 700_000, 900_000, 5_000_000])
def test_a_full_disk(
    upstream: Upstream, small_disk: Path, monkeypatch: pytest.MonkeyPatch, leave: int, checked: bool
) -> None:
    """Unchecked, as when somebody else fills the disk later: then the journal still leads back."""
    if not checked:
        monkeypatch.setattr(workspace, "reject_full_disk", lambda repo, coming: None)
    upstream, place = plain(upstream), clone(small_disk)
    before = state_of(place)
    steps = [*STEPS, Step("Large", "", {}, {"large": (random.Random(1).randbytes(400_000), False)})]
    fill(small_disk, leave)
    rejections = []
    for into in (small_disk / "fork", place):
        try:
            build(into, upstream, steps)
        except Rejected as error:
            rejections.append(error)
    shutil.rmtree(small_disk / "fork", ignore_errors=True)
    assert bool(rejections) == (leave < 2_000_000) and all("free some space" in error.fix for error in rejections), (
        rejections
    )
    assert sorted(p.name for p in small_disk.iterdir()) == ["filler", place.name]
    (small_disk / "filler").unlink()
    if checked and rejections:
        assert state_of(place) == before and journal.read(place) is None
    if journal.read(place) or (place / journal.LOG).exists():
        rollback(place, True)
    assert state_of(place) == before


def test_a_running_child_keeps_the_lock(tmp_path: Path) -> None:
    with durable.lock(tmp_path, "at work"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    with pytest.raises(Rejected, match="Another run is at work"), durable.lock(tmp_path, "at work", patience=0.1):
        pass
    child.kill()
    child.wait()
    with durable.lock(tmp_path, "at work", patience=0.1):
        pass


def test_nothing_to_resume(tmp_path: Path, upstream: Upstream) -> None:
    build(tmp_path / "fork", upstream, STEPS)
    with pytest.raises(Rejected, match="Nothing to resume"):
        resume(tmp_path / "fork")
    for way in (resume, lambda into: rollback(into, True)):
        with pytest.raises(Rejected, match="no fork at"):
            way(tmp_path / "nowhere")


def test_built_without_steps(tmp_path: Path, upstream: Upstream) -> None:
    built = build(tmp_path / "fork", upstream, [])
    assert isinstance(built, Built) and built.tip == built.pristine


MINE = {
    TRAINER: b"mine in a file that both trees have\n",
    "many/1.txt": b"mine in a file that is the same in both\n",
    "simpletuner/gh200/__init__.py": b"mine in a file that only the fork has\n",
    "notes.txt": b"mine in a file that no tree has\n",
    'quote"d.txt': b"mine behind a quote\n",
}


def kept(place: Path, data: bytes) -> bool:
    """Whether a user's bytes are still somewhere: in the tree, or aside inside .git/gh200."""
    found = [*place.rglob("*"), *(place / ".git/gh200").rglob("*")]
    return any(path.is_file() and not path.is_symlink() and path.read_bytes() == data for path in found)


@pytest.mark.parametrize("way", ["resume", "rollback"])
@pytest.mark.parametrize("at", ["journal", "refs", "checkout", "branches", "head", "file-MERGE_LOG.txt"])
def test_user_edits_after_a_kill_are_never_lost(tmp_path: Path, upstream: Upstream, at: str, way: str) -> None:
    upstream = plain(upstream)
    place = clone(tmp_path)
    child = drive("build", place, upstream.root, GH200_REBASE_CRASH_AT=at)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    for name, data in MINE.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    said = resume(place) if way == "resume" else rollback(place, True)
    assert all(kept(place, data) for data in MINE.values())
    assert (place / "notes.txt").read_bytes() == MINE["notes.txt"]
    for name in set(MINE) - {"notes.txt"}:
        assert f"{name} is now " in said
    assert journal.read(place) is None
    assert not [line for line in git(place, "status", "--porcelain").splitlines() if "notes.txt" not in line]


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_user_edits_that_git_overlooks_are_rejected_before_a_run(tmp_path: Path, upstream: Upstream, flag: str) -> None:
    place = clone(tmp_path)
    git(place, "update-index", f"--{flag}", TRAINER, "unix.txt")
    (place / TRAINER).write_bytes(MINE[TRAINER])
    before = state_of(place)
    with pytest.raises(Rejected, match="told to overlook") as caught:
        build(place, plain(upstream), STEPS)
    assert TRAINER in str(caught.value) and "unix.txt" not in str(caught.value)
    assert state_of(place) == before


@pytest.mark.parametrize("flag", ["assume-unchanged", "skip-worktree"])
def test_user_edits_that_git_overlooks_survive_a_rollback(tmp_path: Path, upstream: Upstream, flag: str) -> None:
    place = clone(tmp_path)
    git(place, "update-index", f"--{flag}", "unix.txt")
    build(place, plain(upstream), STEPS)
    git(place, "update-index", f"--{flag}", TRAINER)
    (place / TRAINER).write_bytes(MINE[TRAINER])
    said = rollback(place, True)
    assert f"{TRAINER} is now " in said and kept(place, MINE[TRAINER])
    assert git(place, "status", "--porcelain") == ""
