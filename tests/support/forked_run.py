"""A training in a process that is forked where upstream is imported already: nine tenths of a tiny run are imports.

`forked_run.py serve SOCKET` imports and waits. `forked_run.py SOCKET SCRIPT ...` is the process that a launcher starts: it
hands over its variables, directory and output, passes signals on, and ends as the forked one does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PAUSE = 0.02
LARGEST = 1 << 17


def ask(place: str, command: list[str]) -> NoReturn:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(place)
        request = {"command": command, "variables": dict(os.environ), "directory": os.getcwd()}
        socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
        process = int(server.recv(LARGEST))
        for number in PASSED_ON:
            signal.signal(number, lambda received, _: os.kill(process, received))
        code = os.waitstatus_to_exitcode(int(server.recv(LARGEST)))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(place: str) -> dict[str, Any]:
    """Comes back only in a process that is to train."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{place}.part")
    listener.listen()
    os.rename(f"{place}.part", place)
    listener.settimeout(1.0)
    asker = os.getppid()
    while True:
        reap()
        try:
            client, _ = listener.accept()
        except TimeoutError:
            if os.getppid() != asker:
                sys.exit("the parent process is gone")
            continue
        message, files, _, _ = socket.recv_fds(client, LARGEST, 2)
        if os.fork() == 0:
            listener.close()
            return begin(client, files, json.loads(message))
        client.close()
        for file in files:
            os.close(file)


def reap() -> None:
    """Waits for children rather than ignoring them, so that their CPU time counts in the test run's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def begin(client: socket.socket, files: list[int], request: dict[str, Any]) -> dict[str, Any]:
    """The training's process comes back; the one that waits for it ends with it, or ends it when the client is gone."""
    process = os.fork()
    if process == 0:
        client.close()
        for place, file in enumerate(files, 1):
            os.dup2(file, place)
            os.close(file)
        return request
    client.send(str(process).encode())
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        if select.select([client], [], [], PAUSE)[0]:
            os.kill(process, signal.SIGKILL)
    try:
        client.send(str(ended[1]).encode())
    finally:
        os._exit(0)


def train(request: dict[str, Any]) -> NoReturn:
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["directory"])
    # A fresh process has other numbers there each time; what hangs on them must show.
    import_module("random").seed()
    import_module("numpy").random.seed()
    # What was imported before the fork has left its threads behind, and would wait for them.
    atexit._clear()
    sys.argv = request["command"]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    code: Any = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        place = sys.argv[2]
        sys.argv = sys.argv[2:]
        sys.path.pop(0)
        import_module("simpletuner.helpers.training.trainer")
        # What a training imports on its way.
        import_module("torch._inductor.cudagraph_trees")
        train(serve(place))
    else:
        ask(sys.argv[1], sys.argv[2:])
