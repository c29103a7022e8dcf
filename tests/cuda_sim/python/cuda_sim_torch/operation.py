"""One aten operation on CUDA tensors, run by its CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .memory import CPU, READS, WRITES, on_cpu, to_device
from .random_numbers import cpu_generator

CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# CUDA kernels reject CPU tensors beside theirs, but for indices, which they fetch themselves.
TAKES_CPU_TENSORS = frozenset({"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_foreach_copy_"})

# In-place operations that do not look at what was there.
ONLY_WRITES = frozenset(
    f"aten::{name}" for name in ("zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "_foreach_zero_")
)

Kernel = Callable[..., Any]


class _Arguments:
    """The arguments of one call with CPU tensors in place of the device's."""

    def __init__(self, takes_cpu_tensors: bool) -> None:
        self.takes_cpu_tensors = takes_cpu_tensors
        self.device: torch.device | None = None
        # By the id of the CPU tensor, which has to live as long as its id is used.
        self.pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def convert(self, value: Any, access: int = READS) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, access)
        if isinstance(value, list | tuple):
            return [self.convert(item, access) for item in value]
        if isinstance(value, torch.device):
            self._meet(value)
            return CPU
        return value

    def _tensor(self, tensor: torch.Tensor, access: int) -> torch.Tensor:
        if tensor.device.type != "cuda":
            if tensor.dim() and not self.takes_cpu_tensors:
                self._reject(tensor.device)
            return tensor
        self._meet(tensor.device)
        seen = on_cpu(tensor, access)
        self.pairs[id(seen)] = (seen, tensor)
        return seen

    def _meet(self, device: torch.device) -> None:
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if self.device is not None and self.device != device:
            self._reject(device)
        self.device = device

    def _reject(self, other: torch.device) -> None:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {self.device} and {other}!"
        )

    def give_back(self, result: Any) -> Any:
        if isinstance(result, torch.Tensor):
            pair = self.pairs.get(id(result))
            if pair is None:
                return to_device(result, self.device or torch.device("cuda"))
            return _resized(pair[1], result) if result.shape != pair[1].shape else pair[1]
        if isinstance(result, list | tuple):
            return type(result)(self.give_back(item) for item in result)
        return result


def _resized(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """An empty `out=` tensor that the CPU's kernel has given the shape of its result."""
    out.resize_(result.shape).as_strided_(result.shape, result.stride())
    on_cpu(out, WRITES).copy_(result)
    return out


def _access(argument: torch._C.Argument, operation: str) -> int:
    """What a kernel does with an argument: an `out=` tensor is only written, an in-place one read and written."""
    alias = argument.alias_info
    if alias is None or not alias.is_write:
        return READS
    return WRITES if argument.is_out or operation in ONLY_WRITES else READS | WRITES


def kernel_for(operation: torch._ops.OpOverload) -> Kernel:
    """A kernel for the CUDA key; what the schema decides is decided here, once."""
    schema = operation._schema
    takes_cpu_tensors = schema.name in TAKES_CPU_TENSORS
    # The dispatcher unpacks a number for `other` here, and their `out=` overloads take only tensors.
    bitwise = schema.name.startswith("aten::bitwise_")
    draws = any(argument.name == "generator" for argument in schema.arguments)
    access = {argument.name: _access(argument, schema.name) for argument in schema.arguments}
    order = list(access.values())
    # Not redispatch(): the dispatcher hands over plain numbers for some tensors, which only a call takes back.
    call = operation._op

    def run(*positional: Any, **named: Any) -> Any:
        arguments = _Arguments(takes_cpu_tensors)
        converted = [arguments.convert(value, how) for value, how in zip(positional, order, strict=False)]
        options = {name: arguments.convert(value, access[name]) for name, value in named.items()}
        if draws:
            assert arguments.device is not None
            options["generator"] = cpu_generator(named.get("generator"), arguments.device)
        options.pop("pin_memory", None)
        if bitwise:
            converted = [torch.tensor(value) if isinstance(value, int) else value for value in converted]
        return arguments.give_back(call(*converted, **options))

    return run
