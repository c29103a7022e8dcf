"""Worker processes that read picture headers: fresh interpreters that import neither torch nor upstream, never forked."""

from __future__ import annotations

import contextlib
import importlib.util
import marshal
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

from .. import header_reader
from ..errors import GH200Error
from ..headers import Header, header

BATCH = 512
# Starting an interpreter takes longer than this many headers.
TOO_FEW = 64
DIED = "ended the process that read it"
MOST_DEATHS = 20
# Each worker would compile the reader's source anew; they get it as this process has it, unless it dies before.
PROGRAM = "import marshal, sys; code = sys.stdin.buffer.read({0}); len(code) == {0} and exec(marshal.loads(code))"


class HeaderPool:
    """Headers of many files, in order. A worker that dies costs the one file it died of."""

    def __init__(self, workers: int) -> None:
        self._free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="gh200-headers")
        self._ahead = 4 * workers
        self._deaths = 0
        for _ in range(workers):
            self._free.put(self._start())

    def __enter__(self) -> HeaderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for worker in self._started:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._started:
            _close(worker)

    def headers(self, paths: Sequence[str]) -> Iterator[list[Header]]:
        waiting: deque[Future[list[Header]]] = deque()
        for start in range(0, len(paths), BATCH):
            waiting.append(self._threads.submit(self._read, paths[start : start + BATCH]))
            if len(waiting) > self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _start(self) -> subprocess.Popen[bytes]:
        code = _code()
        worker = subprocess.Popen(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", PROGRAM.format(len(code)), *_places_of_pil()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is this process's to answer; when it goes, the pipe closes.
            process_group=0,
        )
        self._started.append(worker)
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(code)
        return worker

    def _start_another(self) -> subprocess.Popen[bytes]:
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            raise GH200Error(
                f"{self._deaths} processes that read picture headers have died.",
                why="the machine ends them (memory?), or this interpreter cannot be started a second time",
                fix="look at the messages above and at the system's log; gh200_optimizations.fast_start: false scans in "
                "upstream's way",
            )
        return self._start()

    def _read(self, paths: Sequence[str]) -> list[Header]:
        worker = self._free.get()
        try:
            answer = _ask(worker, paths)
            if answer is None and len(paths) == 1:
                return [Header(None, None, DIED)]
        finally:
            self._free.put(worker if worker.poll() is None else self._start_another())
        return answer if answer is not None else [found for path in paths for found in self._read([path])]


def read_headers(paths: Sequence[str], workers: int) -> Iterator[list[Header]]:
    """Headers in batches of at most BATCH, in the order of the paths."""
    if len(paths) <= TOO_FEW:
        if paths:
            yield [header(path) for path in paths]
        return
    with HeaderPool(max(1, min(workers, -(-len(paths) // BATCH)))) as pool:
        yield from pool.headers(paths)


def _ask(worker: subprocess.Popen[bytes], paths: Sequence[str]) -> list[Header] | None:
    assert worker.stdin is not None and worker.stdout is not None
    try:
        header_reader.send(worker.stdin, list(paths))
        return [Header(*answer) for answer in header_reader.receive(worker.stdout)]
    except (EOFError, OSError, ValueError, TypeError):
        worker.kill()
        worker.wait()
        return None


def _close(worker: subprocess.Popen[bytes]) -> None:
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    worker.wait()


@cache
def _code() -> bytes:
    """The reader of headers as a program."""
    return marshal.dumps(
        SourceFileLoader(header_reader.__name__, header_reader.__file__).get_code(header_reader.__name__)
    )


@cache
def _places_of_pil() -> list[str]:
    """Where this interpreter has PIL and the formats that upstream adds to it; the workers look nowhere else."""
    found = [importlib.util.find_spec(name) for name in ("PIL", "pillow_jxl")]
    return sorted({str(Path(spec.origin).parent.parent) for spec in found if spec is not None and spec.origin})
