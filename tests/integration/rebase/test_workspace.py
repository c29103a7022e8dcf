"""The fork's tree: exact bytes, repeatable commits, one step that publishes, and a way back."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gh200_rebase.errors import Rejected
from gh200_rebase.system import durable
from gh200_rebase.upstream.fetch import Spec, Upstream, fetch
from gh200_rebase.workspace import builds, checkout
from gh200_rebase.workspace.builds import Built, rollback
from gh200_rebase.workspace.history import Step
from gh200_rebase.workspace.run_files import CHECKLIST, RUN_FILES, append_log

TRAINER = "simpletuner/helpers/training/trainer.py"
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


def build(into: Path, upstream: Upstream, steps: list[Step] = STEPS, *, linked: bool = False) -> Built:
    return builds.build(into, upstream, steps, lambda built: "- [ ] looked at\n", linked=linked)


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


def without_ours(state: tuple[object, ...]) -> tuple[object, ...]:
    """Without the branches that a run adds, which a rollback leaves."""
    files, refs, *rest = state
    return (files, [ref for ref in refs if "gh200" not in ref and "heads/upstream" not in ref], *rest)  # type: ignore[attr-defined]


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
    built = build(into, upstream)
    assert {n: v for n, v in files_of(into).items() if n not in RUN_FILES} == {
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
    assert git(into, "symbolic-ref", "HEAD") == "refs/heads/gh200-reintegration"
    assert git(into, "rev-parse", "HEAD") == built.history.tip
    assert git(into, "rev-parse", "upstream") == git(into, "rev-parse", built.backup) == built.history.pristine
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
    assert (into / ".git/gh200" / built.backup / "MERGE_LOG.txt").read_text().endswith("more\n")


def test_the_same_input_is_the_same_fork(tmp_path: Path, upstream: Upstream) -> None:
    first = build(tmp_path / "fork", plain(upstream))
    before = state_of(tmp_path / "fork")
    os.utime(upstream.root / "unix.txt")
    again = build(tmp_path / "fork", replace(directory(upstream.root), seconds=5))
    assert again.already and again.backup == "" and again.history == first.history
    assert state_of(tmp_path / "fork") == before
    (tmp_path / "other").mkdir()
    assert build(tmp_path / "other", directory(upstream.root)).history == first.history
    (tmp_path / "third").mkdir()
    (tmp_path / "third/loose").touch()
    with pytest.raises(Rejected, match="holds other things"):
        build(tmp_path / "third", upstream)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_reproducible_commits_wherever_and_whoever(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    first = build(tmp_path / "fork", upstream)
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ann")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "77")
    for key, value in {"user.name": "Bob", "user.email": "b@c", "init.defaultObjectFormat": "sha256"}.items():
        git(tmp_path, "config", "--file", str(tmp_path / "gitconfig"), key, value)
    copied = shutil.copytree(upstream.root, tmp_path / "elsewhere", symlinks=True)
    os.utime(copied / "unix.txt", (1, 1))
    usual = os.umask(umask)
    link = tmp_path / "other place" / "fork"
    try:
        # Behind a link that led to another upstream before.
        build(link, directory(make(tmp_path / "up2", "2.0")), linked=True)
        again = build(link, directory(copied), linked=True)
    finally:
        os.umask(usual)
    assert again.history == first.history
    assert git(link, "log", "-1", "--format=%an %cn") == "GH200 rebase GH200 rebase"
    assert "Built by Bob <b@c> on " in git(link, "notes", "--ref=gh200", "show", again.history.tip)


def test_the_next_build_is_another_directory_and_rollback_switches_back(tmp_path: Path, upstream: Upstream) -> None:
    link = tmp_path / "fork"
    first = build(link, upstream, linked=True)
    before, old = state_of(link), link.resolve()
    second = build(link, directory(make(tmp_path / "up2", "2.0")), linked=True)
    assert link.resolve() == second.tree != old and state_of(old) == before
    assert not (link / "only-1.0").exists() and (link / "only-2.0/deep/er.txt").exists()
    assert git(link, "rev-parse", second.backup) == first.history.tip
    git(link, "checkout", "-q", first.history.pristine)
    git(link, "apply", "gh200-current.patch")
    git(link, "add", "-A")
    assert git(link, "write-tree") == git(link, "rev-parse", f"{first.history.tip}^{{tree}}")
    with pytest.raises(Rejected, match="has changes"):
        rollback(link, True)
    git(link, "checkout", "-qf", "gh200-reintegration")
    assert old.name in rollback(link, True)
    assert link.resolve() == old and state_of(link) == before
    rollback(link, True)
    assert files_of(link) == files_of(upstream.root)
    with pytest.raises(Rejected, match="Nothing to roll back"):
        rollback(link, True)


def test_a_directory_of_an_older_revision_moves_in_among_the_builds(tmp_path: Path, upstream: Upstream) -> None:
    link = tmp_path / "fork"
    build(link, upstream)
    (link / "output").mkdir()
    (link / "output/model").write_text("trained")
    before = state_of(link)
    build(link, directory(make(tmp_path / "up2", "2.0")), linked=True)
    assert link.is_symlink() and state_of(tmp_path / "forks/earlier") == before
    assert (link / "output/model").read_text() == "trained"
    rollback(link, True)
    assert state_of(link) == before


def test_a_users_files_are_in_the_next_build_and_stay_in_the_old(tmp_path: Path, upstream: Upstream) -> None:
    link = tmp_path / "fork"
    build(link, upstream, linked=True)
    old = link.resolve()
    mine = {"config/your_job.json": b"{}", "output/model/weights": b"w", "cache/x": b"c", "config/gh200.json": b"mine"}
    for name, data in mine.items():
        (link / name).parent.mkdir(parents=True, exist_ok=True)
        (link / name).write_bytes(data)
    (link / "simpletuner/__pycache__").mkdir()
    two = directory(make(tmp_path / "up2", "2.0"))
    build(link, two, [*STEPS, Step("Configs", "", {}, {"config/gh200.json": (b"{}\n", False)})], linked=True)
    assert {name: (link / name).read_bytes() for name in mine} == mine | {"config/gh200.json": b"{}\n"}
    assert {name: (old / name).read_bytes() for name in mine} == mine
    (link / "config/your_job.json").write_bytes(b"[]")
    assert (old / "config/your_job.json").read_bytes() == b"{}" and not (link / "simpletuner/__pycache__").exists()
    assert git(link, "status", "--porcelain", "-uall") == ""
    build(link, upstream, linked=True)
    assert (link / "output/model/weights").read_bytes() == b"w"


def test_changes_in_the_current_build_stop_the_next_one(tmp_path: Path, upstream: Upstream) -> None:
    link = tmp_path / "fork"
    build(link, upstream, linked=True)
    (link / TRAINER).write_text("mine")
    with pytest.raises(Rejected, match="git stash -u") as caught:
        build(link, directory(make(tmp_path / "up2", "2.0")), linked=True)
    assert TRAINER in caught.value.why and (link / TRAINER).read_text() == "mine"


def test_old_builds_are_deleted_unless_something_needs_them(tmp_path: Path, upstream: Upstream) -> None:
    link, seen = tmp_path / "fork", []
    ups = [directory(make(tmp_path / f"up{n}", f"{n}.0")) for n in range(1, 8)]
    reasons = ["locked", "job", "commit", "file", "none", "none", "none"]
    for number, (up, reason) in enumerate(zip(ups, reasons, strict=True)):
        tree = build(link, up, linked=True).tree
        os.utime(tree, (number, number))
        seen.append(tree)
        if reason == "locked":
            holder = os.open(tree / ".git/gh200/in_use", os.O_RDONLY)
            fcntl.flock(holder, fcntl.LOCK_SH)
        if reason == "job":
            (tmp_path / "forks/.jobs").mkdir()
            (tmp_path / "forks/.jobs/17").symlink_to(tree)
        if reason == "commit":
            git(tree, "commit", "-q", "--allow-empty", "-m", "mine")
        if reason == "file":
            (tree / "output").mkdir()
            (tree / "output/x").touch()
    assert [tree.exists() for tree in seen] == [True, True, True, True, False, True, True]
    os.close(holder)
    build(link, ups[0], linked=True)
    assert not seen[0].exists() and (link / "output/x").exists()


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
    built = build(place, found)
    assert built.history.pristine == found.git_commit == git(place, "rev-parse", "gh200-reintegration~2")
    assert (place / "newer.txt").exists() and not (place / "mine.txt").exists()
    assert (place / "secret.env").read_text() == "k"
    assert "GIT binary patch" in (place / "gh200-current.patch").read_text()
    assert build(place, found).already
    rollback(place, True)
    assert without_ours(state_of(place)) == before


def test_a_release_in_a_users_checkout_that_is_detached(tmp_path: Path, upstream: Upstream) -> None:
    place, found = clone(tmp_path), plain(upstream)
    git(place, "branch", "upstream")
    git(place, "checkout", "-q", "--detach")
    files = files_of(place)
    built = build(place, found)
    assert git(place, "rev-parse", "upstream") == git(place, "rev-parse", "work")
    assert git(place, "status", "--porcelain", "-uall") == "" and build(place, found).already
    rollback(place, True)
    assert files_of(place) == files and git(place, "rev-parse", "HEAD") == git(place, "rev-parse", built.backup)


def test_the_next_upstream_in_a_users_checkout(tmp_path: Path, upstream: Upstream) -> None:
    place = clone(tmp_path)
    first = build(place, plain(upstream))
    (place / CHECKLIST).write_text("- [x] looked at\n")
    git(place, "commit", "-q", "--allow-empty", "-m", "mine on the fork")
    mine = git(place, "rev-parse", "HEAD")
    second = build(place, plain(directory(make(tmp_path / "up2", "2.0"))))
    assert git(place, "rev-parse", "HEAD") == second.history.tip != first.history.tip
    assert git(place, "rev-parse", second.backup) == mine
    assert [p.read_text() for p in (place / ".git/gh200").glob(f"kept-*/{CHECKLIST}")] == ["- [x] looked at\n"]
    rollback(place, True)
    assert git(place, "rev-parse", "HEAD") == mine


def spoil_dirty(place: Path) -> str:
    (place / TRAINER).write_text("edited")
    return TRAINER


def spoil_untracked(place: Path) -> str:
    (place / "new.txt").touch()
    return "new.txt"


def spoil_staged(place: Path) -> str:
    (place / "staged.txt").write_text("only in the index")
    git(place, "add", "staged.txt")
    (place / "staged.txt").unlink()
    return "staged.txt"


def spoil_renamed(place: Path) -> str:
    git(place, "mv", "unix.txt", "renamed.txt")
    return "renamed.txt"


def spoil_merge(place: Path) -> str:
    (place / ".git/MERGE_HEAD").write_text(git(place, "rev-parse", "HEAD"))
    return "a merge is under way"


def spoil_lock(place: Path) -> str:
    (place / ".git/index.lock").touch()
    return "another git command is under way"


def spoil_flag(place: Path) -> str:
    git(place, "update-index", "--assume-unchanged", TRAINER)
    (place / TRAINER).write_text("edited")
    return f"assume-unchanged or skip-worktree is set: {TRAINER}"


def spoil_submodule(place: Path) -> str:
    git(place / "sub", "commit", "-q", "--allow-empty", "-m", "in the submodule")
    return "sub"


SPOILS = (
    spoil_dirty,
    spoil_untracked,
    spoil_staged,
    spoil_renamed,
    spoil_merge,
    spoil_lock,
    spoil_flag,
    spoil_submodule,
)


def add_submodule(place: Path) -> None:
    other = place.parent / "other repository"
    git(place, "init", "-q", "-b", "main", str(other))
    git(other, "commit", "-q", "--allow-empty", "-m", "one")
    git(place, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(place, "commit", "-qm", "a submodule")


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_users_tree_that_is_not_clean_only_gets_the_branch(tmp_path: Path, upstream: Upstream, spoil: object) -> None:
    place = clone(tmp_path)
    add_submodule(place)
    problem = spoil(place)  # type: ignore[operator]
    before, index = (files_of(place), (place / ".git/HEAD").read_text()), (place / ".git/index").read_bytes()
    built = build(place, plain(upstream))
    assert problem in "\n".join(built.problems)
    assert (files_of(place), (place / ".git/HEAD").read_text()) == before
    assert (place / ".git/index").read_bytes() == index
    assert git(place, "rev-parse", "gh200-reintegration") == built.history.tip
    assert (place / ".git/gh200" / built.backup / "MERGE_LOG.txt").exists()


def test_the_branch_is_not_moved_under_another_worktree_or_under_changes(tmp_path: Path, upstream: Upstream) -> None:
    place, two = clone(tmp_path), plain(directory(make(tmp_path / "up2", "2.0")))
    build(place, plain(upstream))
    (place / TRAINER).write_text("edited")
    with pytest.raises(Rejected, match="checked out here, and the tree has changes"):
        build(place, two)
    git(place, "checkout", "-q", "--", TRAINER)
    git(place, "checkout", "-q", "work")
    git(place, "worktree", "add", "-q", str(place.parent / "tree"), "gh200-reintegration")
    before = state_of(place)
    with pytest.raises(Rejected, match="another worktree"):
        build(place, two)
    assert state_of(place) == before


@pytest.mark.parametrize("name", ["simpletuner/gh200/__init__.py", "scripts"])
def test_ignored_files_in_the_way_are_not_overwritten(tmp_path: Path, upstream: Upstream, name: str) -> None:
    place = clone(tmp_path)
    (place / ".git/info/exclude").write_text(f"{name}\n")
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("mine")
    before = files_of(place)
    with pytest.raises(Rejected, match="in the way") as caught:
        build(place, plain(upstream))
    assert name in caught.value.why and files_of(place) == before


def other_project(place: Path) -> None:
    git(place, "rm", "-q", TRAINER)
    git(place, "commit", "-qm", "no")


def no_git(place: Path) -> None:
    shutil.rmtree(place / ".git")


def empty_git(place: Path) -> None:
    shutil.rmtree(place / ".git")
    git(place, "init", "-q")


@pytest.mark.parametrize(
    ("spoil", "what"),
    [(other_project, "not a checkout of SimpleTuner"), (no_git, "not a git checkout"), (empty_git, "no commit yet")],
)
def test_what_is_rejected_stays_as_it_is(tmp_path: Path, upstream: Upstream, spoil: object, what: str) -> None:
    place = clone(tmp_path)
    spoil(place)  # type: ignore[operator]
    before = files_of(place)
    with pytest.raises(Rejected) as caught:
        build(place, upstream)
    assert what in str(caught.value) and caught.value.fix and files_of(place) == before


def test_no_git(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Rejected, match="git was not found"):
        build(tmp_path / "fork", upstream)


@pytest.mark.parametrize("path", ["../x", "/x", ".git/hooks/post-checkout", "a/../../b"])
def test_a_step_cannot_write_outside(tmp_path: Path, upstream: Upstream, path: str) -> None:
    with pytest.raises(Rejected, match="not safe"):
        build(tmp_path / "fork", upstream, [Step("s", "", {}, {path: (b"", False)})])
    assert not (tmp_path / "fork").exists()


def test_the_fork_is_not_written_into_upstream(tmp_path: Path, upstream: Upstream) -> None:
    with pytest.raises(Rejected, match="its own upstream"):
        build(upstream.root / "fork", upstream)


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
    build(place, upstream)
    assert not (tmp_path / "hook-ran").exists()
    rollback(place, True)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name)
    assert sorted(p.name for p in bystander.iterdir()) == [".git"]


def test_rollback_rejects_changes_and_keeps_commits(tmp_path: Path, upstream: Upstream) -> None:
    place = clone(tmp_path)
    before = state_of(place)
    build(place, plain(upstream))
    (place / "later.txt").write_text("l")
    with pytest.raises(Rejected) as caught:
        rollback(place, True)
    assert "later.txt" in caught.value.what and "git stash -u" in caught.value.fix
    git(place, "add", "-A")
    git(place, "commit", "-qm", "later")
    later = git(place, "rev-parse", "HEAD")
    rollback(place, True)
    assert git(place, "rev-parse", "gh200-reintegration") == later and without_ours(state_of(place)) == before


def test_the_script_alone_asks_and_rolls_back(tmp_path: Path, upstream: Upstream) -> None:
    place = clone(tmp_path)
    before = state_of(place)
    build(place, plain(upstream))
    after = state_of(place)

    def script(answer: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([place / "ROLLBACK.sh"], input=answer, text=True, capture_output=True, cwd=tmp_path)

    for answer in ("", "n\n", "\n"):
        assert script(answer).returncode == 4 and state_of(place) == after
    done = script("y\n")
    assert done.returncode == 0, done.stderr
    assert without_ours(state_of(place)) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("leave", [0, 200_000, 700_000, 900_000, 5_000_000])
def test_a_full_disk(upstream: Upstream, small_disk: Path, leave: int) -> None:
    upstream, place = plain(upstream), clone(small_disk)
    before = state_of(place)
    steps = [*STEPS, Step("Large", "", {}, {"large": (random.Random(1).randbytes(400_000), False)})]
    (small_disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - leave)))
    rejections = []
    for into, linked in ((small_disk / "fork", True), (place, False)):
        try:
            build(into, upstream, steps, linked=linked)
        except Rejected as error:
            rejections.append(error)
    assert bool(rejections) == (leave < 2_000_000), rejections
    assert all("free some space" in error.fix for error in rejections), rejections
    (small_disk / "filler").unlink()
    if len(rejections) == 2:
        assert files_of(place) == before[0] and not (small_disk / "fork").exists()
        assert [p.name for p in (small_disk / "forks").glob("*")] == []


def test_a_running_child_keeps_the_lock(tmp_path: Path) -> None:
    with durable.lock(tmp_path, "at work"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    with pytest.raises(Rejected, match="Another run is at work"), durable.lock(tmp_path, "at work", patience=0.1):
        pass
    child.kill()
    child.wait()
    with durable.lock(tmp_path, "at work", patience=0.1):
        pass


def test_built_without_steps(tmp_path: Path, upstream: Upstream) -> None:
    history = build(tmp_path / "fork", upstream, []).history
    assert history.tip == history.pristine and checkout.unclean(tmp_path / "fork") == []
