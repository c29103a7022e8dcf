"""Operations whose CUDA side is not the CPU kernel on the same bytes."""

from __future__ import annotations

import torch

from .memory import WRITES, on_cpu
from .operation import CPU_KEY, Kernel

aten = torch.ops.aten
FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def _is_a_plain_copy(to: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether torch's own code copies with one call of the runtime and no kernel."""
    if to.dtype != source.dtype or to.shape != source.shape:
        return False
    if to.is_conj() != source.is_conj() or to.is_neg() != source.is_neg():
        return False
    if to.is_contiguous() and source.is_contiguous():
        return True
    formats = FORMATS[1:2] if to.dim() == 4 else FORMATS[2:] if to.dim() == 5 else ()
    return any(to.is_contiguous(memory_format=f) and source.is_contiguous(memory_format=f) for f in formats)


def copy_(to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Between host and device, and wherever bytes stay as they are, torch's own code: the runtime counts the copy."""
    both_on_devices = to.device.type == "cuda" == source.device.type
    if not both_on_devices or _is_a_plain_copy(to, source):
        aten.copy_.default.redispatch(CPU_KEY, to, source, non_blocking)  # the same code as for any device
    elif to.device == source.device:
        if to.numel():
            aten.copy_.default.redispatch(CPU_KEY, on_cpu(to, WRITES), on_cpu(source), non_blocking)
    else:
        dense = source.to(to.dtype).expand(to.shape).contiguous()
        to.copy_(dense.to(to.device))
    return to


def native_dropout(tensor: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU's own draws from the CPU's generator, which belongs to the program."""
    if train is False or p == 0:
        return tensor.clone(), torch.ones_like(tensor, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(tensor), torch.zeros_like(tensor, dtype=torch.bool)
    kept = torch.empty_like(tensor, dtype=torch.bool).bernoulli_(1 - p)
    return tensor * kept * (1 / (1 - p)), kept


def choose_attention(*_: object, **__: object) -> int:
    """The plain mathematical one: the fused kernels cannot run."""
    return 0


def rms_norm_backward(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """There is no CPU kernel for this one."""
    dims = tuple(range(tensor.dim() - len(normalized_shape), tensor.dim()))
    rows = tuple(range(tensor.dim() - len(normalized_shape)))
    grad, normal = gradient.float(), tensor.float() * rstd
    weighted = grad if weight is None else grad * weight.float()
    inner = (weighted * normal).mean(dim=dims, keepdim=True)
    to_input = ((weighted - normal * inner) * rstd).to(tensor.dtype) if output_mask[0] else None
    if weight is None or not output_mask[1]:
        return to_input, None
    to_weight = (grad * normal).sum(dim=rows) if rows else grad * normal
    return to_input, to_weight.to(weight.dtype)


SPECIAL: dict[str, Kernel] = {
    "copy_": copy_,
    "native_dropout": native_dropout,
    "_fused_sdp_choice": choose_attention,
    "_fused_rms_norm_backward": rms_norm_backward,
}
