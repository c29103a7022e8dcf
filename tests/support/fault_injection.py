"""Runs a driver of trainings that is killed or paused during start-up.

What to do comes as JSON in FAULT_INJECTION: `kill` (SIGKILL so many seconds `after` the first event of
Python's audit hooks with this name, `on`, whose arguments have the words `of` in them; without a name, after the beginning), `hold`
(at such an event the process waits for so many `seconds`).
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "FAULT_INJECTION"
# Whole files are put in their place by a rename.
PUT = "os.rename"


class Start:
    def __init__(self, orders: dict[str, Any]) -> None:
        self._kill, self._hold = orders.get("kill"), orders.get("hold")

    def install(self) -> None:
        if self._kill and "on" not in self._kill:
            self._die()
        sys.addaudithook(self._happened)

    def _happened(self, event: str, given: tuple[Any, ...]) -> None:
        if self._kill and _is_meant(self._kill, event, given):
            self._die()
        if self._hold and _is_meant(self._hold, event, given):
            seconds, self._hold = self._hold["seconds"], None
            time.sleep(seconds)

    def _die(self) -> None:
        """At once and not by a timer where no time is named: what comes next must not happen."""
        order, self._kill = self._kill or {}, None
        after = order.get("after", 0)
        if not after:
            os.kill(os.getpid(), signal.SIGKILL)
        timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()


def _is_meant(order: dict[str, Any], event: str, given: tuple[Any, ...]) -> bool:
    return event == order.get("on") and order["of"] in repr(given)


def main() -> None:
    Start(json.loads(os.environ[VARIABLE])).install()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
