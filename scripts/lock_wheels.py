"""Trim uv's lock to the wheels our machines can use, and work out which C library those wheels need."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_version, parse_wheel_filename
from pypi_simple import DistributionPackage, PyPISimple

MACHINES = ("aarch64", "x86_64")
PYTHONS = ((3, 12), (3, 13))
NEWEST_GLIBC = 99
OLD_TAGS = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
# Every distribution with Python 3.12 has at least this one, so it is not worth a line.
COMMON_GLIBC = 17


@dataclass(frozen=True)
class Target:
    """One machine and Python the lock is for."""

    machine: str
    python: tuple[int, int]

    def environment(self) -> dict[str, str]:
        """Values of environment markers."""
        short = ".".join(map(str, self.python))
        return {
            "implementation_name": "cpython",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{short}.0",
            "python_version": short,
            "sys_platform": "linux",
        }

    def tags(self) -> frozenset[Tag]:
        """Wheel tags this machine accepts."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(5, NEWEST_GLIBC)]
        platforms += [f"{old}_{self.machine}" for old in OLD_TAGS] + [f"linux_{self.machine}"]
        interpreter = f"cp{self.python[0]}{self.python[1]}"
        return frozenset(
            [*cpython_tags(self.python, platforms=platforms), *compatible_tags(self.python, interpreter, platforms)]
        )


TARGETS = tuple(Target(machine, python) for machine in MACHINES for python in PYTHONS)
TAGS = {target: target.tags() for target in TARGETS}


@dataclass(frozen=True)
class Pin:
    """One locked package and the targets that install it."""

    name: str
    version: str
    targets: tuple[Target, ...]

    def marker(self) -> str:
        """The shortest marker that separates the targets of this pin from the others."""
        if self.targets == TARGETS:
            return ""
        for machine in MACHINES:
            if self.targets == tuple(target for target in TARGETS if target.machine == machine):
                return f' ; platform_machine == "{machine}"'
        raise SystemExit(f"{self.name}: locked for {self.targets}, which lock_wheels.py cannot write as one marker yet")


@dataclass(frozen=True)
class Choice:
    """What a pin is installed from."""

    pin: Pin
    hashes: tuple[str, ...]
    glibc: dict[str, int]
    source_for: tuple[str, ...]


def read_pins(lock: str) -> Iterator[Pin]:
    """The pins of a lock file."""
    for line in re.findall(r"^[a-zA-Z0-9][^\n]*==[^\n]*", lock, re.MULTILINE):
        requirement = Requirement(line.removesuffix("\\").strip())
        version = next(iter(requirement.specifier)).version
        marker = requirement.marker or Marker("python_version > '3'")
        targets = tuple(target for target in TARGETS if marker.evaluate(target.environment()))
        if targets:
            yield Pin(requirement.name, version, targets)


def glibc_of(tag: Tag) -> int:
    """The minor version of glibc 2 a wheel tag asks for."""
    if modern := re.match(r"manylinux_2_(\d+)_", tag.platform):
        return int(modern[1])
    return OLD_TAGS.get(tag.platform.split("_")[0], 0)


def choose(pin: Pin, files: Iterable[DistributionPackage]) -> Choice:
    """All wheels a target of this pin can use; the source archive only where a target has none."""
    version = canonicalize_version(pin.version)
    ours = [file for file in files if file.version and canonicalize_version(file.version) == version]
    wheels = [file for file in ours if file.package_type == "wheel"]
    sources = [file for file in ours if file.package_type == "sdist"]
    hashes: set[str] = set()
    glibc: dict[str, int] = defaultdict(int)
    source_for: list[str] = []
    for target in pin.targets:
        needs = []
        for wheel in wheels:
            if usable := TAGS[target] & parse_wheel_filename(wheel.filename)[3]:
                hashes.add(wheel.digests["sha256"])
                needs.append(min(map(glibc_of, usable)))
        if needs:
            glibc[target.machine] = max(glibc[target.machine], min(needs))
        else:
            source_for.append(target.machine)
            hashes.update(source.digests["sha256"] for source in sources)
    if not hashes:
        raise SystemExit(f"{pin.name}=={pin.version}: the registry has no file for {pin.targets}")
    return Choice(pin, tuple(sorted(hashes)), dict(glibc), tuple(sorted(set(source_for))))


def look_up(pins: Iterable[Pin]) -> list[Choice]:
    """Choose the wheels of each pin."""
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    with PyPISimple(*([index] if index else [])) as registry, ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda pin: choose(pin, registry.get_project_page(pin.name).packages), pins))


def render_lock(choices: Iterable[Choice]) -> str:
    """The lock file."""
    lines = ["# Written by scripts/lock_environment.sh; change the .in file instead."]
    for choice in choices:
        head = f"{choice.pin.name}=={choice.pin.version}{choice.pin.marker()}"
        lines.append(" \\\n".join([head, *(f"    --hash=sha256:{digest}" for digest in choice.hashes)]))
    return "\n".join(lines) + "\n"


def render_glibc(choices: Iterable[Choice]) -> str:
    """The page of glibc versions."""
    lines = [
        "# Written by scripts/lock_environment.sh from the tags of the locked wheels.",
        f"# package, machine, oldest glibc one of its wheels runs on (where newer than 2.{COMMON_GLIBC})",
    ]
    for choice in choices:
        lines += [
            f"{choice.pin.name} {machine} 2.{minor}"
            for machine, minor in sorted(choice.glibc.items())
            if minor > COMMON_GLIBC
        ]
    return "\n".join(lines) + "\n"


def check_sources(choices: Iterable[Choice], allowed: set[str]) -> None:
    """Stop when a package would be built from source without anyone having said that this is fine."""
    needed = {choice.pin.name: choice.source_for for choice in choices if choice.source_for}
    problems = [f"{name}: no wheel for {', '.join(needed[name])}" for name in sorted(needed.keys() - allowed)]
    problems += [f"{name}: listed, but has wheels now or is not locked" for name in sorted(allowed - needed.keys())]
    if problems:
        advice = (
            "fix: requirements/sdists.txt lists pure-Python ones, requirements/overrides.txt drops what is not needed"
        )
        raise SystemExit("packages without wheels:\n  " + "\n  ".join([*problems, advice]))


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lock", type=Path, help="the file uv wrote; rewritten in place")
    parser.add_argument("--glibc", type=Path, help="where to write the table of glibc needs")
    parser.add_argument("--sdists", type=Path, help="names that may be built from source")
    arguments = parser.parse_args()
    choices = look_up(list(read_pins(arguments.lock.read_text())))
    listed = arguments.sdists.read_text().splitlines() if arguments.sdists else []
    check_sources(choices, {line.split()[0] for line in listed if line.strip() and not line.startswith("#")})
    arguments.lock.write_text(render_lock(choices))
    if arguments.glibc:
        arguments.glibc.write_text(render_glibc(choices))
    print(f"{arguments.lock.name}: {len(choices)} packages", file=sys.stderr)


if __name__ == "__main__":
    main()
