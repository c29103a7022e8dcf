"""Torch's allocations in managed memory: the fork's own pools around a small model, on the second of two devices."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import Any

import torch

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run  # noqa: E402
from simpletuner.gh200.caches.blocks import ArenaFull, CacheBudget  # noqa: E402
from simpletuner.gh200.memory.batch import optimize_batch_for_gh200  # noqa: E402
from simpletuner.gh200.memory.driver import CudaError, Driver, load_driver  # noqa: E402
from simpletuner.gh200.pools import sites  # noqa: E402
from simpletuner.gh200.run import MANAGED, Run, current, end  # noqa: E402
from simpletuner.gh200.settings.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.settings.sources import read_settings  # noqa: E402

DEVICE = torch.device("cuda:1")
WIDTH = 256
MB = 1 << 20


class Trainer:
    """What upstream's has at the seams: models are moved, prepared, resumed, stepped."""

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

    def init_resume_checkpoint(self) -> None:
        pass

    def train(self, steps: int = 3) -> list[str]:
        self.move_models()
        self.init_prepare_models()
        self.init_ema_model()
        self.init_resume_checkpoint()
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
    sites.begin(trainer, run)
    return run


def kinds(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = run.measured["Managed memory"]()["kinds"]
    return found


def managed(tensor: torch.Tensor) -> bool:
    driver = load_driver()
    assert isinstance(driver, Driver)
    return driver.managed_range(tensor.data_ptr(), 1) is not None


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
        assert all(told["bytes"] > 0 for told in report.values()), report
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


def check_over_the_bound_is_torchs_own_error_and_the_run_can_go_on() -> None:
    run = begun(Trainer(), managed_memory="all", managed_memory_limit_gb=0.05)
    held = torch.empty(20 * MB, dtype=torch.uint8, device=DEVICE)
    try:
        torch.empty(100 * MB, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("the bound did not hold")
    except torch.cuda.OutOfMemoryError:
        pass
    (told,) = kinds(run).values()
    assert any("managed_memory_limit_gb" in why for why in told["refused"]), told
    assert torch.empty(4 * MB, dtype=torch.uint8, device=DEVICE).numel() and held.numel()
    del held
    end()


def check_a_block_the_driver_refuses_is_torchs_own_error() -> None:
    run = begun(Trainer(), managed_memory="all")
    driver = load_driver()
    assert isinstance(driver, Driver)
    allocate = driver.allocate_managed

    def refused(size: int, device: int) -> int:
        raise CudaError("cuMemAllocManaged", "CUDA_ERROR_OUT_OF_MEMORY")

    driver.allocate_managed = refused  # type: ignore[method-assign]
    try:
        torch.empty(64 * MB, dtype=torch.uint8, device=DEVICE)
        raise AssertionError("there was memory")
    except torch.cuda.OutOfMemoryError:
        pass
    finally:
        driver.allocate_managed = allocate  # type: ignore[method-assign]
    (told,) = kinds(run).values()
    assert any("CUDA_ERROR_OUT_OF_MEMORY" in why for why in told["refused"]), told
    assert told["bytes"] == run.measured["Managed memory"]()["bytes"]
    end()


def check_threads_that_free_while_another_allocates_do_not_stop_each_other() -> None:
    begun(Trainer(), managed_memory="all")
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            torch.empty(100, device=DEVICE)

    threads = [threading.Thread(target=churn, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    held = [torch.empty(21 * MB, dtype=torch.uint8, device=DEVICE) for _ in range(8)]
    done.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert all(map(managed, held))
    del held
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
    held = torch.empty(40 * MB, dtype=torch.uint8, device=DEVICE)
    budget = CacheBudget(None, 64 * MB, run.bytes_in_pools)
    budget.take(20 * MB)
    try:
        budget.take(20 * MB)
        raise AssertionError("the bound is counted twice")
    except ArenaFull as full:
        assert "torch's pools" in str(full)
    del held
    end()
    budget.take(20 * MB)


def check_what_was_never_shown_is_refused_with_all_its_names() -> None:
    trainer = Trainer()
    trainer.config = SimpleNamespace(ramtorch=True, offload_during_save=True, dynamo_mode="reduce-overhead")
    try:
        begun(trainer, managed_memory="state")
        raise AssertionError("not refused")
    except sites.GH200Error as error:
        assert all(name in error.why for name in ("ramtorch", "offload_during_save", "dynamo_mode")), error
    end()


def check_a_run_on_the_cpu_says_that_it_has_none() -> None:
    trainer = Trainer()
    trainer.accelerator.device = torch.device("cpu")
    run = begun(trainer, managed_memory="all")
    assert MANAGED in run.unavailable and "cpu" in run.unavailable[MANAGED]
    end()
