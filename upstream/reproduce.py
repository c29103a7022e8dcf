"""Runs the reproductions of our reports against the SimpleTuner that this interpreter imports.

PYTHONPATH=build/pristine python upstream/reproduce.py     # every fault is there: exit code 1
PYTHONPATH=build/fork python upstream/reproduce.py         # only that of the sampler is
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from scene import CannotTry, use_our_fork

REPORTS = (
    *("scan_loses_entries", "metadata_repair_fails", "sampler_copies_lists", "schedule_free_needs_deepspeed"),
    *("nested_images_are_skipped", "pinning_needs_an_accelerator", "mistakes_train_another_config"),
    "import_needs_torch",
)


def main() -> int:
    """Run the scripts named, or all; the exit code is 1 if a fault is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="*", choices=[*REPORTS, []], help="which ones (all)")
    chosen = parser.parse_args().report or REPORTS
    os.environ.setdefault("SIMPLETUNER_LOG_LEVEL", "CRITICAL")
    print("the fork, its fast start on" if use_our_fork() else "plain SimpleTuner", flush=True)
    found = 0
    for name in chosen:
        try:
            with tempfile.TemporaryDirectory() as directory:
                fault = importlib.import_module(name).reproduce(Path(directory))
        except CannotTry as reason:
            print(f"{name}: cannot be tried here: {reason}", flush=True)
            continue
        found += fault is not None
        print(f"{name}: {fault or 'not reproduced'}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Results that were never read keep the threads of their queues, and so the interpreter, from ending.
    os._exit(code)
