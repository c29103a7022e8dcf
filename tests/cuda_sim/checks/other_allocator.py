"""A program that has set an allocator of its own before the trainer begins: any two functions will do, none is called."""

from __future__ import annotations

import torch
from beyond_hbm import Trainer, rejected

if __name__ == "__main__":
    other = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")
    torch.cuda.memory.change_current_allocator(other)
    print(rejected(Trainer(), managed_memory="all"))
