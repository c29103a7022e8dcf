"""Run in one tree: selects every attention backend through upstream's own code and trains with it. Writes JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def choices() -> list[str]:
    """What upstream's command line offers."""
    from simpletuner.helpers.configuration.cmd_args import get_argument_parser

    for action in get_argument_parser()._actions:
        if action.dest == "attention_mechanism":
            return list(action.choices or [])
    raise LookupError("upstream's command line has no --attention_mechanism")


def compute(backend: str) -> dict[str, Any]:
    """The same tiny attention and its gradient, as a model of diffusers and as an older one calls for it."""
    import torch
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    from diffusers.utils.import_utils import is_xformers_available

    from simpletuner.helpers.training.attention_backend import AttentionBackendController, AttentionPhase

    if backend == "xformers" and not is_xformers_available():
        # Upstream takes PyTorch's own in its place.
        raise ImportError("the package xformers is not installed")
    config = SimpleNamespace(attention_mechanism=backend, sageattention_usage="training+inference", sla_config=None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    drawn = torch.randn(3, 1, 64, 2, 64, generator=torch.Generator().manual_seed(7))
    query, key, value = (part.requires_grad_() for part in drawn.to(device, torch.bfloat16))
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(part.float().transpose(1, 2) for part in (query, key, value))
    )
    try:
        AttentionBackendController.apply(config, AttentionPhase.TRAIN)
        active = AttentionBackendController.active_backend()
        dispatched = dispatch_attention_fn(query, key, value)
        direct = torch.nn.functional.scaled_dot_product_attention(
            *(part.transpose(1, 2) for part in (query, key, value))
        )
        (dispatched.sum() + direct.sum()).backward()
    finally:
        AttentionBackendController.restore_default()
    outputs = [dispatched.detach().transpose(1, 2), direct.detach()]
    results = [*outputs, *(part.grad for part in (query, key, value))]
    return {
        "active": active,
        "digests": [hashlib.sha256(one.float().cpu().contiguous().numpy().tobytes()).hexdigest() for one in results],
        "worst": max(float((out.float() - exact.detach()).abs().max()) for out in outputs),
    }


def main() -> None:
    """Print the results as JSON."""
    import simpletuner

    found: dict[str, Any] = {}
    for backend in choices():
        try:
            found[backend] = compute(backend)
        except Exception as problem:
            found[backend] = {"unavailable": " ".join(f"{type(problem).__name__}: {problem}".split())[:200]}
    Path(sys.argv[1]).write_text(json.dumps({"from": simpletuner.__file__, "seen": found}), encoding="utf-8")


if __name__ == "__main__":
    main()
