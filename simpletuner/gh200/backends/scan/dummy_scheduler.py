"""The scheduler that does nothing, for optimizers that need none: there without DeepSpeed too."""

from __future__ import annotations

import accelerate.utils
from accelerate.utils.deepspeed import DummyScheduler


def provide() -> None:
    """accelerate defines it everywhere and exports it only beside DeepSpeed; upstream asks for the exported name."""
    if not hasattr(accelerate.utils, "DummyScheduler"):
        accelerate.utils.DummyScheduler = DummyScheduler
