"""The shell functions all scripts share: which Python, which uv, and what is checked before anything is written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from setup_lab import BASE_PYTHON, REQUIREMENTS, bash, program


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the usual tools and neither Python nor uv."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ["bash", "cat", "cp", "cut", "dirname", "grep", "mkdir", "mktemp", "mv", "rm", "sort"]:
        (tools / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is missing"))
    return tools


def find_python(path: str, home: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    nothing = str(home / "nothing")
    isolated = {"PATH": path, "HOME": str(home), "PYENV_ROOT": nothing, "UV_CACHE_DIR": nothing, "GH200_PYTHON": ""}
    return bash('gh200_home() { echo "$HOME"; }; gh200_find_python', **(isolated | extra))


def test_finds_a_python_behind_a_failing_shim(bare_path: Path, tmp_path: Path) -> None:
    shim = program(
        tmp_path / "shims/python3.13", "#!/bin/bash\necho 'pyenv: python3.13: command not found' >&2; exit 127\n"
    )
    old = program(tmp_path / "shims/python3.12", "#!/bin/bash\necho cpython 3.11.7\n")
    good = tmp_path / "good/python3"
    good.parent.mkdir()
    good.symlink_to(BASE_PYTHON)
    found = find_python(f"{shim.parent}:{bare_path}:{good.parent}", tmp_path)
    assert (found.returncode, found.stdout.strip()) == (0, str(good)), found.stderr
    found = find_python(f"{old.parent}:{bare_path}", tmp_path, PYENV_ROOT=str(fake_pyenv(tmp_path)))
    assert found.stdout.strip().endswith("/versions/3.13.9/bin/python")


def fake_pyenv(tmp_path: Path) -> Path:
    python = tmp_path / "pyenv/versions/3.13.9/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(BASE_PYTHON)
    return tmp_path / "pyenv"


def test_says_what_it_tried_when_there_is_no_python(bare_path: Path, tmp_path: Path) -> None:
    program(bare_path / "python3.13", "#!/bin/bash\nexit 127\n")
    program(bare_path / "python3.12", "#!/bin/bash\necho cpython 3.12.4t\n")
    found = find_python(str(bare_path), tmp_path)
    assert found.returncode == 4 and not found.stdout
    assert "no Python 3.12 or 3.13 found" in found.stderr
    assert "python3.13: it does not run" in found.stderr and "python3.12: it is cpython 3.12.4t" in found.stderr
    assert "uv python install 3.13" in found.stderr


def test_an_explicit_choice_is_never_replaced(tmp_path: Path) -> None:
    wrong = program(tmp_path / "python", "#!/bin/bash\necho cpython 3.11.7\n")
    found = bash("gh200_find_python", GH200_PYTHON=str(wrong))
    assert found.returncode == 4 and "it is cpython 3.11.7" in found.stderr


def test_an_old_or_broken_uv_is_passed_over(tmp_path: Path) -> None:
    verdicts = {"uv 0.2.9": 1, "uv 0.13.7 (somewhere)": 0, "uv 1.0.0": 0}
    for version, verdict in verdicts.items():
        assert (
            bash('gh200_uv_works "$1"', str(program(tmp_path / "uv", f"#!/bin/bash\necho '{version}'\n"))).returncode
            == verdict
        )
    assert bash('gh200_uv_works "$1"', str(tmp_path / "missing")).returncode == 1


def test_glibc_is_checked_against_the_locked_wheels() -> None:
    table = str(REQUIREMENTS / "glibc.txt")
    check = 'gh200_check_glibc "$@"'
    assert bash(check, table, "x86_64", "2.36").returncode == 0
    assert bash(check, table, "aarch64", "2.41").returncode == 0
    old = bash(check, table, "aarch64", "2.35")
    assert old.returncode == 4
    assert "trainingsample needs glibc 2.38 on aarch64" in old.stderr and "torch needs" not in old.stderr
    assert "Ubuntu 24.04" in old.stderr
    assert "musl" in bash(check, table, "x86_64", "").stderr


def test_disk_space_is_checked() -> None:
    assert bash('gh200_check_disk / 0 "nothing"').returncode == 0
    full = bash('gh200_check_disk / 99999999 ".venv"')
    assert full.returncode == 4 and "99999999 GB are needed" in full.stderr
