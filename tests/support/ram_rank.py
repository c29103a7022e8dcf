"""A rank of a run that stages one directory in RAM, without a Trainer; reports what it did in JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from torch import distributed  # noqa: E402

from simpletuner.gh200.backends.ram.arena import SharedArena  # noqa: E402
from simpletuner.gh200.backends.ram.invalidation import forget_changed, forget_path  # noqa: E402
from simpletuner.gh200.backends.ram.sharing import shared_arena  # noqa: E402
from simpletuner.gh200.backends.ram.staging import stage  # noqa: E402
from simpletuner.gh200.config.schema import InMemory  # noqa: E402
from simpletuner.gh200.errors import GH200Error  # noqa: E402


def main(directory: str, output: str, order: str) -> int:
    distributed.init_process_group("gloo")
    wanted: dict[str, Any] = json.loads(order)
    with open(f"{output}/rank{distributed.get_rank()}.jsonl", "w", buffering=1, encoding="utf-8") as file:

        def write_line(**what: Any) -> None:
            file.write(json.dumps(what | {"pid": os.getpid()}) + "\n")

        def fill() -> SharedArena:
            write_line(staging=True)
            time.sleep(wanted.get("delay", 0))
            return stage("x", directory, InMemory(**wanted.get("options", {})))

        try:
            arena = shared_arena("x", os.path.realpath(directory), None, fill)
        except GH200Error as error:
            write_line(error=type(error).__name__, text=str(error))
            return 2
        assert arena is not None
        write_line(token=arena.token, files=arena.files, owned=arena.is_owned)
        distributed.barrier()
        path = f"{directory}/1.bin"
        if distributed.get_rank() == 1:
            forget_path(path)
        distributed.barrier()
        write_line(forgotten=arena.find(path) is None, others=arena.find(f"{directory}/2.bin") is not None)
        while not os.path.exists(f"{output}/end"):
            time.sleep(0.05)
        write_line(changed=forget_changed(arena) if arena.is_owned else [])
        distributed.barrier()
        write_line(changed_here=arena.find(f"{directory}/3.bin") is None, bytes=len(arena.read(0)))
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
