"""What a rank of a training does before and between its steps, without the model; one of two on each of two machines."""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
from typing import Any

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

import torch  # noqa: E402
from accelerate import Accelerator, InitProcessGroupKwargs  # noqa: E402

from simpletuner.gh200.backends.ram.arena import SharedArena  # noqa: E402
from simpletuner.gh200.backends.ram.sharing import shared_arena  # noqa: E402
from simpletuner.gh200.backends.ram.staging import stage  # noqa: E402
from simpletuner.gh200.config.schema import InMemory  # noqa: E402
from simpletuner.gh200.rank_check import check_ranks  # noqa: E402


def main(directory: str, output: str) -> None:
    with open(f"{output}/rank{os.environ['RANK']}.jsonl", "a", buffering=1, encoding="utf-8") as report:

        def write_line(**what: Any) -> None:
            report.write(json.dumps({"time": time.time(), **what}) + "\n")

        limit = datetime.timedelta(seconds=float(os.environ["SIMPLETUNER_PROCESS_GROUP_TIMEOUT_SECONDS"]))
        accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo", timeout=limit)])
        check_ranks(accelerator, {"seed": 1}, [{"id": "x", "instance_data_dir": directory}])
        staged: list[bool] = []

        def fill() -> SharedArena:
            staged.append(True)
            return stage("x", directory, InMemory())

        arena = shared_arena("x", os.path.realpath(directory), None, fill)
        assert arena is not None
        write_line(host=socket.gethostname(), staged=bool(staged), files=arena.files)
        try:
            for step in range(100000):
                total = accelerator.reduce(torch.ones(1))
                write_line(step=step, ranks=int(total.item()))
                time.sleep(0.1)
        except Exception as error:
            write_line(error=f"{type(error).__name__}: {error}")
            raise


if __name__ == "__main__":
    main(*sys.argv[1:])
