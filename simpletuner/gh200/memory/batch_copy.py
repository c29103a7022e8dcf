"""Tensors from ordinary memory to the GPU in one copy: packed into a pinned buffer that is used again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from .pages import aligned, extent

_GROWTH = 2 << 20


class PinningFailed(RuntimeError):
    """The machine gives no pinned memory; the tensors are as they were."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """From a tensor's first byte to its last, whatever lies between its elements."""
    first = tensor.storage_offset() * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(
        tensor.untyped_storage(), first, (extent(tensor),), (1,)
    )


def as_seen(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bytes, wherever they are now, with the type, shape and strides of the tensor they came from."""
    return flat.view(like.dtype).as_strided(like.shape, like.stride())


class CudaBytes:
    """Bytes the GPU can reach, as torch's CUDA importer wants to see them; keeps alive whatever owns them."""

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


class OneCopy:
    """One buffer, one stream and one event of a device, made when they are first needed."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self._lock = threading.Lock()
        self._buffer: torch.Tensor | None = None
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None
        self.batches = self.bytes = 0

    def move(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Their twins on the GPU. Kernels this thread queues from now on come after the copy; nobody waits for it here."""
        spans = [extent(tensor) for tensor in tensors]
        *offsets, total = accumulate(map(aligned, spans), initial=0)
        with self._lock, torch.inference_mode(False), torch.no_grad():
            pinned = self._free_buffer(total)
            for tensor, offset, span in zip(tensors, offsets, spans, strict=True):
                pinned[offset : offset + span].copy_(bytes_of(tensor))
            there = self._sent(pinned)
            self.batches += 1
            self.bytes += sum(spans)
            places = zip(tensors, offsets, spans, strict=True)
            return [as_seen(there[offset : offset + span], tensor) for tensor, offset, span in places]

    def _free_buffer(self, size: int) -> torch.Tensor:
        if self._copied is not None:
            self._copied.synchronize()  # the copy before reads it until then
        if self._buffer is None or self._buffer.numel() < size:
            self._buffer = None
            try:
                self._buffer = torch.empty(-(-size // _GROWTH) * _GROWTH, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                raise PinningFailed(f"{size} bytes of pinned memory are rejected: {error}") from error
        return self._buffer[:size]

    def _sent(self, pinned: torch.Tensor) -> torch.Tensor:
        stream = self._stream = self._stream or torch.cuda.Stream(self.device)
        copied = self._copied = self._copied or torch.cuda.Event()
        reader = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(stream):
            # Of this stream's own memory: what the reader's stream has just freed may still be read there.
            there = torch.empty(pinned.numel(), dtype=torch.uint8, device=self.device)
            there.copy_(pinned, non_blocking=True)
            copied.record(stream)
        reader.wait_event(copied)
        there.record_stream(reader)
        return there

    def close(self) -> None:
        """Frees the buffer once the last copy is done."""
        with self._lock:
            if self._copied is not None:
                self._copied.synchronize()
            self._buffer = self._stream = self._copied = None
