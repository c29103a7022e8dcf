"""Where managed memory is rejected before anything is loaded: what was never shown to be bit-identical."""

from __future__ import annotations

from typing import Any

from ..errors import GH200Error


class ManagedMemoryRejected(GH200Error):
    """The run asks for managed memory together with something it was never shown to be exact with."""


_SHARDS = "its shards are made, freed and gathered by torch, outside of our hooks"
_ACTIVATIONS = "it moves activations by itself"
_GRAPHS = "CUDA graphs keep pools of their own and replay addresses"
# The operator's own key, or the launcher's: what would be unproved.
REJECTED = {
    "DeepSpeed": "its engine allocates and frees the state itself",
    "FSDP": _SHARDS,
    "fsdp_enable": _SHARDS,
    "ramtorch": "it streams weights from CPU memory by itself",
    "musubi_blocks_to_swap": "block swap moves weights by itself",
    "optimizer_cpu_offload_method": "the optimizer's state is already on the CPU",
    "optimizer_release_gradients": "the optimizer steps inside backward",
    "offload_during_save": "it moves the weights out of their pool and back",
    "gradient_checkpointing_offload_attention": _ACTIVATIONS,
    "gradient_checkpointing_backend": _ACTIVATIONS,
    "dynamo_mode": _GRAPHS,
    "dynamo_backend": _GRAPHS,
}

# With "auto" weights are never in a pool, and what is on the CPU is left there.
BESIDE_A_PLAN = ("ramtorch",)


def reject(trainer: Any, planned: bool = False) -> None:
    """Raises where the config asks for one of them."""
    config, distributed = vars(trainer.config), getattr(trainer.accelerator.distributed_type, "value", "")
    offload = str(config.get("optimizer_cpu_offload_method") or "none").lower()
    not_a_switch = {
        "DeepSpeed": distributed == "DEEPSPEED",
        "FSDP": distributed == "FSDP",
        "optimizer_cpu_offload_method": offload != "none" or bool(config.get("optimizer_offload_gradients")),
        "gradient_checkpointing_backend": str(config.get("gradient_checkpointing_backend"))
        in ("unsloth", "unsloth-ffn"),
        "dynamo_mode": str(config.get("dynamo_mode")) in ("reduce-overhead", "max-autotune"),
        "dynamo_backend": str(config.get("dynamo_backend")) == "cudagraphs",
    }
    rejected = {key: why for key, why in REJECTED.items() if not (planned and key in BESIDE_A_PLAN)}
    found = [f"{key}: {why}" for key, why in rejected.items() if not_a_switch.get(key, config.get(key))]
    if found:
        raise ManagedMemoryRejected(
            "gh200_optimizations.managed_memory is rejected in this run.",
            why="it was never shown to be bit-identical together with:\n" + "\n".join(found),
            fix="turn that off (managed memory makes most of it needless), or set managed_memory to off",
        )
