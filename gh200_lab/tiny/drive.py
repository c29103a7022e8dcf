"""Runs a train.py unchanged and watches it from outside: losses, weights after each update, kills, hand-set windows.

What to do comes as JSON in TINY_DRIVE: `trace` (file to write), `kill_at` (SIGKILL before this micro-batch, from 0),
`windows` (accumulation steps of each update, set by hand), `ask` (micro-batch number -> `manual_validation` or
`manual_checkpoint`, asked for through the file `triggers` just before it), `reads` (also note the seconds spent on
reading cache entries since the first micro-batch), `batches` (also note the files of each batch), `signals` (each with `name`, the micro-batch it comes `at`, the
seconds it comes `after` its beginning, and the `rank` it comes to; or instead of `at` the moment it comes `in`: `save`, when
a checkpoint has its model and not yet the rest, `states`, when it lacks those of the datasets, or `validation`), `dawdle`
(micro-batch number -> seconds it waits for), `configs` (rank -> a config of its own), `shard_on_cpus` (FSDP also where there is no GPU;
what each rank holds is noted with its first update), `plain_attention` (torch's mathematical one, to
compare with a device that has no other), `repeatable` (kernels that add in a fixed order, where torch has them),
`measure` (also note the seconds of each update and how much GPU memory is allocated), `leave` (so many bytes of the
GPU's memory are left free by plain memory that is taken before anything else). Or `said` and `turn`, two pipes: after each
update the seconds it took are written to the one, and the next begins when something comes from the other.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class GpuBallast:
    """The GPU's memory from outside of torch's pools: what was free at first, and the plain memory that fills it."""

    def __init__(self, leave: int | None) -> None:
        self._free = torch.cuda.mem_get_info()[0]
        taken = 0 if leave is None else max(0, self._free - leave)
        self._ballast = torch.empty(taken, dtype=torch.uint8, device="cuda") if taken else None
        torch.cuda.reset_peak_memory_stats()

    def values(self) -> dict[str, int]:
        """Bytes in use."""
        ballast = 0 if self._ballast is None else self._ballast.numel()
        gone = self._free - torch.cuda.mem_get_info()[0]
        return {
            "torch_bytes": torch.cuda.max_memory_allocated() - ballast,
            "driver_bytes": max(0, gone - torch.cuda.memory_reserved()),
        }


class Watch:
    """Takes the place of two methods of Accelerate."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.orders = orders
        self.begun = 0
        self.read_seconds = 0.0
        self._memory = GpuBallast(orders.get("leave")) if orders.get("measure") or "leave" in orders else None
        self._began = 0.0
        self._accumulate, self._backward = Accelerator.accumulate, Accelerator.backward

    def install(self) -> None:
        """Patch the Accelerator and hook the optimizer."""
        Accelerator.accumulate = lambda accelerator, *models: self.accumulate(accelerator, *models)
        Accelerator.backward = lambda accelerator, loss, **more: self.backward(accelerator, loss, **more)
        register_optimizer_step_post_hook(self.after_update)
        if self.orders.get("batches"):
            self._note_batches()

    def _note_batches(self) -> None:
        from simpletuner.helpers.training import collate

        paths_of = collate.extract_filepaths

        def noted(examples: Any) -> Any:
            paths = paths_of(examples)
            self._note(batch=[os.path.basename(str(path)) for path in paths])
            return paths

        collate.extract_filepaths = noted

    def accumulate(self, accelerator: Any, *models: Any) -> Any:
        """Carry out orders, then accumulate."""
        if self.begun == self.orders.get("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.begun == 0 and self.orders.get("reads"):
            self._time_reads()
        self._began = self._began or time.perf_counter()
        if self.begun == 0 and self.orders.get("signals"):
            self._await_checkpoint_hooks()
        self._send_signals()
        time.sleep(self.orders.get("dawdle", {}).get(str(self.begun), 0))
        self._set_window(accelerator)
        if wanted := self.orders.get("ask", {}).get(str(self.begun)):
            with open(self.orders["triggers"], "w", encoding="utf-8") as triggers:
                json.dump({wanted: 1}, triggers)
        self.begun += 1
        return self._accumulate(accelerator, *models)

    def _send_signals(self) -> None:
        for order in self.orders.get("signals", ()):
            if order.get("at") == self.begun and _to_this_rank(order):
                number = signal.Signals[order["name"]]
                threading.Timer(order.get("after", 0), os.kill, (os.getpid(), number)).start()

    def _await_checkpoint_hooks(self) -> None:
        from accelerate import accelerator as with_saves

        from simpletuner.helpers.multiaspect.sampler import MultiAspectSampler
        from simpletuner.helpers.training.validation import Validation

        places = {
            "save": (with_saves, "save_accelerator_state"),
            "states": (MultiAspectSampler, "save_state"),
            "validation": (Validation, "process_prompts"),
        }
        for order in self.orders["signals"]:
            if "in" in order and _to_this_rank(order):
                place, name = places[order["in"]]
                setattr(place, name, _signalled(order, getattr(place, name)))

    def backward(self, accelerator: Any, loss: torch.Tensor, **more: Any) -> None:
        """Record the loss, then backward."""
        self._note(loss=float(loss.item()).hex(), accumulation=accelerator.gradient_accumulation_steps)
        self._backward(accelerator, loss, **more)

    def after_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Record an optimizer step."""
        if self._memory is not None:
            torch.cuda.synchronize()
        took = time.perf_counter() - self._began
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for weight in group["params"]:
                own = weight.to_local() if isinstance(weight, DTensor) else weight
                digest.update(own.detach().float().cpu().numpy().tobytes())
        more: dict[str, Any] = {"read_seconds": self.read_seconds} if self.orders.get("reads") else {}
        if self._memory is not None:
            more |= self._memory.values() | {"step_seconds": took}
        if self.orders.get("shard_on_cpus"):
            more["held"] = tensor_bytes(weight for group in optimizer.param_groups for weight in group["params"])
        self._note(weights=digest.hexdigest(), **more)
        self._began = 0.0

    def _time_reads(self) -> None:
        """Both trees have these two, and everything a batch is made of passes them."""
        from simpletuner.helpers.caching.text_embeds import TextEmbeddingCache
        from simpletuner.helpers.caching.vae import VAECache

        for cache, name in ((VAECache, "retrieve_from_cache"), (TextEmbeddingCache, "load_from_cache")):
            setattr(cache, name, self._timed(getattr(cache, name)))

    def _timed(self, read: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return read(*arguments)
            finally:
                self.read_seconds += time.perf_counter() - began

        return timed

    def _set_window(self, accelerator: Any) -> None:
        first = 0
        for size in self.orders.get("windows", ()):
            if first == self.begun:
                accelerator.gradient_accumulation_steps = size
                accelerator.step = 0
            first += size

    def _note(self, **entry: Any) -> None:
        with open(self.orders["trace"], "a", encoding="utf-8") as trace:
            trace.write(json.dumps(entry) + "\n")


def _to_this_rank(order: dict[str, Any]) -> bool:
    return int(order.get("rank", 0)) == int(os.environ.get("RANK", "0"))


def _signalled(order: dict[str, Any], work: Any) -> Any:
    def signalled(*arguments: Any, **more: Any) -> Any:
        time.sleep(order.get("after", 0))
        os.kill(os.getpid(), signal.Signals[order["name"]])
        return work(*arguments, **more)

    return signalled


def tensor_bytes(weights: Iterable[torch.Tensor]) -> dict[str, int]:
    """How many weights this rank has a shard of, and their bytes: its own, and those of all ranks."""
    shards = [weight for weight in weights if isinstance(weight, DTensor)]
    own = sum(shard.to_local().nbytes for shard in shards)
    return {"shards": len(shards), "own": own, "all": sum(shard.numel() * shard.element_size() for shard in shards)}


def shard_on_cpus() -> None:
    """Accelerate 1.15 takes its FSDP path for GPUs only, and gives CPU ranks DDP without a word."""
    begin = AcceleratorState.__init__

    def begin_sharded(state: Any, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        begin(state, *args, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is None or state.distributed_type != DistributedType.MULTI_CPU:
            return
        state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        if state._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(state._mixed_precision)
        state.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = begin_sharded


class Turns:
    """Reports how long each update took, and waits."""

    def __init__(self, said: int, turn: int) -> None:
        self._said, self._turn = said, turn
        self._began = time.perf_counter()

    def install(self) -> None:
        """Patch the Accelerator and hook the optimizer."""
        register_optimizer_step_post_hook(self.after_update)

    def after_update(self, *_: Any) -> None:
        """Record an optimizer step."""
        os.write(self._said, f"{time.perf_counter() - self._began}\n".encode())
        os.read(self._turn, 1)
        self._began = time.perf_counter()


def _add_in_a_fixed_order() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A property of that module, which types do not know: memory that nobody reads need not be cleared.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    torch.backends.cudnn.benchmark = False
    for enable in (torch.backends.cuda.enable_flash_sdp, torch.backends.cuda.enable_mem_efficient_sdp):
        enable(False)


def main() -> None:
    """Train with what GH200_TINY_ORDERS asks for."""
    orders: dict[str, Any] = json.loads(os.environ["TINY_DRIVE"])
    if orders.get("repeatable"):
        _add_in_a_fixed_order()
    if other := orders.get("configs", {}).get(os.environ.get("RANK", "0")):
        os.environ["CONFIG_PATH"] = other
    watcher = Turns(orders["said"], orders["turn"]) if "turn" in orders else Watch(orders)
    watcher.install()
    if orders.get("shard_on_cpus"):
        shard_on_cpus()
    if orders.get("plain_attention"):
        torch.backends.cuda.enable_flash_sdp(False)
    if not torch.cuda.is_available():
        # Upstream pins wherever MPS is absent and fails here; the fork asks first. For both the same: no pinning.
        torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    # This directory, where Python looks first: none of its names are upstream's business.
    sys.path.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
