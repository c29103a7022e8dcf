"""Whether this machine can pin host memory; upstream assumes it wherever MPS is absent."""

from __future__ import annotations

from functools import cache


def pinning_impossible(mps_available: bool) -> bool:
    """Upstream's own answer, or True where `pin_memory` would raise for want of an accelerator."""
    return mps_available or not _can_pin()


@cache
def _can_pin() -> bool:
    import torch

    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        return True
    # Older releases, and builds whose accelerator is not there: only trying tells.
    try:
        torch.empty(1).pin_memory()
    except (RuntimeError, NotImplementedError, AssertionError):
        return False
    return True
