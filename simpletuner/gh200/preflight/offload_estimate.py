"""What `managed_memory` will do with a run, before anything is loaded: the plan and its seconds, or why it cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..memory.limits import GB
from ..offload import plan as offload
from ..offload.optimizers import is_streamable_choice
from .config import gb
from .keys import number, truth
from .memory_estimate import Memory, is_fp32, splits_weights
from .report import Kind


def offload_of(
    mode: str, memory: Memory, config: Mapping[str, Any], gpu: int, available: int
) -> tuple[Kind | None, str]:
    """A fact (None), a warning, or a problem; `available` is the machine's memory that may be taken."""
    if mode == "off" or not gpu or splits_weights(config):
        return None, ""
    capacity = _capacity(config, gpu, available)
    need = _need(memory, config, int(offload.ACTIVATION_SHARE * gpu))
    if mode == "auto":
        return _planned(need, capacity, config)
    traffic = offload.managed_traffic(need, gpu, everything=mode == "all")
    text = f'"{mode}" costs at least {traffic.seconds(capacity.link):.2g} s per optimizer step over the link'
    if traffic.migrated:
        return "warnings", f'{text}: pages beyond HBM migrate at every touch; "auto" plans without faults'
    return None, text


def _planned(need: offload.Need, capacity: offload.Capacity, config: Mapping[str, Any]) -> tuple[Kind | None, str]:
    certain, plan = offload.make_plan(replace(need, activations=0), capacity), offload.make_plan(need, capacity)
    if isinstance(plan, offload.Plan):
        return None, plan.describe()
    short = certain if isinstance(certain, offload.DoesNotFit) else plan
    known = {"checkpointing": truth(config.get("gradient_checkpointing")), "whole": is_fp32(config)}
    known |= {"bf16_state": "bf16" in str(config.get("optimizer", "")), "lora": config.get("model_type") == "lora"}
    change = offload.cheapest_change(offload.possible_changes(need, **known), capacity)
    fix = change.text if change else "train on a GPU with more memory"
    estimate = "" if short is certain else ", with a quarter of HBM estimated for activations"
    kind: Kind = "problems" if short is certain else "warnings"
    return kind, f"{gb(short.missing)} of {short.where} are missing{estimate}; {fix}"


def _capacity(config: Mapping[str, Any], gpu: int, available: int) -> offload.Capacity:
    block = config.get("gh200_optimizations")
    block = block if isinstance(block, Mapping) else {}
    bounds = [available, int(gpu * (number(block.get("uvm_oversubscription_ratio")) or 5))]
    limit = number(block.get("managed_memory_limit_gb"))
    return offload.Capacity(gpu, min([*bounds, int(limit * GB)] if limit else bounds))


def _need(memory: Memory, config: Mapping[str, Any], activations: int) -> offload.Need:
    streamable = is_streamable_choice(str(config.get("optimizer") or ""))
    return offload.Need(
        memory.weights,
        memory.gradients,
        memory.optimizer,
        activations=activations,
        scratch=0 if streamable else 2 * memory.gradients,
        streamable=streamable,
        window=int(number(config.get("gradient_accumulation_steps")) or 1),
        clipped=number(config.get("max_grad_norm")) != 0,
    )
