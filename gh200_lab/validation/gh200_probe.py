"""What a process of the fork does for scripts/test_gh200_features.sh: it writes what it saw as JSON, judges nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

Seen = dict[str, Any]


def memory(_: Path) -> Seen:
    """Hints on ordinary and on cached tensors; an arena filled with every dtype and stride a cache has."""
    import torch

    from simpletuner.gh200.backends.tensors.arena import TensorArena
    from simpletuner.gh200.backends.tensors.blocks import CacheBudget
    from simpletuner.gh200.memory import hints as uvm
    from simpletuner.gh200.memory.batch import optimize_batch_for_gh200
    from simpletuner.gh200.memory.driver import load_driver

    uvm.set_uvm_hint_override(True)
    arena = TensorArena(CacheBudget(64 << 20), "device", block_size=4 << 20)
    numbers = torch.arange(16 * 64 * 64).reshape(16, 64, 64)
    tensors = [numbers.to(kind) for kind in (torch.bfloat16, torch.float32, torch.int64, torch.uint8)]
    tensors += [tensors[1].transpose(0, 2), tensors[1][::2], torch.empty(0)]
    slots = [arena.hold(tensor) for tensor in tensors]
    hints = (uvm.prefer_cpu_residency, uvm.prefer_gpu_residency, uvm.prefetch_to_device)
    answers = {f"{hint.__name__}, {name}": hint(tensor) for hint in hints for name, tensor in _of(slots[1], tensors[1])}
    optimize_batch_for_gh200({"latents": slots[0].tensor, "text": [tensors[0], {"mask": tensors[3]}]})
    seen = {
        "driver": str(load_driver()),
        "managed": arena.managed,
        "equal": [torch.equal(slot.tensor, tensor) for slot, tensor in zip(slots, tensors, strict=True)],
        "strides": [slot.tensor.stride() == tensor.stride() for slot, tensor in zip(slots, tensors, strict=True)],
        "answers": answers,
        "cached_bytes": arena.stats().payload_bytes,
        "counts": uvm.current().report(),
    }
    for slot in slots:
        arena.release(slot)
    slots.clear()
    return seen | {"blocks_left": arena.close()}


def _of(slot: Any, tensor: Any) -> tuple[tuple[str, Any], ...]:
    return (("cached", slot.tensor), ("ordinary", tensor))


def staging(directory: Path) -> Seen:
    """The dataset in memory here, read back; a second process attaches to the same memory and reads it too."""
    backend = _backend(directory)
    seen = {"here": _read_back(backend, directory), "staged": backend.staged_files}
    handle = directory.parent / "handle.json"
    handle.write_text(json.dumps(backend._arena.handle().as_dict()), encoding="utf-8")
    second = directory.parent / "second.json"
    command = [sys.executable, __file__, "attach", str(second), str(directory)]
    subprocess.run(command, check=True, timeout=240)
    seen["second"] = json.loads(second.read_text(encoding="utf-8"))
    backend.release()
    return seen | {"after_release": backend.staged_files}


def _backend(directory: Path) -> Any:
    from simpletuner.gh200 import GH200InMemoryBackend

    return GH200InMemoryBackend(None, "shapes", instance_data_dir=directory, options={"num_workers": 2})


def attach(directory: Path) -> Seen:
    """Stage files and attach from another process."""
    from simpletuner.gh200.backends.ram import arena

    handle = json.loads((directory.parent / "handle.json").read_text(encoding="utf-8"))
    attached = arena.attach(arena.Handle.from_dict(handle))
    here = {Path(name).name: attached.read(number) == Path(name).read_bytes() for name, number in attached.names()}
    return {"here": here, "staged": attached.files}


def _read_back(backend: Any, directory: Path) -> dict[str, bool]:
    """For each file: it is staged, and a read returns the file's bytes."""
    found = {}
    for path in sorted(entry for entry in directory.rglob("*") if entry.is_file()):
        found[path.name] = backend.is_staged(path) and backend.read(str(path)) == path.read_bytes()
    return found


def ramp(_: Path) -> Seen:
    """The fork's schedule and its window opener around a real Accelerator, beside windows cut by hand."""
    import torch
    from accelerate import Accelerator

    from simpletuner.gh200 import GH200GradientRamp
    from simpletuner.gh200.ramp.apply import RampControl

    schedules = {}
    for shape in ("quadratic", "linear", "staircase"):
        schedule = GH200GradientRamp(1, 4, 12, shape=shape)
        schedules[shape] = [schedule.accumulation_steps(window) for window in range(10)]
    schedule = GH200GradientRamp(1, 4, 12)
    rows = torch.sin(torch.arange(schedule.micro_batches_for(10) * 5, dtype=torch.float64)).reshape(-1, 5)
    accelerator = Accelerator(cpu=True)
    weight = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
    trainer = SimpleNamespace(
        config=SimpleNamespace(gradient_accumulation_steps=1, train_batch_size=1, total_num_batches=len(rows)),
        accelerator=accelerator,
        state={"global_step": 0, "current_epoch": 1},
        validation=None,
    )
    control = RampControl(trainer, schedule, "target")
    updates = []
    for row in rows:
        control.begin()
        with accelerator.accumulate():
            accelerator.backward((weight @ row).tanh().square())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            trainer.state["global_step"] += 1
            updates.append(weight.detach().tolist())
    return {"schedules": schedules, "updates": updates, "by_hand": _by_hand(rows, schedules["quadratic"])}


def _by_hand(rows: Any, windows: list[int]) -> list[list[float]]:
    """Plain torch: each window is one mean gradient and one step."""
    import torch

    weight, first, updates = torch.ones(5, dtype=torch.float64), 0, []
    for size in windows:
        leaf = weight.clone().requires_grad_()
        torch.stack([(leaf @ row).tanh().square() for row in rows[first : first + size]]).mean().backward()
        assert leaf.grad is not None
        weight, first = weight - 0.1 * leaf.grad, first + size
        updates.append(weight.tolist())
    return updates


PROBES: dict[str, Callable[[Path], Seen]] = {"memory": memory, "staging": staging, "attach": attach, "ramp": ramp}

if __name__ == "__main__":
    import simpletuner

    answer = PROBES[sys.argv[1]](Path(sys.argv[3]))
    Path(sys.argv[2]).write_text(json.dumps(answer | {"package": simpletuner.__file__}, default=str), encoding="utf-8")
