"""The package cannot be imported where torch is not installed, not even for its version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = "import sys; sys.modules['torch'] = None; import simpletuner; print(simpletuner.__version__)"


def reproduce(directory: Path) -> str | None:
    """The fault in one sentence, or None."""
    environment = {name: value for name, value in os.environ.items() if name != "SIMPLETUNER_SKIP_TORCH"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    return f"import simpletuner fails: {done.stderr.splitlines()[-1]}" if done.returncode else None
