"""Stock torch on the simulated device: two devices of 256 MiB in numa mode, 512 MiB of managed memory."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import Any

import torch
from driver import MIB, PAGE, made, managed, resident
from torch import nn
from torch.nn import functional

CUDA = torch.device("cuda", 0)
LOG = Path(os.environ["CUDA_SIM_LOG"])


def logged(name: str) -> int:
    return sum(line.startswith(f"{name} ") for line in LOG.read_text().splitlines())


def check_torch_says_what_the_machine_is() -> None:
    assert torch.cuda.is_available() and torch.cuda.device_count() == 2
    properties = torch.cuda.get_device_properties(1)
    assert (properties.name, properties.major, properties.total_memory) == ("Simulated 1", 9, 256 * MIB)
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability(0) == (9, 0)


def check_allocator_counts_what_it_holds() -> None:
    before, free = torch.cuda.memory_allocated(0), torch.cuda.mem_get_info(0)[0]
    kept = torch.empty(40 * MIB, dtype=torch.uint8, device=CUDA)
    assert torch.cuda.memory_allocated(0) == before + 40 * MIB and torch.cuda.mem_get_info(0)[0] <= free - 40 * MIB
    del kept
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info(0)[0] >= free


def check_out_of_memory_is_torchs_own_error() -> None:
    try:
        torch.empty(300 * MIB, dtype=torch.uint8, device=CUDA)
    except torch.OutOfMemoryError as error:
        assert "256.00 MiB" in str(error), error
    else:
        raise AssertionError("300 MiB fitted into 256")
    assert torch.ones(3, device=CUDA).sum().item() == 3


def check_pinned_memory_streams_and_events() -> None:
    pinned = torch.arange(1000.0).pin_memory()
    assert pinned.is_pinned() and not torch.ones(3).is_pinned()
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(stream):
        start.record()
        there = pinned.to(CUDA, non_blocking=True)
        end.record()
    torch.cuda.current_stream().wait_event(end)
    there.record_stream(torch.cuda.current_stream())
    end.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.equal(there.cpu(), pinned)


def check_copies_of_all_shapes_and_types() -> None:
    host = torch.randn(4, 6, 8)
    there = host.to(CUDA)
    for view in (lambda t: t, lambda t: t.transpose(0, 2), lambda t: t[:, 1:4, ::2], lambda t: t[0, 0, 0]):
        assert torch.equal(view(there).cpu(), view(host))
        assert torch.equal(view(there).to(torch.bfloat16).cpu(), view(host).to(torch.bfloat16))
        assert torch.equal(view(there).contiguous().cpu(), view(host).contiguous())
    grown = torch.zeros(4, 6, 8, device=CUDA)
    grown.transpose(0, 2).copy_(host.transpose(0, 2).half())
    assert torch.equal(grown.cpu(), host.half().float())
    assert torch.equal(there.to("cuda:1").cpu(), host) and torch.equal(there[:, ::2].to("cuda:1").cpu(), host[:, ::2])


def check_one_read_is_one_copy_and_one_wait() -> None:
    value = torch.ones(3, device=CUDA).sum()
    copies, waits = logged("cudaMemcpyAsync"), logged("cudaStreamSynchronize")
    assert value.item() == 3
    assert logged("cudaMemcpyAsync") == copies + 1 and logged("cudaStreamSynchronize") == waits + 1


def check_device_is_per_thread() -> None:
    seen: list[Any] = []

    def elsewhere() -> None:
        seen.append(torch.cuda.current_device())
        torch.cuda.set_device(0)
        seen.append((torch.ones(4, device="cuda") * 2).sum().item())

    with torch.cuda.device(1):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert torch.cuda.current_device() == 1
    assert seen == [0, 8.0]


def check_two_devices_do_not_mix() -> None:
    there = torch.arange(6.0, device="cuda:1")
    assert there.device.index == 1 and (there + 1).device.index == 1
    for other in (torch.arange(6.0, device="cuda:0"), torch.arange(6.0)):
        try:
            there + other
        except RuntimeError as error:
            assert "same device" in str(error), error
        else:
            raise AssertionError(f"{other.device} and cuda:1 were added")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.layer, self.rms, self.table = nn.LayerNorm(16), nn.RMSNorm(16), nn.Embedding(10, 16)
        self.heads, self.out = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        hidden = self.depthwise(functional.silu(self.norm(self.conv(image)))).flatten(2).transpose(1, 2)
        hidden = self.rms(self.layer(hidden) + self.table(label)[:, None])
        query, key, value = (part[:, None] for part in self.heads(hidden).chunk(3, -1))
        hidden = hidden + functional.scaled_dot_product_attention(query, key, value)[:, 0]
        return self.out(hidden).transpose(1, 2).reshape(image.shape)


def losses(device: str, autocast: bool, **options: Any) -> list[float]:
    torch.manual_seed(1)
    net, draws = Net().to(device), torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, **options)
    found = []
    for _ in range(4):
        image, label = torch.randn(2, 4, 8, 8, generator=draws), torch.randint(0, 10, (2,), generator=draws)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=autocast):
            loss = functional.mse_loss(net(image.to(device), label.to(device)).float(), image.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def check_training_agrees_with_the_cpu_to_rounding() -> None:
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        pairs = list(zip(losses("cpu", False, **options), losses("cuda", False, **options), strict=True))
        assert max(abs(a - b) for a, b in pairs) < 1e-5, (options, pairs)
    pairs = list(zip(losses("cpu", True), losses("cuda", True), strict=True))
    assert max(abs(a - b) for a, b in pairs) < 2e-2, pairs
    assert losses("cuda", True) == losses("cuda", True), "two runs are bit-identical"
    assert losses("cuda:1", False) == losses("cuda", False)


def check_random_numbers_are_a_function_of_the_state() -> None:
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    first, second = torch.randn(64, device=CUDA), torch.randn(64, device=CUDA)
    host_before = torch.get_rng_state()
    dropped = functional.dropout(torch.ones(64, device=CUDA), 0.5)
    assert torch.equal(torch.get_rng_state(), host_before), "the CPU's generator belongs to the program"
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.randn(64, device=CUDA), first) and not torch.equal(first, second)
    assert torch.equal(torch.randn(64, device=CUDA), second)
    assert torch.equal(functional.dropout(torch.ones(64, device=CUDA), 0.5), dropped) and set(dropped.tolist()) == {
        0,
        2,
    }
    own = torch.Generator(device="cuda").manual_seed(9)
    drawn = torch.rand(5, device=CUDA, generator=own)
    kept = own.get_state()
    after = torch.randperm(20, device=CUDA, generator=own)
    own.set_state(kept)
    assert torch.equal(torch.randperm(20, device=CUDA, generator=own), after)
    assert torch.equal(torch.rand(5, device=CUDA, generator=own.manual_seed(9)), drawn)


def check_a_kernel_that_nobody_handles_is_an_error() -> None:
    try:
        torch.ops.aten._fused_dropout(torch.ones(3, device=CUDA), 0.5)
        torch.cuda.synchronize()
    except torch.AcceleratorError as error:
        assert "no CPU code handles this kernel" in str(error), error
    else:
        raise AssertionError("the launch was swallowed")
    assert torch.ones(3, device=CUDA).sum().item() == 3


def as_cuda_tensor(pointer: int, count: int) -> torch.Tensor:
    described = {"shape": (count,), "typestr": "<f4", "data": (pointer, False), "version": 3}
    return torch.as_tensor(type("Exposed", (), {"__cuda_array_interface__": described})(), device="cuda")


def check_kernels_move_managed_pages_and_memory_info_sees_them() -> None:
    torch.ones(1, device=CUDA)
    block = managed(4 * MIB)
    ctypes.memset(block, 0, 4 * MIB)
    free = torch.cuda.mem_get_info(0)[0]
    tensor = as_cuda_tensor(block, MIB)
    assert tensor.device == CUDA and resident(block, 4 * MIB, 0) == 0
    tensor[: PAGE // 4].add_(1)
    assert resident(block, 4 * MIB, 0) == PAGE and torch.cuda.mem_get_info(0)[0] == free - PAGE
    assert ctypes.string_at(block, 4) == b"\0\0\x80\x3f", "the CPU reads what the kernel wrote"
    from driver import call

    assert call("cuMemFree_v2", block) == 0
    try:
        tensor.add_(1)
    except RuntimeError as error:
        assert "cannot reach" in str(error)
    else:
        raise AssertionError("a kernel read freed memory")


def check_managed_pages_leave_for_torchs_allocations() -> None:
    from driver import DEVICE, call, prefetch

    torch.cuda.empty_cache()
    block = managed(200 * MIB)
    assert prefetch(block, 200 * MIB, DEVICE) == 0 and resident(block, 200 * MIB, 0) == 200 * MIB
    kept = torch.empty(150 * MIB, dtype=torch.uint8, device=CUDA)
    assert resident(block, 200 * MIB, 0) < 120 * MIB and kept.device == CUDA
    assert call("cuMemFree_v2", block) == 0


def check_a_pool_of_managed_memory_trains_beyond_hbm() -> None:
    from driver import call

    library = ctypes.CDLL("libcuda.so.1")
    live: dict[int, int] = {}

    def allocate(size: int, device: int, stream: int) -> int:
        pointer = made("cuMemAllocManaged", size, 1)
        live[pointer] = size
        return pointer

    def free(pointer: int, size: int, device: int, stream: int) -> None:
        call("cuMemFree_v2", pointer)
        live.pop(pointer)

    give = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(allocate)
    take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free)
    addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in (give, take)]
    pool = torch.cuda.MemPool(torch._C._cuda_customAllocator(*addresses))
    with torch.cuda.use_mem_pool(pool):
        weights = [torch.zeros(8 * MIB, device=CUDA) for _ in range(10)]
    assert sum(live.values()) >= 320 * MIB and library is not None
    for weight in weights:
        weight.add_(2)
    assert [weight[-1].item() for weight in weights] == [2.0] * 10
    del weights, weight
    del pool
    torch.cuda.empty_cache()
    assert not live, live


def check_child_processes_have_the_kernels_too() -> None:
    import subprocess
    import sys

    code = "import json; print(json.dumps('torch' in __import__('sys').modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) is False, "Python alone does not pay for torch"


def check_bitwise_operations_take_a_number() -> None:
    """As adamw_bf16 masks bits."""
    values = torch.tensor([70000, 3], dtype=torch.int32, device="cuda")
    assert values.clone().bitwise_and_(-65536).tolist() == [65536, 0]
    assert (values & 3).tolist() == [0, 3] and values.clone().bitwise_or_(4).dtype == torch.int32
    assert values.bitwise_left_shift(1).tolist() == [140000, 6]
