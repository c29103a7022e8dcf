"""A rank of integration/ramp/test_fsdp2.py: a small model sharded over gloo ranks, windows of changing size; writes its results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor

from gh200_lab.tiny.drive import shard_on_cpus, tensor_bytes

WINDOWS = (1, 3, 2)
WIDTH = 8


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.line(batch))


def model() -> torch.nn.Module:
    torch.manual_seed(26)
    return torch.nn.Sequential(Block(), Block(), torch.nn.Linear(WIDTH, 1))


def batches(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [torch.randn(4, WIDTH, generator=generator) for _ in range(sum(WINDOWS))]


def whole(tensor: torch.Tensor) -> list[float]:
    found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return [float(value) for value in found.detach().flatten()]


def sharded() -> dict[str, Any]:
    shard_on_cpus()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    network = model()
    network, optimizer = accelerator.prepare(network, torch.optim.SGD(network.parameters(), lr=0.1))
    given = iter(batches(accelerator.process_index))
    gradients: list[list[list[float]]] = []
    for size in WINDOWS:
        accelerator.gradient_accumulation_steps, accelerator.step = size, 0
        for _ in range(size):
            with accelerator.accumulate(network):
                accelerator.backward(network(next(given)).square().mean())
                if accelerator.sync_gradients:
                    gradients.append([whole(weight.grad) for weight in network.parameters()])
                optimizer.step()
                optimizer.zero_grad()
    weights = [whole(weight) for weight in network.parameters()]
    kind = accelerator.distributed_type.value
    answer = {
        "kind": kind,
        "parameters": tensor_bytes(network.parameters()),
        "gradients": gradients,
        "weights": weights,
    }
    accelerator.end_training()
    return answer


def one_rank(ranks: int) -> dict[str, Any]:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    given = list(zip(*(batches(rank) for rank in range(ranks)), strict=True))
    gradients: list[list[list[float]]] = []
    for size in WINDOWS:
        taken, given = given[:size], given[size:]
        loss = sum((network(batch).square().mean() for row in taken for batch in row), torch.zeros(()))
        (loss / (size * ranks)).backward()
        gradients.append([whole(weight.grad) for weight in network.parameters() if weight.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
    return {"gradients": gradients, "weights": [whole(weight) for weight in network.parameters()]}


if __name__ == "__main__":
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_text(json.dumps(sharded()))
    # Modules keep FSDP's process groups beyond their destruction; with them torch 2.14 sometimes aborts at interpreter exit.
    os._exit(0)
