"""The rules for marks that tests/conftest.py enforces at collection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gh200_lab.place import ROOT


@pytest.mark.parametrize(
    ("mark", "code"),
    [("slow", 4), ("slow()", 4), ('slow(reason=" ")', 4), ('slow(reason="two trainings")', 0)],
)
def test_a_slow_mark_without_a_reason_fails_collection(tmp_path: Path, mark: str, code: int) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-c", str(ROOT / "pyproject.toml")]
    asked = [*command, "--rootdir", str(ROOT), "-p", "tests.conftest", str(test)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("::test_it" in done.stderr) == (code != 0)
