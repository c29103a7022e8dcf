"""Worker processes that read image headers: fresh interpreters that import neither torch nor SimpleTuner, never forked."""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ... import image_headers
from ...errors import GH200Error
from ...image_headers import Header, header

# Starting an interpreter takes longer than reading this many headers.
TOO_FEW = 64
DIED = "ended the process that read it"
MOST_DEATHS = 20


class HeaderPool:
    """Headers for any number of threads. A process starts when it is needed; one that dies costs the one file it died of."""

    def __init__(self, processes: int) -> None:
        self._free: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._deaths = 0
        self._closed = False
        for _ in range(processes):
            self._free.put(None)

    def read(self, paths: Sequence[str]) -> list[Header]:
        """In the order of the paths."""
        if len(paths) <= TOO_FEW and not self._started:
            return [header(path) for path in paths]
        found = self._ask(paths)
        if found is not None:
            return found
        if len(paths) == 1:
            return [Header(None, None, DIED)]
        return [one for path in paths for one in self._ask([path]) or [Header(None, None, DIED)]]

    def close(self) -> None:
        """Ends the worker processes."""
        self._closed = True
        for worker in self._started:
            worker.kill()
            worker.wait()
            with contextlib.suppress(OSError), worker:
                """Closes its pipes."""

    def _ask(self, paths: Sequence[str]) -> list[Header] | None:
        """None where the process died of them, or all of them are gone."""
        if self._closed:
            return None
        worker = self._free.get()
        try:
            if worker is None:
                worker = self._start()
            assert worker.stdin is not None and worker.stdout is not None
            image_headers.send(worker.stdin, list(paths))
            return [Header(*one) for one in image_headers.receive(worker.stdout)]
        except (EOFError, OSError, ValueError, TypeError):
            if worker is not None:
                worker.kill()
                worker.wait()
            worker = None
            self._count_death()
            return None
        finally:
            self._free.put(worker)

    def _start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, "-I", "-S", "-W", "ignore", str(image_headers.__file__), *_places_of_pillow()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is this process's to answer; when it goes, the pipe closes.
            process_group=0,
        )
        self._started.append(worker)
        return worker

    def _count_death(self) -> None:
        self._deaths += 1
        if self._deaths > MOST_DEATHS and not self._closed:
            raise GH200Error(
                f"{self._deaths} processes that read image headers have died.",
                why="the machine ends them (memory?), or this interpreter cannot be started a second time",
                fix="look at the messages above and at the system's log; gh200_optimizations.fast_start: false scans in "
                "SimpleTuner's way",
            )


@cache
def _places_of_pillow() -> list[str]:
    """Where this interpreter has Pillow and the formats that SimpleTuner adds to it; the workers look nowhere else."""
    found = [importlib.util.find_spec(name) for name in ("PIL", "pillow_jxl")]
    return sorted({str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin})
