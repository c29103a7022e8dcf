"""The same release and patches give the same bytes anywhere, and `verify` says whether something is them."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from rebase_lab import Lab, make_lab

from gh200_rebase import REVISION
from gh200_rebase.delivery import verify, wheel
from gh200_rebase.errors import Rejected
from gh200_rebase.patches.lockfile import Lock

TRAINER = "simpletuner/helpers/training/trainer.py"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


def test_reproducible_fork_in_two_directories(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two" / "deeper").mkdir(parents=True)
    first, second = make_lab(tmp_path / "one"), make_lab(tmp_path / "two" / "deeper")
    first.run("--skip-tests", "--upstream", first.upstream("v1"))
    usual = os.umask(0o077)
    try:
        identity = {"GIT_AUTHOR_NAME": "Bo", "GIT_COMMITTER_EMAIL": "b@c", "GIT_COMMITTER_NAME": "Bo"}
        second.run("--skip-tests", "--upstream", second.upstream("v1"), TZ="Asia/Tokyo", LC_ALL="C", **identity)
    finally:
        os.umask(usual)
    assert first.git("rev-list", "HEAD") == second.git("rev-list", "HEAD")
    assert "Built by Bo <b@c>" in second.git("notes", "--ref=gh200", "show")


def built(directory: Path, names: list[str], date: tuple[int, ...], mode: int) -> Path:
    directory.mkdir()
    path = directory / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=mode % 9) as archive:
        for name in names:
            info = zipfile.ZipInfo(name, date)  # type: ignore[arg-type]
            info.external_attr = (0o100000 | mode | (0o111 if name == "run" else 0)) << 16
            archive.writestr(info, name * 9)
    return path


def test_reproducible_wheel_whatever_the_backend_did(tmp_path: Path) -> None:
    one = built(tmp_path / "a", ["x/b", "x/a", "run", "x.dist-info/RECORD"], (2026, 1, 2, 3, 4, 6), 0o644)
    other = built(tmp_path / "b", ["x.dist-info/RECORD", "run", "x/a", "x/b"], (1999, 1, 2, 3, 4, 6), 0o600)
    for path in (one, other):
        wheel._repack(path, path.with_suffix(".new"), 1_700_000_000)
    assert one.with_suffix(".new").read_bytes() == other.with_suffix(".new").read_bytes()
    with zipfile.ZipFile(one.with_suffix(".new")) as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == ["run", "x/a", "x/b", "x.dist-info/RECORD"]
    assert {info.external_attr >> 16 for info in infos} == {0o100644, 0o100755}
    assert infos[0].date_time == (2023, 11, 14, 22, 13, 20)


def test_reproducible_environment_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIMPLETUNER_PLATFORM", "ROCM_PATH", "PYTHONPATH", "LC_TIME", "LANG"):
        monkeypatch.setenv(name, "odd")
    assert "odd" not in wheel._backend_environment(1).values()


def spoiled_by_an_edit(fork: Path) -> str:
    (fork / TRAINER).write_text("mine = 1\n")
    return f"{TRAINER}: differs"


def spoiled_by_a_file(fork: Path) -> str:
    (fork / "simpletuner/more.py").write_text("mine = 1\n")
    return "simpletuner/more.py: is not the fork's"


def spoiled_by_a_deletion(fork: Path) -> str:
    (fork / TRAINER).unlink()
    return f"{TRAINER}: is missing"


def spoiled_in_secret(fork: Path) -> str:
    os.system(f"git -C '{fork}' update-index --assume-unchanged {TRAINER}")
    return spoiled_by_an_edit(fork)


def spoiled_by_a_mode(fork: Path) -> str:
    (fork / TRAINER).chmod(0o755)
    return f"{TRAINER}: differs"


def spoiled_by_a_commit(fork: Path) -> str:
    os.system(f"git -C '{fork}' -c user.name=a -c user.email=b@c commit -q --allow-empty -m mine")
    return "gh200-reintegration is "


@pytest.mark.parametrize(
    "spoil",
    [
        spoiled_by_an_edit,
        spoiled_by_a_file,
        spoiled_by_a_deletion,
        spoiled_in_secret,
        spoiled_by_a_mode,
        spoiled_by_a_commit,
    ],
)
def test_reproducible_tree_is_verified(lab: Lab, spoil: object) -> None:
    arguments = ("verify", str(lab.fork), "--upstream", lab.upstream("v1"))
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    assert "verified: " in lab.run(*arguments)
    says = spoil(lab.fork)  # type: ignore[operator]
    assert says in lab.run(*arguments, code=1)
    assert sorted(path.name for path in (lab.root / "build").glob(".*")) == []


def test_reproducible_claims(lab: Lab, tmp_path: Path) -> None:
    lab.run("--skip-tests", "--upstream", lab.upstream("v1"))
    assert "only a release has a known hash" in lab.run("verify", str(lab.fork), code=4)
    assert "nothing at" in lab.run("verify", str(tmp_path / "gone"), code=4)
    copied = tmp_path / "copied"
    shutil.copytree(lab.fork, copied, ignore=shutil.ignore_patterns(".git"))
    assert "verified: " in lab.run("verify", str(copied), "--upstream", lab.upstream("v1"))
    for name, says in (
        ("other-1.0-py3-none-any.whl", "not a wheel of the fork"),
        (f"simpletuner-1.0.0+gh200.{REVISION + 1}-py3-none-any.whl", "revision"),
    ):
        (tmp_path / name).write_bytes(b"")
        assert says in lab.run("verify", str(tmp_path / name), code=4)


def test_reproducible_wheels_differ_by_name(tmp_path: Path) -> None:
    one = built(tmp_path / "a", ["x/a", "x/b"], (2026, 1, 2, 3, 4, 6), 0o644)
    other = built(tmp_path / "b", ["x/a", "x/c"], (2026, 1, 2, 3, 4, 6), 0o644)
    assert verify.wheel_differences(one, one) == []
    assert verify.wheel_differences(one, other) == ["x/b: is not the fork's", "x/c: is missing"]
    third = built(tmp_path / "c", ["x/b", "x/a"], (2026, 1, 2, 3, 4, 6), 0o644)
    assert verify.wheel_differences(one, third) == ["the same files with the same bytes, packed differently"]
    one.write_bytes(b"PK")
    assert "cannot be read" in verify.wheel_differences(one, other)[0]


def test_an_archive_the_lock_does_not_know_is_rejected(tmp_path: Path) -> None:
    archive = tmp_path / "simpletuner-1.0.0.tar.gz"
    archive.write_bytes(b"bytes")
    good = hashlib.sha256(b"bytes").hexdigest()
    assert verify.require_known_archive(Lock({"1.0.0": good}), "1.0.0", archive) == good
    for releases in ({}, {"1.0.0": "0" * 64}):
        with pytest.raises(Rejected, match="not the one the lock has verified"):
            verify.require_known_archive(Lock(releases), "1.0.0", archive)
