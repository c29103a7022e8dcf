"""CPU tensors over the bytes of CUDA tensors, and CUDA tensors made from CPU results."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

CPU = torch.device("cpu")
READS, WRITES = 1, 2


@cache
def find_library() -> ctypes.CDLL:
    """The simulated device itself. PyDLL: a call takes less time than giving up the interpreter's lock and taking it again."""
    library = ctypes.PyDLL(None)
    try:
        view = library.cuda_sim_kernel_view
    except AttributeError:
        raise RuntimeError(
            "the simulated GPU's library is not preloaded; start the program with tests/cuda_sim/run.sh"
        ) from None
    view.argtypes = [ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
    view.restype = ctypes.c_void_p
    return library


class IllegalAddress(RuntimeError):
    """What a real kernel would end with; the report has the violation."""


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def kernel_address(tensor: torch.Tensor, extent: int, access: int) -> int:
    """Where a kernel finds a CUDA tensor's bytes; the simulated device checks the range, and moves managed pages."""
    address = find_library().cuda_sim_kernel_view(tensor.data_ptr(), extent, tensor.device.index, access)
    if address is None:
        raise IllegalAddress(f"simulated GPU: a kernel cannot reach the memory of a tensor on {tensor.device}")
    return int(address)


def on_cpu(tensor: torch.Tensor, access: int = READS) -> torch.Tensor:
    """The same bytes as a CPU tensor of the same shape and strides; `access` is what the kernel does with them."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=CPU)
    extent = _extent(tensor)
    storage = torch._C._construct_storage_from_data_pointer(kernel_address(tensor, extent, access), CPU, extent)
    seen = torch.empty(0, dtype=tensor.dtype, device=CPU).set_(storage, 0, tensor.shape, tensor.stride())
    if tensor.is_conj():
        seen = seen.conj()
    return seen._neg_view() if tensor.is_neg() else seen


def to_device(result: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU result as a new tensor on the device, with the same strides."""
    if result.layout is not torch.strided:
        raise NotImplementedError(f"simulated GPU: a result of layout {result.layout} is not modelled")
    if result.is_conj() or result.is_neg():
        result = result.resolve_conj().resolve_neg()
    made = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=device)
    if result.numel():
        extent = _extent(result)
        ctypes.memmove(kernel_address(made, extent, WRITES), result.data_ptr(), extent)
    return made
