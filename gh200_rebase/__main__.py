"""Runs the tool from its directory: `python gh200_rebase [COMMAND]`, without anything on PYTHONPATH."""

import sys
from pathlib import Path

# Python puts the directory of this file first; the package is one above. Nothing is exported to child processes.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gh200_rebase.cli import main  # noqa: E402

sys.exit(main())
