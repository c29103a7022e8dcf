"""Which attention backends work on this machine, asked of upstream's own selection code in a process of the fork."""

from __future__ import annotations

import ast
import json
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SECTIONS = "simpletuner/simpletuner_sdk/server/services/field_registry/sections"
LIST = "attention_mechanisms"
SHAPE = (1, 4, 2, 8)


def backend_names(tree: Path) -> list[str]:
    """As upstream's registry of options lists them; read, not imported, because that takes ten seconds."""
    for path in sorted((tree / SECTIONS).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [LIST]:
                return list(dict.fromkeys(ast.literal_eval(node.value)))
    raise LookupError(f"{tree / SECTIONS}: no list named {LIST}: upstream names its attention backends elsewhere now")


def reason_against(name: str) -> str:
    """Empty if the backend computes attention and its gradient here, both ways upstream's models ask for it."""
    import torch
    from diffusers.models.attention_dispatch import dispatch_attention_fn
    from diffusers.utils import is_xformers_available
    from simpletuner.helpers.training.attention_backend import AttentionBackendController, AttentionPhase

    if name == "xformers" and not is_xformers_available():
        return "the package xformers is not installed"
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def made() -> Any:
        return torch.ones(SHAPE, dtype=torch.bfloat16, device=device, requires_grad=True)

    settings = SimpleNamespace(attention_mechanism=name, sageattention_usage="training")
    try:
        AttentionBackendController.apply(settings, AttentionPhase.TRAIN)
        dispatch_attention_fn(made(), made(), made()).sum().backward()
        torch.nn.functional.scaled_dot_product_attention(made(), made(), made()).sum().backward()
    except Exception as problem:
        return textwrap.shorten(str(problem) or type(problem).__name__, 150)
    finally:
        AttentionBackendController.restore_default()
    return ""


if __name__ == "__main__":
    answers = {name: reason_against(name) for name in sys.argv[2:]}
    Path(sys.argv[1]).write_text(json.dumps(answers), encoding="utf-8")
