"""Kernels for the simulated GPU: CPU code on the same bytes, behind torch's own CUDA dispatch key."""

from __future__ import annotations

import os

import torch

BACKEND = "CUDA_SIM_BACKEND"


def install() -> None:
    """Called once, when torch has been imported."""
    if torch.version.cuda is None:
        raise RuntimeError(
            f"torch {torch.__version__} was built without CUDA, and the simulated GPU plays beneath torch's CUDA code; "
            "use the environment that scripts/setup.sh makes"
        )
    from . import memory, ranks, registry, traffic

    memory.find_library()
    registry.register_kernels()
    traffic.count_by_step()
    # Their kernels are compiled ones that no CPU code can stand for.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    if os.environ.get(BACKEND):
        ranks.use_backend(os.environ[BACKEND])
