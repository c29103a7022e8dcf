"""Blocks are made and freed in one thread while others keep the GIL and want the allocator; then Python ends with all of it."""

from __future__ import annotations

import threading
from typing import Any

import torch
from beyond_hbm import DEVICE, MB, Trainer, begun, kinds

from simpletuner.gh200.runtime import end

ROUNDS, BLOCKS = 12, 8


class Ring:
    """Freed by the garbage collector alone, in whichever thread it starts."""

    def __init__(self) -> None:
        self.tensor, self.me = torch.empty(100, device=DEVICE), self


def statistics(done: threading.Event) -> None:
    while not done.is_set():
        torch.cuda.memory_stats(DEVICE)


def garbage(done: threading.Event) -> None:
    while not done.is_set():
        Ring()


def main() -> None:
    done = threading.Event()
    others = [threading.Thread(target=other, args=(done,), daemon=True) for other in (statistics, garbage)]
    for other in others:
        other.start()
    tensors: list[Any] = []
    for _ in range(ROUNDS):
        run = begun(Trainer(), managed_memory="all")
        tensors = [torch.empty(21 * MB, dtype=torch.uint8, device=DEVICE) for _ in range(BLOCKS)]
        assert kinds(run)["everything torch allocates"]["peak_bytes"] >= BLOCKS * 21 * MB
        del tensors
        end()
    begun(Trainer(), managed_memory="all")
    globals()["kept"] = torch.ones(21 * MB, dtype=torch.uint8, device=DEVICE)
    done.set()
    for other in others:
        other.join()
    print("ENDED")


if __name__ == "__main__":
    main()
