"""Every commit of an upstream: what broke and moved, with which commit; kept per content, and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab

from gh200_rebase.errors import Refused
from gh200_rebase.upstream.history import CommitTree, Objects

TRAINER = "simpletuner/helpers/training/trainer.py"
LOCAL = "simpletuner/helpers/data_backend/local.py"


def git(repo: Path, *arguments: str, **env: str) -> str:
    command = ["git", "-C", str(repo), "-c", "user.name=Ann", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **env}).stdout.strip()


def commit(repo: Path, subject: str, **files: str) -> str:
    for name, text in files.items():
        (repo / name).write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "--allow-empty", "-m", subject)
    return git(repo, "rev-parse", "HEAD")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """v1, a note, a side branch merged, a neighbour moved, the anchor broken, and mended again."""
    place = tmp_path / "up"
    shutil.copytree(FAKE / "v1", place)
    git(tmp_path, "init", "-q", "-b", "main", str(place))
    commit(place, "one")
    git(place, "tag", "v1.0.0")
    commit(place, "a note", NOTES="n")
    git(place, "checkout", "-q", "-b", "side")
    commit(place, "beside", NOTES="m")
    git(place, "checkout", "-q", "main")
    git(place, "merge", "-q", "--no-ff", "-m", "merge side", "side")
    text = (place / TRAINER).read_text()
    commit(place, "a neighbour", **{TRAINER: text.replace("if pair is None:", "if pair is None or not pair:")})
    commit(place, "the break", **{TRAINER: text.replace("self.fetch(number)  #", "self.get(number)  #")})
    commit(place, "the mend", **{TRAINER: text})
    return place


def test_matrix_of_every_commit_names_the_one_that_broke(lab: Lab, repo: Path, tmp_path: Path) -> None:
    said = tmp_path / "said.json"
    output = lab.run("matrix", "--git", str(repo), "--from", "v1.0.0", "--first-parent", "--json", str(said), code=1)
    found = json.loads(said.read_text())
    assert [row["subject"] for row in found["commits"]] == [
        "one",
        "a note",
        "merge side",
        "a neighbour",
        "the break",
        "the mend",
    ]
    assert [bool(row["failures"]) for row in found["commits"]] == [False] * 4 + [True, False]
    broken = next(move for move in found["moves"] if move["level"] == "failed")
    assert (broken["edit"], broken["author"], broken["subject"]) == ("01/begin", "Ann", "the break")
    assert f"FAILED {broken['commit'][:12]} {broken['date']} Ann: the break" in output
    assert {move["level"] for move in found["moves"] if move["subject"] == "a neighbour"} == {"warning", "info"}
    assert len((lab.root / "build/matrix/commits.csv").read_text().splitlines()) == 7
    whole = lab.run("matrix", "--git", str(repo), "--from", "1.0.0", code=1)
    assert "7 commits" in whole


def test_the_verdict_of_a_commit_is_that_of_the_release(lab: Lab, repo: Path, tmp_path: Path) -> None:
    """Pieces kept per content add up to what one assessment of the whole tree says."""
    said = [tmp_path / "whole.json", tmp_path / "pieces.json"]
    lab.run("check", "--upstream", f"git:{repo}@v1.0.0", "--json", str(said[0]))
    lab.run("matrix", "--git", str(repo), "--from", "v1.0.0", "--to", "v1.0.0", "--json", str(said[1]))
    whole, pieces = (json.loads(path.read_text()) for path in said)
    (row,) = pieces["commits"]
    assert row["proofs"] == [whole["proofs"]["passed"], whole["proofs"]["total"]]
    assert row["interfaces"] == [whole["interfaces"]["passed"], whole["interfaces"]["total"]]


def test_findings_are_kept_per_content_and_forgotten_when_ours_change(lab: Lab, repo: Path) -> None:
    arguments = ("matrix", "--git", str(repo), "--from", "v1.0.0", "--first-parent")
    first = lab.run(*arguments, code=1)
    again = lab.run(*arguments, code=1)
    assert "finding" in first and "finding" not in again.replace("findings", "")
    hooks = lab.root / "simpletuner/gh200/hooks.py"
    hooks.write_text(hooks.read_text() + "\n\nfrom simpletuner.helpers.training.trainer import Nothing\n")
    assert "Nothing" in lab.run(*arguments, code=1)
    database = lab.root / "build/matrix/findings.sqlite"
    database.write_bytes(b"not a database at all, but as long as the header of one " * 40)
    for extra in database.parent.glob("findings.sqlite-*"):
        extra.unlink()
    assert "Nothing" in lab.run(*arguments, code=1)


def test_a_stopped_matrix_goes_on_where_it_was(lab: Lab, repo: Path) -> None:
    command = [sys.executable, str(lab.root / "gh200_rebase"), "matrix", "--git", str(repo), "--from", "v1.0.0"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    database = lab.root / "build/matrix/findings.sqlite-wal"
    deadline = time.monotonic() + 60
    while run.poll() is None and not (database.exists() and database.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(signal.SIGTERM)
    _, said = run.communicate(timeout=120)
    assert run.returncode in (1, 4) and "Traceback" not in said, said
    assert run.returncode == 1 or "goes on from there" in said
    lab.run("matrix", "--git", str(repo), "--from", "v1.0.0", code=1)


def test_blame_names_commit_author_date_and_subject(lab: Lab, repo: Path) -> None:
    output = lab.run("blame", "begin", "--git", str(repo), "--from", "v1.0.0", "--first-parent")
    assert "the break" in output and "Ann" in output and "a neighbour" in output and "merge side" not in output
    git(repo, "reset", "-q", "--hard", "HEAD~1")
    broken = lab.run("blame", "01/begin", "--git", str(repo), "--from", "v1.0.0", code=1)
    assert "BROKEN since" in broken and "the break" in broken
    assert "its place is the same in every release" in lab.run("blame", "01/gate")
    assert "use one of" in lab.run("blame", "nothing", code=4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--git", "nowhere"], "no git repository"),
        (["--git", "{repo}", "--from", "v9"], "no commit 'v9'"),
        (["--git", "{repo}", "--from", "main", "--to", "v1.0.0"], "does not come after"),
    ],
)
def test_a_history_that_is_not_there(lab: Lab, repo: Path, arguments: list[str], words: str) -> None:
    assert words in lab.run("matrix", *(word.replace("{repo}", str(repo)) for word in arguments), code=4)


def test_a_bare_mirror_that_nobody_may_write(lab: Lab, repo: Path, tmp_path: Path) -> None:
    mirror = tmp_path / "mirror.git"
    git(tmp_path, "clone", "-q", "--bare", str(repo), str(mirror))
    config = tmp_path / "gitconfig"
    config.write_text("[safe]\n\tbareRepository = explicit\n")
    before = sorted(path.relative_to(mirror) for path in mirror.rglob("*"))
    arguments = ("matrix", "--git", str(mirror), "--from", "v1.0.0", "--to", "v1.0.0")
    lab.run(*arguments, GIT_CONFIG_GLOBAL=str(config))
    assert sorted(path.relative_to(mirror) for path in mirror.rglob("*")) == before


def test_a_history_with_holes_says_so(repo: Path) -> None:
    with Objects(repo) as objects, pytest.raises(Refused, match="no object"):
        objects.folder("0" * 40)


def test_a_commits_tree_is_what_git_lists(repo: Path) -> None:
    (repo / "link ü").symlink_to("NOTES")
    head = commit(repo, "a link")
    with Objects(repo) as objects:
        tree = CommitTree(objects, head)
        assert tree.paths() == sorted(
            git(repo, "-c", "core.quotePath=off", "ls-tree", "-r", "--name-only", head).split("\n")
        )
        assert tree.mark(TRAINER) == git(repo, "rev-parse", f"{head}:{TRAINER}") and tree.read("link ü") == b"NOTES"
        assert tree.has_folder("simpletuner/helpers") and not tree.has_folder("") and not tree.has_folder(TRAINER)
        for nothing in ("", "nowhere", f"{TRAINER}/below", "simpletuner//helpers"):
            assert tree.read(nothing) is None, nothing
