"""The names of torch that the pools need and torch does not promise; asked before anything is loaded, also without torch."""

from __future__ import annotations

# Public where torch has it; these it has not, and another torch may lack them.
CUSTOM_ALLOCATOR = "_cuda_customAllocator"
FOR_ALL_THREADS = ("_cuda_beginAllocateToPool", "_cuda_endAllocateToPool", "_cuda_releasePool")
PRIVATE = (CUSTOM_ALLOCATOR, *FOR_ALL_THREADS)
PUBLIC = ("MemPool", "use_mem_pool")  # of torch.cuda
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
PATCHED_KEY = "use_uvm:true"


def asks_patched_allocator(settings: str) -> bool:
    """Whether allocator settings are those of the owner's patched torch, which then does the work of the pools."""
    return PATCHED_KEY in settings.replace(" ", "").lower()
