"""For PyTorch: torch.cuda._use_uvm() hangs beside a thread that reads memory statistics.

tests/cuda_sim/run.sh python upstream/pytorch_use_uvm_hangs.py    # or on a machine with a GPU and cuda-python
"""

from __future__ import annotations

import logging
import multiprocessing
import sys
import threading
import time
from contextlib import suppress

SECONDS = 8.0
GRACE = 20.0


def allocate_beside_statistics() -> None:
    """One thread allocates managed memory, another one asks how much is allocated."""
    import torch

    # The simulated device rejects the runtime's managed allocations: the callback is called all the same.
    logging.disable(logging.CRITICAL)
    torch.zeros(1, device="cuda")
    end = time.monotonic() + SECONDS

    def allocate() -> None:
        with torch.cuda._use_uvm():
            while time.monotonic() < end:
                with suppress(RuntimeError):
                    torch.empty(1 << 20, device="cuda")
                    torch.cuda.empty_cache()

    def ask() -> None:
        while time.monotonic() < end:
            torch.cuda.memory_allocated()

    threads = [threading.Thread(target=target) for target in (allocate, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Exit code 1 if the process hangs."""
    child = multiprocessing.get_context("fork").Process(target=allocate_beside_statistics)
    child.start()
    child.join(SECONDS + GRACE)
    hangs = child.is_alive()
    child.kill()
    print("it hangs: neither thread goes on" if hangs else "not reproduced")
    return int(hangs)


if __name__ == "__main__":
    sys.exit(main())
