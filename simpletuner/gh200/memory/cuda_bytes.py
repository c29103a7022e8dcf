"""Bytes the GPU can reach, as torch's CUDA importer wants to see them."""

from __future__ import annotations

from typing import Any

import torch


class CudaBytes:
    """Keeps whatever owns the memory alive for as long as a tensor uses it."""

    def __init__(self, owner: Any, pointer: int, size: int) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
            "strides": None,
        }


def cuda_bytes(owner: Any, pointer: int, size: int, device: int) -> torch.Tensor:
    """A tensor of bytes over that memory, without a copy."""
    return torch.as_tensor(CudaBytes(owner, pointer, size), device=f"cuda:{device}")
