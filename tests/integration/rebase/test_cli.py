"""The commands of the rebase tool, run as an operator runs them, on the invented upstream."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab, snapshot


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_dry_run_writes_nothing_and_lists_every_edit(lab: Lab) -> None:
    upstream = lab.upstream("v1")
    before = snapshot(lab.root)
    output = lab.run("--dry-run", "--upstream", upstream)
    assert "01/base" in output and "applied" in output
    ours = ("__pycache__", "build/assessed/")
    after = {path: data for path, data in snapshot(lab.root).items() if not any(part in path for part in ours)}
    assert after == before


def test_an_assessment_is_made_once_for_the_same_patches_lock_and_upstream(lab: Lab) -> None:
    upstream = lab.upstream("v1")
    kept = lab.root / "build/assessed"
    first = lab.run("check", "--upstream", upstream)
    (made,) = kept.iterdir()
    stamp = made.stat().st_mtime_ns
    assert lab.run("check", "--upstream", upstream) == first and [*kept.iterdir()] == [made]
    assert made.stat().st_mtime_ns == stamp
    made.write_bytes(b"not a pickle")
    assert lab.run("check", "--upstream", upstream) == first
    (lab.root / "patches/lock.json").unlink()
    assert "not in the lock yet" in lab.run("check", "--upstream", upstream, code=2)


def test_apply_gives_pristine_import_and_one_commit_per_patch(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    patches = lab.git("log", "--reverse", "--format=%(trailers:key=Gh200-Patch,valueonly)").split()
    assert patches == ["06-overlay", "01-loop", "02-readers", "07-notes"]
    first = lab.git("rev-list", "--max-parents=0", "HEAD")
    for path in (FAKE / "v1").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(FAKE / "v1").as_posix()
            stored = subprocess.run(["git", "-C", lab.fork, "show", f"{first}:{name}"], capture_output=True, check=True)
            assert stored.stdout == path.read_bytes()
    assert "Backup branch: gh200-backup-" in (lab.fork / "MERGE_LOG.txt").read_text()
    assert "[x]" in (lab.fork / "GH200_REBASE_CHECKLIST.md").read_text()
    assert lab.git("status", "--porcelain") == ""


def test_quiet_apply_shows_only_edits_with_something_to_say(lab: Lab) -> None:
    """What is not as last reviewed is always printed; a plain edit only when asked for."""
    output = lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    assert "01/base" not in output and "edits  " in output and len(output.splitlines()) < 15
    drifted = lab.run("--skip-tests", "--upstream", lab.upstream("v2"), code=2)
    printed = [line for line in drifted.splitlines() if line[:3] in ("01/", "02/")]
    assert printed and not any(line.endswith("  applied") for line in printed)
    assert "01/base" in lab.run("--skip-tests", "--verbose", "--accept-drift", "--upstream", lab.upstream("v2"))


def test_second_run_says_already_there_and_changes_nothing(lab: Lab) -> None:
    upstream = lab.upstream("v1")
    lab.run("--skip-tests", "--upstream", upstream)
    before, branches = snapshot(lab.fork), lab.git("for-each-ref")
    assert "already there" in lab.run("--skip-tests", "--upstream", upstream)
    assert (snapshot(lab.fork), lab.git("for-each-ref")) == (before, branches)


def test_rollback_gives_the_very_bytes_back(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    lab.run("--rollback", "--yes")
    pristine = {path: data for path, data in snapshot(FAKE / "v1").items() if "__pycache__" not in path}
    assert {path: data for path, (data, _) in snapshot(lab.fork).items()} == {p: d for p, (d, _) in pristine.items()}
    assert lab.git("status", "--porcelain") == ""


def test_drift_is_exit_2_until_accepted(lab: Lab) -> None:
    upstream = lab.upstream("v2")
    output = lab.run("--skip-tests", "--upstream", upstream, code=2)
    assert "not as last reviewed" in output and "--accept-drift" in output
    assert not lab.fork.exists()
    lab.run("--skip-tests", "--accept-drift", "--upstream", upstream)
    assert lab.git("log", "-1", "--format=%(trailers:key=Gh200-Upstream,valueonly)").startswith("path 2.0.0")


def test_rebasing_an_existing_fork_keeps_the_old_one_on_the_backup_branch(lab: Lab) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    old = lab.git("rev-parse", "HEAD")
    before = snapshot(lab.fork)
    lab.run("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"))
    backup = next(line for line in (lab.fork / "MERGE_LOG.txt").read_text().splitlines() if line.startswith("Backup"))
    assert lab.git("rev-parse", backup.partition(": ")[2]) == old
    assert b"diff --git" in (lab.fork / "gh200-current.patch").read_bytes()
    lab.run("--rollback", "--yes")
    assert lab.git("rev-parse", "HEAD") == old
    assert snapshot(lab.fork) == before


def test_missing_anchor_is_exit_1_with_every_failure_and_nothing_written(lab: Lab) -> None:
    upstream = Path(lab.upstream("v1").removeprefix("path:"))
    trainer = upstream / "simpletuner/helpers/training/trainer.py"
    trainer.write_text(trainer.read_text().replace("class Loop", "class Cycle"))
    output = lab.run("--skip-tests", "--upstream", f"path:{upstream}", code=1)
    assert "01/base" in output and "01/begin" in output and "Cycle" in output
    assert not lab.fork.exists()
    assert "FAILED" in lab.run("check", "--upstream", f"path:{upstream}", code=1)


def test_an_already_patched_tree_is_rejected(lab: Lab, tmp_path: Path) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    patched = tmp_path / "patched"
    shutil.copytree(lab.fork, patched, ignore=shutil.ignore_patterns(".git"))
    assert "already the fork" in lab.run("check", "--upstream", f"path:{patched}", code=4)


def test_a_half_patched_tree_is_rejected(lab: Lab, tmp_path: Path) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    half = tmp_path / "half"
    shutil.copytree(FAKE / "v1", half, ignore=shutil.ignore_patterns("__pycache__"))
    name = "simpletuner/helpers/training/trainer.py"
    shutil.copyfile(lab.fork / name, half / name)
    assert "half patched" in lab.run("--skip-tests", "--upstream", f"path:{half}", code=4)


def test_the_fork_rebases_itself(lab: Lab) -> None:
    """The tree carries the tool, the patches and the overlay: it works like the repository."""
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    for name in ("gh200_rebase", "patches"):
        shutil.copytree(lab.root / name, lab.fork / name, dirs_exist_ok=True)
    shutil.copy(lab.root / "NOTES.md", lab.fork)
    assert "0 failed" in Lab(lab.fork).run("check", "--upstream", lab.upstream("v1"))


def test_dirty_tree_is_rejected_and_left_alone(lab: Lab) -> None:
    upstream = lab.upstream("v1")
    lab.run("--skip-tests", "--upstream", upstream)
    note = lab.fork / "simpletuner" / "mine.py"
    note.write_text("mine = 1\n")
    before = snapshot(lab.fork)
    output = lab.run("--skip-tests", "--accept-drift", "--upstream", lab.upstream("v2"), code=4)
    assert "mine.py" in output and "git stash" in output
    assert snapshot(lab.fork) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--upstream", "pypi:abc"], "not a version"),
        (["--upstream", "svn:trunk"], "unknown kind"),
        (["--upstream", "path:nowhere"], "no directory"),
        (["explain", "99"], "no patch"),
        (["export"], "--into"),
        (["export", "--into", "docs"], "never stored"),
        (["frobnicate"], "invalid choice"),
        (["--frobnicate"], "unrecognized"),
        (["wheel"], "no fork"),
        (["--rollback", "--yes"], "no fork"),
        (["--resume"], "no fork"),
    ],
)
def test_bad_input_is_exit_4_with_a_fix(lab: Lab, arguments: list[str], words: str) -> None:
    output = lab.run(*arguments, code=4)
    assert words in output and "fix:" in output


def test_not_a_simpletuner_tree(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert "SimpleTuner" in lab.run("check", "--upstream", f"path:{tmp_path / 'other'}", code=4)


def test_missing_git(lab: Lab) -> None:
    output = lab.run("--skip-tests", "--upstream", lab.upstream("v1"), code=4, PATH="/nonexistent")
    assert "git" in output and "fix:" in output


def test_unknown_key_in_a_patch_names_the_right_one(lab: Lab) -> None:
    patch = lab.root / "patches" / "01-loop.toml"
    patch.write_text(patch.read_text().replace('verb = "base"', 'verp = "base"'))
    output = lab.run("check", "--upstream", lab.upstream("v1"), code=4)
    assert "verp" in output and "verb" in output


def test_a_broken_lock_says_how_to_restore_it(lab: Lab) -> None:
    (lab.root / "patches" / "lock.json").write_text("{")
    assert "git checkout" in lab.run("check", "--upstream", lab.upstream("v1"), code=4)


def test_default_upstream_without_a_verified_release(lab: Lab) -> None:
    (lab.root / "patches" / "lock.json").unlink()
    assert "verified no release" in lab.run("check", code=4)


def test_json_holds_the_same_facts(lab: Lab, tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    lab.run("check", "--upstream", lab.upstream("v1"), "--json", str(target))
    data = json.loads(target.read_text())
    assert data["exit_code"] == 0 and data["version"] == "1.0.0"
    assert {edit["status"] for edit in data["edits"]} <= {"applied", "skipped"}
    lab.run("check", "--upstream", "path:nowhere", "--json", str(target), code=4)
    assert json.loads(target.read_text())["exit_code"] == 4


def test_explain_shows_the_inserted_line_in_its_surroundings(lab: Lab) -> None:
    output = lab.run("explain", "01", "--upstream", lab.upstream("v1"))
    assert "+        self.gh200_begin" in output.replace("    +", "+") or "self.gh200_begin" in output
    assert "the pair is complete" in output


def test_export_round_trip(lab: Lab, tmp_path: Path) -> None:
    """The diffs, applied in commit order by git, give exactly the fork's edited files."""
    lab.run("export", "--upstream", lab.upstream("v1"), "--into", str(tmp_path / "diffs"))
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    tree = tmp_path / "tree"
    shutil.copytree(FAKE / "v1", tree, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "-q", tree], check=True)
    for diff in sorted((tmp_path / "diffs").glob("*.diff")):
        subprocess.run(["git", "-C", tree, "apply", "--whitespace=nowarn", str(diff)], check=True)
    name = "simpletuner/helpers/training/trainer.py"
    assert (tree / name).read_bytes() == (lab.fork / name).read_bytes()


def test_overlay_never_replaces_an_upstream_file(lab: Lab) -> None:
    upstream = Path(lab.upstream("v1").removeprefix("path:"))
    (upstream / "simpletuner/gh200").mkdir()
    (upstream / "simpletuner/gh200/hooks.py").write_text("taken = True\n")
    assert "overlay would replace it" in lab.run("check", "--upstream", f"path:{upstream}", code=1)


def test_upstream_code_is_never_executed(lab: Lab, tmp_path: Path) -> None:
    upstream = Path(lab.upstream("v1").removeprefix("path:"))
    trap = tmp_path / "executed"
    for path in upstream.rglob("*.py"):
        path.write_text(path.read_text() + f"\nopen({str(trap)!r}, 'w').close()\n")
    lab.run("--skip-tests", "--accept-drift", "--upstream", f"path:{upstream}")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [("exit 0", 0, "validated: all 3 passed"), ("exit 7", 3, "its validation failed")],
)
def test_validation_is_run_believed_and_kept_in_the_checklist(lab: Lab, outcome: str, code: int, said: str) -> None:
    pytest.importorskip("torch")
    (lab.root / "scripts").mkdir(exist_ok=True)
    (lab.root / "scripts/test_gh200_features.sh").write_text(f"echo trying it\n{outcome}\n")
    output = lab.run("--upstream", lab.upstream("v1"), code=code)
    assert "  trying it" in output and said in output
    page = (lab.fork / "GH200_REBASE_CHECKLIST.md").read_text()
    assert f"[{' ' if code else 'x'}] `scripts/test_gh200_features.sh`" in page
