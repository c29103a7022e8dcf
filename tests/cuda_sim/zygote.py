"""Imports torch once and runs each request in a forked copy: a fresh CUDA driver without a fresh ten-second import."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

OVERLAY = Path(__file__).resolve().parents[2] / "simpletuner"


def run_in_child(request: dict[str, Any], output: int) -> None:
    for stream in (1, 2):
        os.dup2(output, stream)
    status = 1
    try:
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        exec(compile(request["code"], "<test>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    # A fork that was built earlier and is on the path would be taken instead, without a word.
    package = ModuleType("simpletuner")
    package.__path__ = [str(OVERLAY)]
    sys.modules["simpletuner"] = package

    import torch  # noqa: F401

    import gh200_lab.memory_run  # noqa: F401
    import simpletuner.gh200.memory.batch  # noqa: F401
    import tests.support.fake_cache_backend  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if not child:
                run_in_child(json.loads(line), output.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            output.seek(0)
            print(json.dumps({"status": status, "output": output.read().decode(errors="replace")}), flush=True)


if __name__ == "__main__":
    main()
