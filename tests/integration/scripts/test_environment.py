"""The locks are what they promise: pinned, hashed, for both machines and both Pythons, wheels only."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from setup_lab import BASE_PYTHON, REQUIREMENTS, ROOT, find_uv

import gh200_rebase

LOCKS = ("fork", "tool", "installer", "backend")
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.12", "3.13")


def stanzas(text: str) -> dict[str, str]:
    """Package name -> its lines, of a lock."""
    blocks = re.findall(r"^[a-z0-9].*\n(?:    --hash.*\n)+", text, re.MULTILINE)
    return {block.split("==")[0]: block for block in blocks}


def words(name: str) -> list[list[str]]:
    """The lines of a file in requirements/, without comments."""
    lines = (line.split("#")[0].split() for line in (REQUIREMENTS / name).read_text().splitlines())
    return [line for line in lines if line]


@pytest.fixture(scope="module")
def uv() -> str:
    return find_uv()


@pytest.mark.parametrize("name", [path.name for path in sorted(REQUIREMENTS.iterdir())])
def test_no_file_names_a_host_or_a_path_of_a_machine(name: str) -> None:
    # A package's own name, however much it looks like a host's.
    text = (REQUIREMENTS / name).read_text().replace('"package": "htmx.org"', "")
    assert not re.search(r"https?:|file:|index-url|find-links|\.(org|com|net)\b|(^|\s)/\w", text)


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_is_pinned_and_hashed(name: str) -> None:
    text = (REQUIREMENTS / f"{name}.lock").read_text()
    pins = re.findall(r"^([^#\s].*)$", text, re.MULTILINE)
    assert len(pins) == len(stanzas(text)) > 0
    for pin in pins:
        requirement = Requirement(pin.removesuffix("\\").strip())
        assert [part.operator for part in requirement.specifier] == ["=="], pin


def test_the_environment_never_holds_upstream_nor_what_the_overrides_drop() -> None:
    locked = stanzas((REQUIREMENTS / "fork.lock").read_text()).keys()
    dropped = {line[0] for line in words("overrides.txt")}
    assert dropped == {"praat-parselmouth", "sphn"}
    assert not locked & (dropped | {"simpletuner"})


def test_project_file_agrees_with_the_locks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = project["project"]["dependencies"] + project["dependency-groups"]["test"]
    missing = {Requirement(name).name for name in named} - stanzas((REQUIREMENTS / "fork.lock").read_text()).keys()
    assert not missing
    # One place says which revision this is; the newest entry of the changelog is about it.
    assert project["project"]["dynamic"] == ["version"] and "version" not in project["project"]
    newest = re.search(r"^## (\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and int(newest[1]) == gh200_rebase.REVISION
    assert project["project"]["license"] == "AGPL-3.0-or-later"
    assert "GNU AFFERO GENERAL PUBLIC LICENSE" in (ROOT / "LICENSE").read_text()


def newest_glibc(machine: str) -> int:
    return max(int(need.split(".")[1]) for _, of, need in words("glibc.txt") if of == machine)


def resolve(uv: str, lock: Path, machine: str, python: str, glibc: int) -> subprocess.CompletedProcess[str]:
    platform = ["--python-platform", f"{machine}-manylinux_2_{glibc}", "--python-version", python]
    mode = ["--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--python", BASE_PYTHON]
    command = [uv, "pip", "install", *mode, *platform, "--target", lock.parent / "none", "-r", lock]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.network
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
def test_resolves_with_wheels_only(uv: str, machine: str, python: str, tmp_path: Path) -> None:
    exceptions = {line[0] for line in words("sdists.txt")}
    locked = stanzas((REQUIREMENTS / "fork.lock").read_text())
    assert exceptions <= locked.keys()
    lock = tmp_path / "wheels.lock"
    lock.write_text("".join(block for name, block in locked.items() if name not in exceptions))
    enough = newest_glibc(machine)
    answer = resolve(uv, lock, machine, python, enough)
    assert answer.returncode == 0, answer.stderr
    assert int(re.search(r"Would install (\d+) packages", answer.stderr)[1]) > 200
    # The table is tight: one step older, and a wheel is missing.
    assert resolve(uv, lock, machine, python, enough - 1).returncode != 0


@pytest.mark.network
def test_packages_built_from_source_are_pure_python(uv: str, tmp_path: Path) -> None:
    exceptions = {line[0] for line in words("sdists.txt")}
    locked = stanzas((REQUIREMENTS / "fork.lock").read_text())
    lock = tmp_path / "sources.lock"
    # Also those of the other machine: what they build into does not depend on it.
    lock.write_text("".join(re.sub(r" ; .*", r" \\", locked[name]) for name in sorted(exceptions)))
    constraints = ["--build-constraints", REQUIREMENTS / "fork.lock"]
    command = [uv, "pip", "install", "--no-deps", "--require-hashes", *constraints, "--python", BASE_PYTHON]
    subprocess.run([*command, "--target", tmp_path / "built", "-r", lock], check=True, timeout=300)
    tags = {path.parent.name: path.read_text() for path in (tmp_path / "built").glob("*.dist-info/WHEEL")}
    assert len(tags) == len(exceptions)
    assert [name for name, text in tags.items() if "-none-any" not in text] == []


@pytest.mark.network
@pytest.mark.slow(reason="resolves both locks again at the package registry")
def test_locks_are_what_their_inputs_give() -> None:
    subprocess.run([ROOT / "scripts/lock_environment.sh", "--check"], check=True, timeout=300)
