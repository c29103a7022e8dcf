"""Which operations of torch's CUDA device get CPU code, and which stay torch's own."""

from __future__ import annotations

import warnings

import torch

from .operation import kernel_for
from .special import SPECIAL

# Allocation, views, waiting and reading one number back need no kernel: torch's own code runs, on our runtime.
NATIVE = frozenset(
    {
        "_efficientzerotensor",
        "_local_scalar_dense",
        "empty.memory_format",
        "empty_strided",
        "is_set_to",
        "record_stream",
        "resize_",
        "set_",
        "set_.source_Storage",
        "set_.source_Storage_storage_offset",
        "set_.source_Tensor",
    }
)
# Composed operations that would choose a compiled backend when they see CUDA tensors.
COMPOSED = ("convolution", "convolution_backward", "_fused_rms_norm")

_library: torch.library.Library | None = None  # what is registered lives as long as this


def _operation(name: str) -> torch._ops.OpOverload:
    base, _, overload = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return found


def _is_view(operation: torch._ops.OpOverload) -> bool:
    returned = (value.alias_info for value in operation._schema.returns)
    return any(alias is not None and not alias.is_write for alias in returned)


def _stays_native(name: str) -> bool:
    if name in NATIVE or name in SPECIAL or name in COMPOSED or name.startswith("_nested"):
        return True
    has_cpu_code = torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{name}", "CPU")
    return not has_cpu_code or _is_view(_operation(name))


def register_kernels() -> None:
    """In the dispatcher and not as a mode: also threads that Python never saw, such as autograd's, find them."""
    global _library
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("CUDA")
    names = [name.removeprefix("aten::") for name in registered if name.startswith("aten::")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch's own kernels are replaced
        for name in [*(name for name in names if not _stays_native(name)), *COMPOSED]:
            _library.impl(name, kernel_for(_operation(name)), "CUDA")  # type: ignore[no-untyped-call]
        for name, kernel in SPECIAL.items():
            _library.impl(name, kernel, "CUDA")  # type: ignore[no-untyped-call]
