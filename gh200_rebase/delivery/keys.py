"""Has the fork read which keys its upstream accepts, once per release, so that preflight answers in seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_MODULE = "simpletuner.gh200.preflight.upstream_keys"
_LATER = "preflight reads them at its first use"
LIMIT = 900.0


def say_keys(fork: Path) -> None:
    """Never more than a remark: a fork without the record is whole."""
    if not (fork / f"{_MODULE.replace('.', '/')}.py").is_file():
        return
    if find_spec("torch") is None:
        print(f"upstream's keys: not read, there is no torch in this Python; {_LATER}")
        return
    environment = {**os.environ, "PYTHONPATH": str(fork.resolve()), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE],
            cwd=fork,
            env=environment,
            timeout=LIMIT,
            stdout=subprocess.PIPE,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"upstream's keys: not read ({error}); {_LATER}")
        return
    if done.returncode or done.stdout.strip():
        print(f"upstream's keys: {done.stdout.strip() or 'not read'}" + (f"; {_LATER}" if done.returncode else ""))
