"""Two ranks, each on its own device; accelerate asks for NCCL and gets what CUDA_SIM_BACKEND says."""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from torch import nn


def main() -> None:
    accelerator = Accelerator()
    rank, device = accelerator.process_index, accelerator.device
    assert accelerator.num_processes == 2 and device == torch.device("cuda", rank), (rank, device)
    assert torch.distributed.get_backend() == "gloo"
    assert accelerator.gather(torch.full((2,), float(rank), device=device)).tolist() == [0, 0, 1, 1]
    assert accelerator.reduce(torch.full((3,), rank + 1.0, device=device), reduction="mean").tolist() == [1.5] * 3
    torch.manual_seed(0)
    plain, net = nn.Linear(4, 2), nn.Linear(4, 2)
    net.load_state_dict(plain.state_dict())
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.1))
    batches = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(7))
    accelerator.backward(model(batches[rank].to(device)).square().mean())
    plain(batches.flatten(0, 1)).square().mean().backward()
    gradients = [parameter.grad.cpu() for parameter in model.parameters()]
    expected = [parameter.grad for parameter in plain.parameters()]
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, expected, strict=True)), (gradients, expected)
    optimizer.step()
    accelerator.wait_for_everyone()
    os.write(1, f"RIGHT {rank}\n".encode())  # in one piece: two ranks share the terminal
    accelerator.end_training()


if __name__ == "__main__":
    main()
