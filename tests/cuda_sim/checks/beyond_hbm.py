"""Torch's allocations in managed memory: the fork's own pools around a small model, on the second of two devices."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run  # noqa: E402
from simpletuner.gh200.backends.tensors.blocks import ArenaFull, CacheBudget  # noqa: E402
from simpletuner.gh200.config.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.config.sources import read_settings  # noqa: E402
from simpletuner.gh200.memory import budget  # noqa: E402
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200  # noqa: E402
from simpletuner.gh200.memory.driver import CudaError, Driver, load_driver  # noqa: E402
from simpletuner.gh200.memory.limits import Limit  # noqa: E402
from simpletuner.gh200.offload import hooks, native_callbacks  # noqa: E402
from simpletuner.gh200.offload.rejections import REJECTED  # noqa: E402
from simpletuner.gh200.runtime import MANAGED, Run, current, end  # noqa: E402

DEVICE = torch.device("cuda:1")
OUT_OF_MEMORY, DEVICE_UNAVAILABLE, UNKNOWN = 2, 46, 999
WIDTH = 256
MB = 1 << 20


class Trainer:
    """What upstream's has at the integration points: models are moved, prepared, resumed, stepped."""

    def __init__(self) -> None:
        self.accelerator = SimpleNamespace(device=DEVICE, distributed_type=SimpleNamespace(value="NO"))
        self.config = SimpleNamespace()
        self.optimizer: Any = None
        self.ema: list[torch.Tensor] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 4))

    def move_models(self) -> None:
        self.model.to(DEVICE)

    def init_prepare_models(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def init_ema_model(self) -> None:
        self.ema = [parameter.detach().clone() for parameter in self.model.parameters()]

    def train(self, steps: int = 3) -> list[str]:
        self.move_models()
        self.init_prepare_models()
        self.init_ema_model()
        losses = []
        for step in range(steps):
            for micro in range(2):
                batch = torch.linspace(-1, 1, 8 * WIDTH, device=DEVICE).view(8, WIDTH) * (1 + step + micro)
                loss = self.model(batch).square().mean()
                loss.backward()
                losses.append(loss.item().hex())
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=step % 2 == 0)
        return losses


def begun(trainer: Any, **optimizations: Any) -> Run:
    settings = read_settings({"gh200_optimizations": optimizations}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.settle_on(DEVICE)
    hooks.begin_pools(trainer, run)
    return run


def kinds(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.measured["Managed memory"]()["kinds"]
    return found


def managed(tensor: torch.Tensor) -> bool:
    driver = load_driver()
    assert isinstance(driver, Driver)
    return driver.managed_range(tensor.data_ptr(), 1) is not None


def out_of_memory() -> None:
    try:
        torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("there was memory")
    except torch.cuda.OutOfMemoryError:
        pass


def check_state_and_all_give_the_bits_of_stock() -> None:
    stock = Trainer().train()
    for mode in ("state", "all"):
        trainer = Trainer()
        run = begun(trainer, managed_memory=mode)
        assert trainer.train() == stock, mode
        assert all(map(managed, trainer.model.parameters())), mode
        states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.is_cuda]
        assert states and all(map(managed, states)), mode
        assert all(map(managed, trainer.ema)), mode
        report = kinds(run)
        # The step of this optimizer goes in buckets, whose scratch memory is plain.
        assert all(kind["bytes"] > 0 for name, kind in report.items() if name != "optimizer scratch"), report
        end()
    assert current() is None


def check_gradients_are_in_their_pool_also_those_of_later_micro_batches() -> None:
    trainer = Trainer()
    run = begun(trainer, managed_memory="state", managed_memory_targets=["gradients"])
    trainer.train(1)
    for _ in range(2):
        trainer.model(torch.ones(2, WIDTH, device=DEVICE)).sum().backward()
    assert all(managed(parameter.grad) for parameter in trainer.model.parameters() if parameter.grad is not None)
    assert not any(map(managed, trainer.model.parameters()))
    assert list(kinds(run)) == ["gradients"]
    end()


def check_what_a_checkpoint_makes_is_optimizer_state() -> None:
    run = begun(Trainer(), managed_memory="state")
    with run.resuming():
        assert managed(torch.empty(MB, device=DEVICE))
    assert kinds(run)["optimizer state"]["bytes"] > 0
    assert not managed(torch.empty(MB, device=DEVICE))
    end()


def check_over_the_bound_is_torchs_own_error_and_the_run_can_go_on() -> None:
    run = begun(Trainer(), managed_memory="all", managed_memory_limit_gb=0.05)
    tensors = torch.empty(20 * MB, dtype=torch.uint8, device=DEVICE)
    try:
        torch.empty(100 * MB, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("the bound did not hold")
    except torch.cuda.OutOfMemoryError:
        pass
    (kind,) = kinds(run).values()
    assert any("managed_memory_limit_gb" in why for why in kind["rejected"]), kind
    assert torch.empty(4 * MB, dtype=torch.uint8, device=DEVICE).numel() and tensors.numel()
    del tensors
    end()


@contextmanager
def failing(function: str, code: int, after: int = 0) -> Iterator[None]:
    """The driver's own function answers so, from its call number `after` on."""
    fail = ctypes.CDLL("libcuda.so.1").cuda_sim_fail
    fail.argtypes, fail.restype = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int), None
    fail(function.encode(), code, after)
    try:
        yield
    finally:
        fail(None, 0, 0)


@contextmanager
def logged() -> Iterator[list[str]]:
    """What the pools say."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gh200.pools")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def check_a_block_the_driver_rejects_is_torchs_own_error() -> None:
    run = begun(Trainer(), managed_memory="all")
    with failing("cuMemAllocManaged", OUT_OF_MEMORY):
        out_of_memory()
    (kind,) = kinds(run).values()
    assert any("CUDA_ERROR_OUT_OF_MEMORY" in why for why in kind["rejected"]), kind
    assert kind["bytes"] == run.measured["Managed memory"]()["bytes"]
    end()


def check_a_rejection_is_said_once_and_counted_each_time() -> None:
    with logged() as lines:
        run = begun(Trainer(), managed_memory="all", managed_memory_limit_gb=0.01)
        out_of_memory()
        ((why, count),) = kinds(run)["everything torch allocates"]["rejected"].items()
        out_of_memory()
        ((again, more),) = kinds(run)["everything torch allocates"]["rejected"].items()
        end()
    said = [line for line in lines if "rejected" in line]
    assert why == again and 0 < count < more
    assert len(said) == 1 and "67.1 MB for everything" in said[0] and "torch reports" in said[0], lines
    assert "managed_memory_limit_gb: 10.0 MB, 0 bytes of it in use" in said[0], said


def check_what_machine_and_cgroup_have_free_is_a_bound_that_is_looked_at_again() -> None:
    def limits(free: int) -> Any:
        found = [Limit("machine", "free memory of this check", free)]
        return mock.patch.object(budget, "memory_limits", lambda: found)

    begun(Trainer(), managed_memory="state", managed_memory_targets=["optimizer"])
    run = current()
    assert run is not None and run.managed is not None
    memory = run.measured["Managed memory"].__self__  # type: ignore[attr-defined]
    with limits(70 * MB):
        run.managed.look()
        with memory.pool("optimizer").here():
            tensors = [torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)]
            # Until the next look the block counts as taken; it was never touched, so the next look finds it free again.
            tensors.append(torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE))
    with limits(5 * MB):
        run.managed.look()
        with memory.pool("optimizer").here():
            out_of_memory()
    ((why, _),) = kinds(run)["optimizer state"]["rejected"].items()
    assert "free memory of this check: 5.2 MB" in why, why
    del tensors
    end()


def check_advice_that_fails_is_said_and_the_block_is_there() -> None:
    with logged() as lines:
        run = begun(Trainer(), managed_memory="all")
        with failing("cuMemAdvise_v2", UNKNOWN):
            tensors = torch.ones(24 * MB, dtype=torch.uint8, device=DEVICE)
        assert managed(tensors) and int(tensors[-1]) == 1
        (kind,) = kinds(run).values()
        assert "has no advice: cuMemAdvise returned CUDA_ERROR_UNKNOWN" in kind["rejected"], kind
        del tensors
        end()
    assert sum("has no advice" in line for line in lines) == 1, lines


def check_a_block_that_cannot_be_freed_is_said_and_still_counted() -> None:
    with logged() as lines:
        run = begun(Trainer(), managed_memory="all")
        torch.empty(24 * MB, dtype=torch.uint8, device=DEVICE)
        report = run.measured["Managed memory"]
        with failing("cuMemFree_v2", UNKNOWN):
            end()
    assert any("is not freed: cuMemFree returned CUDA_ERROR_UNKNOWN" in line for line in lines), lines
    assert report()["bytes"] >= 24 * MB and report()["kinds"]["everything torch allocates"]["blocks"] >= 1


def check_threads_that_free_while_another_allocates_do_not_stop_each_other() -> None:
    begun(Trainer(), managed_memory="all")
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            torch.empty(100, device=DEVICE)

    threads = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    tensors = [torch.empty(21 * MB, dtype=torch.uint8, device=DEVICE) for _ in range(8)]
    done.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert all(map(managed, tensors))
    del tensors
    end()


def check_the_end_of_a_run_gives_back_what_nothing_uses() -> None:
    gc.collect()
    run = begun(Trainer(), managed_memory="all")
    torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)
    report = run.measured["Managed memory"]
    assert report()["bytes"] >= 64 * MB
    end()
    assert report()["bytes"] == 0, report()
    plain = torch.empty(MB, dtype=torch.uint8, device=DEVICE)
    assert not managed(plain)


def check_batch_hints_leave_torchs_pools_alone() -> None:
    run = begun(Trainer(), managed_memory="all", enable_uvm_hints=True)
    optimize_batch_for_gh200({"latents": torch.ones(MB, device=DEVICE)})
    assert run.hints.report()["hints"] == {"batch": {"stepped_back": 1}}, run.hints.report()
    end()


def check_caches_count_what_the_pools_have() -> None:
    run = begun(Trainer(), managed_memory="all", uvm_oversubscription_ratio=0.25)
    tensors = torch.empty(40 * MB, dtype=torch.uint8, device=DEVICE)
    budget = CacheBudget(None, 64 * MB, run.bytes_in_pools)
    budget.take(20 * MB)
    try:
        budget.take(20 * MB)
        raise AssertionError("the bound is counted twice")
    except ArenaFull as full:
        assert "torch's pools" in str(full)
    del tensors
    end()
    budget.take(20 * MB)


def rejected(trainer: Any, **optimizations: Any) -> str:
    """The error of a run that must not start; nothing of it may have begun."""
    before = list(vars(trainer))
    try:
        begun(trainer, **{"managed_memory": "state"} | optimizations)
    except hooks.GH200Error as error:
        run = current()
        assert run is not None and run.managed is None and "Managed memory" not in run.measured
        assert list(vars(trainer)) == before, "nothing was overridden"
        end()
        return str(error)
    raise AssertionError("not rejected")


def check_what_was_never_shown_is_rejected_with_all_its_names() -> None:
    trainer = Trainer()
    trainer.config = SimpleNamespace(ramtorch=True, offload_during_save=True, dynamo_mode="reduce-overhead")
    message = rejected(trainer)
    assert all(name in message for name in ("ramtorch", "offload_during_save", "dynamo_mode")), message


USED: dict[str, dict[str, Any]] = {
    "fsdp_enable": {"fsdp_enable": True},
    "ramtorch": {"ramtorch": True},
    "musubi_blocks_to_swap": {"musubi_blocks_to_swap": 4},
    "optimizer_cpu_offload_method": {"optimizer_cpu_offload_method": "torchao"},
    "optimizer_release_gradients": {"optimizer_release_gradients": True},
    "offload_during_save": {"offload_during_save": True},
    "gradient_checkpointing_offload_attention": {"gradient_checkpointing_offload_attention": True},
    "gradient_checkpointing_backend": {"gradient_checkpointing_backend": "unsloth"},
    "dynamo_mode": {"dynamo_mode": "max-autotune"},
    "dynamo_backend": {"dynamo_backend": "cudagraphs"},
}


def check_every_rejected_key_is_rejected_alone_and_its_default_is_not() -> None:
    assert set(REJECTED) == set(USED) | {"DeepSpeed", "FSDP"}, "a key without a check"
    for name, config in USED.items():
        trainer = Trainer()
        trainer.config = SimpleNamespace(**config)
        message = rejected(trainer)
        assert name in message and not [other for other in REJECTED if f"\n{other}:" in message and other != name], (
            message
        )
    for kind in ("DEEPSPEED", "FSDP"):
        trainer = Trainer()
        trainer.accelerator.distributed_type.value = kind
        assert kind.lower() in rejected(trainer, managed_memory="all").lower()
    trainer = Trainer()
    trainer.config = SimpleNamespace(
        **dict.fromkeys(USED)
        | {"optimizer_cpu_offload_method": "none", "dynamo_mode": "default", "musubi_blocks_to_swap": 0}
    )
    begun(trainer, managed_memory="state")
    end()


def check_a_torch_without_a_private_name_is_named_with_its_version() -> None:
    for module, name in ((torch._C, "_cuda_beginAllocateToPool"), (torch.cuda, "use_mem_pool")):
        kept = getattr(module, name)
        delattr(module, name)
        try:
            message = rejected(Trainer())
        finally:
            setattr(module, name, kept)
        assert name in message and torch.__version__ in message, message


def check_another_allocator_is_rejected_by_its_name() -> None:
    asked = torch.cuda.get_allocator_backend
    for backend in ("cudaMallocAsync", "pluggable"):
        torch.cuda.get_allocator_backend = lambda backend=backend: backend
        try:
            message = rejected(Trainer(), managed_memory="all")
        finally:
            torch.cuda.get_allocator_backend = asked
        assert backend in message and "PYTORCH_CUDA_ALLOC_CONF" in message, message


def check_the_users_own_allocator_settings() -> None:
    for name in hooks.ALLOCATOR_VARIABLES:
        for value, ends in (
            ("expandable_segments:True", "rejected"),
            ("max_split_size_mb:64,expandable_segments:true", "rejected"),
            ("release_lock_on_cudamalloc: True", "rejected"),
            ("per_process_memory_fraction:0.9", "rejected"),
            ("max_split_size_mb:64", "pools"),
            ("use_uvm:True,uvm_oversubscription_ratio:5.0", "patched"),
        ):
            os.environ[name] = value
            try:
                if ends == "rejected":
                    assert name in rejected(Trainer())
                    continue
                run = begun(Trainer(), managed_memory="state")
                assert ("patched PyTorch" in run.on[MANAGED]) == (ends == "patched"), run.on
                assert (run.managed is None) == (ends == "patched")
                end()
            finally:
                del os.environ[name]


def check_a_gpu_without_concurrent_managed_access_is_rejected() -> None:
    driver = load_driver()
    assert isinstance(driver, Driver)
    with mock.patch.object(driver, "device_attribute", lambda *_: 0):
        message = rejected(Trainer())
    assert "Simulated" in message and "concurrent managed access" in message, message


def check_a_gpu_that_has_vanished_is_said_at_start_and_while_training() -> None:
    driver = load_driver()
    assert isinstance(driver, Driver)

    def gone(device: int) -> tuple[int, int]:
        raise CudaError("cuMemGetInfo", "CUDA_ERROR_DEVICE_UNAVAILABLE")

    with mock.patch.object(driver, "memory_info", gone):
        message = rejected(Trainer())
    assert "DEVICE_UNAVAILABLE" in message and "nvidia-smi" in message, message
    for function in ("cuMemGetInfo_v2", "cuCtxPushCurrent_v2"):
        run = begun(Trainer(), managed_memory="all")
        with failing(function, DEVICE_UNAVAILABLE):
            out_of_memory()
        (why,) = kinds(run)["everything torch allocates"]["rejected"]
        assert why == f"rejected: {function.removesuffix('_v2')} returned CUDA_ERROR_DEVICE_UNAVAILABLE", why
        end()


def check_the_nth_block_that_is_rejected_ends_in_torchs_error_and_nothing_is_lost() -> None:
    run = begun(Trainer(), managed_memory="all")
    tensors = []
    with failing("cuMemAllocManaged", OUT_OF_MEMORY, after=3):
        try:
            for _ in range(9):
                tensors.append(torch.full((24 * MB,), len(tensors), dtype=torch.uint8, device=DEVICE))
            raise AssertionError("there was memory")
        except torch.cuda.OutOfMemoryError:
            pass
    assert len(tensors) == 3 and [int(each[-1]) for each in tensors] == [0, 1, 2]
    assert kinds(run)["everything torch allocates"]["blocks"] == 3
    tensors.append(torch.ones(24 * MB, dtype=torch.uint8, device=DEVICE))
    del tensors
    end()


def check_a_numba_that_is_absent_or_cannot_compile_is_named() -> None:
    for wrong in (
        mock.patch.dict(sys.modules, {"numba": None}),
        mock.patch.object(native_callbacks, "_cells", side_effect=RuntimeError("LLVM has no such machine")),
        mock.patch("numba.core.config.DISABLE_JIT", 1),
    ):
        native_callbacks.compiled.cache_clear()
        with wrong:
            message = rejected(Trainer())
        assert "numba" in message and "requirements/fork.lock" in message, message
    native_callbacks.compiled.cache_clear()


def check_a_run_on_the_cpu_says_that_it_has_none() -> None:
    trainer = Trainer()
    trainer.accelerator.device = torch.device("cpu")
    run = begun(trainer, managed_memory="all")
    assert MANAGED in run.unavailable and "cpu" in run.unavailable[MANAGED]
    end()
