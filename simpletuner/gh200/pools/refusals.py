"""Where managed memory is refused before anything is loaded: what was never shown to give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import GH200Error


class ManagedMemoryRefused(GH200Error):
    """The run asks for managed memory together with something it was never shown to be exact with."""


def _set(key: str) -> Callable[[Any], bool]:
    return lambda trainer: bool(getattr(trainer.config, key, None))


def _distributed(kind: str) -> Callable[[Any], bool]:
    return lambda trainer: getattr(trainer.accelerator.distributed_type, "value", "") == kind


def _is(key: str, *words: str) -> Callable[[Any], bool]:
    return lambda trainer: str(getattr(trainer.config, key, None)) in words


def _offloads_optimizer(trainer: Any) -> bool:
    method = str(getattr(trainer.config, "optimizer_cpu_offload_method", None) or "none").lower()
    return method != "none" or bool(getattr(trainer.config, "optimizer_offload_gradients", False))


# The operator's own key -> whether it is used, and what would be unproved.
REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "DeepSpeed": (_distributed("DEEPSPEED"), "its engine allocates and frees the state itself"),
    "FSDP": (_distributed("FSDP"), "its shards are made, freed and gathered by torch, outside of our seams"),
    "fsdp_enable": (_set("fsdp_enable"), "its shards are made, freed and gathered by torch, outside of our seams"),
    "ramtorch": (_set("ramtorch"), "it streams weights from CPU memory by itself"),
    "musubi_blocks_to_swap": (_set("musubi_blocks_to_swap"), "block swap moves weights by itself"),
    "optimizer_cpu_offload_method": (_offloads_optimizer, "the optimizer's state is already on the CPU"),
    "optimizer_release_gradients": (_set("optimizer_release_gradients"), "the optimizer steps inside backward"),
    "offload_during_save": (_set("offload_during_save"), "it moves the weights out of their pool and back"),
    "gradient_checkpointing_offload_attention": (
        _set("gradient_checkpointing_offload_attention"),
        "it moves activations by itself",
    ),
    "gradient_checkpointing_backend": (
        _is("gradient_checkpointing_backend", "unsloth", "unsloth-ffn"),
        "it moves activations by itself",
    ),
    "dynamo_mode": (
        _is("dynamo_mode", "reduce-overhead", "max-autotune"),
        "CUDA graphs keep pools of their own and replay addresses",
    ),
    "dynamo_backend": (_is("dynamo_backend", "cudagraphs"), "CUDA graphs keep pools of their own and replay addresses"),
}


def refuse(trainer: Any) -> None:
    found = [f"{name}: {why}" for name, (used, why) in REFUSED.items() if used(trainer)]
    if found:
        raise ManagedMemoryRefused(
            "gh200_optimizations.managed_memory is refused in this run.",
            why="it was never shown to give the same bits together with:\n" + "\n".join(found),
            fix="turn that off (managed memory makes most of it needless), or set managed_memory to off",
        )
