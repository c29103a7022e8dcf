"""What upstream accepts, from the JSON that was read when the fork was built, keyed by the tree."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..files import user_cache

PACKAGE = Path(__file__).resolve().parents[2]
_READER = Path(__file__).with_name("read_upstream.py")
_PARSER = "helpers/configuration/cmd_args.py"
# Everything that decides what is accepted; another tree has another key, and is read again.
_DECISIVE = (
    "helpers/configuration/*.py",
    "helpers/models/*.json",
    "helpers/models/*/model.py",
    "helpers/training/optimizer_param.py",
    "helpers/training/reporting.py",
    "helpers/data_backend/config/*.py",
    "simpletuner_sdk/server/services/field_registry*",
    "simpletuner_sdk/server/services/field_registry/**/*.py",
)
LIMIT = 600.0


@dataclass(frozen=True)
class Upstream:
    """One release as its own code describes it."""

    keys: Mapping[str, Mapping[str, Any]]
    ignored: Collection[str]
    nested: Collection[str]
    optimizer_precision: Mapping[str, str]
    families: Mapping[str, Mapping[str, Any]]

    def default(self, key: str) -> object:
        """What upstream's parser takes where the key is absent."""
        return self.keys.get(key, {}).get("default")


def package_of_upstream() -> Path | None:
    """The package this module lies in, or that of the fork built beside this repository."""
    for package in (PACKAGE, PACKAGE.parent / "build" / "fork" / "simpletuner"):
        if (package / _PARSER).is_file():
            return package
    return None


def with_examples(config: Mapping[str, Any]) -> dict[str, Any]:
    """Upstream's loaders look for config/examples/... in the package."""
    package = package_of_upstream()

    def resolved(value: Any) -> Any:
        if package is None or not isinstance(value, str) or not value.startswith("config/examples/"):
            return value
        inside = package / value.removeprefix("config/")
        return str(inside) if inside.exists() else value

    return {key: resolved(value) for key, value in config.items()}


def place_of_record(package: Path) -> Path:
    """In the tree's own build directory, which no commit sees; an installed package has none, and its user a cache."""
    name = f"upstream-keys-{_key(package)}.json"
    tree = package.parent
    if (tree / ".git").exists() and os.access(tree, os.W_OK):
        return tree / "build" / name
    return user_cache() / name


@cache
def _key(package: Path) -> str:
    state = hashlib.sha256(_READER.read_bytes())
    for path in sorted({path for pattern in _DECISIVE for path in package.glob(pattern) if path.is_file()}):
        state.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def read_now(package: Path, say: Callable[[str], None]) -> str:
    """Runs upstream's own code in a process of its own and keeps what it says; why it could not be had, or nothing."""
    target = place_of_record(package)
    if target.is_file():
        return ""
    say("reading which keys upstream knows (half a minute, once per release)")
    variables = {**os.environ, "PYTHONPATH": str(package.parent)}
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_READER), str(target)],
            cwd=package.parent, env=variables, capture_output=True, text=True, errors="replace", timeout=LIMIT,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
    return "" if done.returncode == 0 and target.is_file() else last[0]


def upstream_record(read: bool, say: Callable[[str], None]) -> tuple[Upstream | None, str]:
    """The record, or why there is none; `read` makes a missing one."""
    package = package_of_upstream()
    if package is None:
        return None, "no upstream is here; ./execute_gh200_rebase.sh builds the fork"
    target = place_of_record(package)
    why = read_now(package, say) if read else ""
    try:
        return Upstream(**json.loads(target.read_text(encoding="utf-8"))), ""
    except FileNotFoundError:
        return None, f"upstream's keys could not be read: {why}" if why else "upstream's keys were not read yet"
    except (OSError, ValueError, TypeError) as error:
        return None, f"{target} cannot be used ({error}); remove it, and it is made again"


def main() -> int:
    """For whoever builds the fork: reads and keeps them, says how many there are."""
    package = package_of_upstream()
    found, problem = upstream_record(True, lambda text: print(text, file=sys.stderr, flush=True))
    if found is None or package is None:
        print(problem)
        return 1
    print(f"{len(found.keys)} known, in {place_of_record(package).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
