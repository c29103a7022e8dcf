"""What docs/RAMP.md states about upstream, checked in upstream itself."""

from __future__ import annotations

import subprocess
import sys

from tiny import FORK

from gh200_lab.place import environment

SCRIPT = """
from simpletuner.helpers.training.optimizer_param import is_optimizer_grad_fp32, optimizer_choices
print(len(optimizer_choices), [name for name in optimizer_choices if is_optimizer_grad_fp32(name)])
"""


def test_no_optimizer_of_upstream_allows_fp32_gradient_precision() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment(FORK), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    count, names = done.stdout.splitlines()[-1].split(" ", 1)
    assert int(count) > 10
    assert names == "[]"
