"""One small training on the simulated device, in one of the ways beyond HBM; prints what crossed the link per step."""

from __future__ import annotations

import hashlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.offload.hooks import begin_pools
from simpletuner.gh200.offload.plan import HBM, lower_bound

from ..memory_run import begin_memory_run
from .offload import RESULT

# Weights of more than 10 MB: torch gives them segments of their own, and fragmentation hides nothing.
LAYERS, WIDTH, OF_RAMTORCH = 6, 1632, 3


class EmaModel:
    """As much of SimpleTuner's as offload works with."""

    def __init__(self, parameters: list[Any]) -> None:
        self.shadow_params = [parameter.detach().clone() for parameter in parameters]
        self._tracked_param_ids = [id(parameter) for parameter in parameters]
        self.foreach, self.args = True, SimpleNamespace()

    def _should_use_foreach(self, one: list[Any], other: list[Any]) -> bool:
        return self.foreach and len({tensor.dtype for tensor in (*one, *other)}) == 1

    def step(self, parameters: Any, global_step: int | None = None) -> None:
        """One update."""
        with torch.no_grad():
            difference = torch._foreach_sub(self.shadow_params, list(parameters))
            torch._foreach_sub_(self.shadow_params, difference, alpha=0.01)


class SmallTrainer:
    """The methods of SimpleTuner's Trainer that offload overrides, around a stack of linear layers."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked, self.device = asked, torch.device("cuda:0")
        self.accelerator = SimpleNamespace(device=self.device, distributed_type=SimpleNamespace(value="NO"))
        clip = 1.0 if asked.get("clip") else 0.0
        self.config = SimpleNamespace(use_ema=asked.get("ema", False), ema_device="accelerator", max_grad_norm=clip)
        if asked.get("ramtorch"):
            self.config.ramtorch = True
        self.optimizer: Any = None
        self.ema_model: EmaModel | None = None
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def move_models(self) -> None:
        """Weights to the GPU; with RamTorch half of the layers stay with the CPU."""
        if self.asked.get("ramtorch"):
            from simpletuner.helpers.ramtorch.modules.linear import Linear

            for number in range(OF_RAMTORCH):
                plain = self.model[number]
                made = Linear(WIDTH, WIDTH, device="cuda:0")
                made.weight.data.copy_(plain.weight.data)
                made.bias.data.copy_(plain.bias.data)
                self.model[number] = made
            self.model[OF_RAMTORCH:].to(self.device)
        else:
            self.model.to(self.device)

    def init_prepare_models(self) -> None:
        """The optimizer."""
        if self.asked["mode"] == "torchao":
            from torchao.optim import CPUOffloadOptimizer  # type: ignore[import-untyped]

            self.optimizer = CPUOffloadOptimizer(self.model.parameters(), torch.optim.AdamW, lr=1e-4)
        else:
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def init_ema_model(self) -> None:
        """EMA, where it is asked for."""
        if self.asked.get("ema"):
            self.ema_model = EmaModel(list(self.model.parameters()))

    def train(self, steps: int) -> list[str]:
        """The losses of all steps, exactly."""
        losses = []
        for step in range(steps):
            batch = torch.linspace(-1, 1, 4 * WIDTH, device=self.device).view(4, WIDTH) * (1 + step)
            loss = self.model(batch).square().mean()
            loss.backward()
            torch.cuda.synchronize()
            losses.append(loss.item().hex())
            if self.config.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            if self.ema_model is not None:
                self.ema_model.step(self.model.parameters(), global_step=step)
            self.optimizer.zero_grad(set_to_none=True)
        return losses

    def digest(self) -> str:
        """Of all weights and EMA."""
        found = hashlib.sha256()
        for tensor in (*self.model.parameters(), *(self.ema_model.shadow_params if self.ema_model else ())):
            found.update(tensor.detach().cpu().numpy().tobytes())
        return found.hexdigest()


def main() -> int:
    """Trains as the argument asks, and prints one line."""
    # On the path of tests/cuda_sim/run.sh.
    from cuda_sim_torch.traffic import read_traffic  # type: ignore[import-not-found]

    asked = json.loads(sys.argv[1])
    trainer = SmallTrainer(asked)
    result: dict[str, Any] = {}
    if asked["mode"] in ("auto", "state", "all"):
        values = {"managed_memory": asked["mode"], "uvm_oversubscription_ratio": 20}
        settings = read_settings({"gh200_optimizations": values}, {})
        run = begin_memory_run(CacheOptions.from_settings(settings), settings)
        run.hints.settle_on(trainer.device)
        begin_pools(trainer, run)
    try:
        trainer.move_models()
        trainer.init_prepare_models()
        trainer.init_ema_model()
        result["losses"] = trainer.train(asked["steps"])
    except torch.cuda.OutOfMemoryError:
        print(RESULT + json.dumps({"out_of_memory": True}))
        return 0
    result |= {"steps": read_traffic()["steps"], "digest": trainer.digest()}
    result["parameters"] = sum(p.numel() for p in trainer.model.parameters() if p.is_cuda)
    if asked["mode"] == "auto":
        plan = trainer.init_prepare_models.__self__.placement.plan  # type: ignore[attr-defined]
        result["plan"] = {"places": plan.places, "seconds": plan.seconds, "lower_bound": lower_bound(plan)}
        result["plan"]["away"] = [kind for kind, place in plan.places.items() if place != HBM]
    print(RESULT + json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
