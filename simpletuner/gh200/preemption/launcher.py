"""A rank whose launcher is gone ends: `accelerate launch` with one process forwards no signal and leaves it behind."""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

from .signals import Signals

VARIABLE = "GH200_LAUNCHER_PID"
_LAUNCHERS = {"accelerate", "accelerate-launch", "torchrun", "accelerate.commands.launch", "torch.distributed.run"}


def watch_launcher() -> None:
    """Watch what started this rank, if that is a launcher; under a shell or nohup nothing is watched."""
    parent, named = os.getppid(), os.environ.get(VARIABLE, "")
    watched = [parent] if _is_launcher(parent) else []
    watched += [int(named)] if named.isdigit() else []
    try:
        descriptors = [os.pidfd_open(process) for process in watched]
    except ProcessLookupError:
        _end()
    except OSError:  # a kernel or container without pidfd_open
        return
    else:
        if descriptors:
            threading.Thread(target=_wait, args=(descriptors,), name="gh200-launcher", daemon=True).start()


def _is_launcher(process: int) -> bool:
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return False
    # `python accelerate launch ...`, `python -m accelerate.commands.launch ...`
    return any(os.path.basename(word).removesuffix(".py") in _LAUNCHERS for word in words[:3])


def _wait(descriptors: list[int]) -> None:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    _end()


def _end() -> None:
    handler = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    if isinstance(handler, Signals) and handler.asked_with:
        return  # a second signal would end the checkpoint that is being written
    os.write(2, b"\nGH200: the launcher of this rank is gone: the rank ends, as after SIGTERM.\n")
    os.kill(os.getpid(), signal.SIGTERM)
