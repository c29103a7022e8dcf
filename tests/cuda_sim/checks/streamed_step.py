"""A planned run with less HBM than its state: bit-identical, no fault, no eviction, every byte of state once in and once out."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from cuda_sim_torch.traffic import read_traffic

from gh200_lab.checkout import see_this_checkout

see_this_checkout()

from gh200_lab.memory_run import begin_memory_run  # noqa: E402
from simpletuner.gh200.config.cache_options import CacheOptions  # noqa: E402
from simpletuner.gh200.config.sources import read_settings  # noqa: E402
from simpletuner.gh200.memory.driver import Driver, load_driver  # noqa: E402
from simpletuner.gh200.offload import hooks  # noqa: E402
from simpletuner.gh200.offload.plan import HBM, REMOTE, STREAMED  # noqa: E402
from simpletuner.gh200.offload.streaming import StagedTensor, StagedWork, Staging, is_dense  # noqa: E402
from simpletuner.gh200.runtime import Run, current, end  # noqa: E402

DEVICE = torch.device("cuda:0")
MB = 1 << 20
LAYERS, WIDTH = 20, 512  # a MB of weights each
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
STATE = 8 * PARAMETERS
Make = Callable[[list[Any]], torch.optim.Optimizer]


class EmaModel:
    """What SimpleTuner's has that our override works with."""

    def __init__(self, parameters: list[Any]) -> None:
        self.shadow_params = [parameter.detach().clone() for parameter in parameters]
        self._tracked_param_ids = [id(parameter) for parameter in parameters]
        self.foreach, self.args, self.calls = True, SimpleNamespace(), 0

    def _should_use_foreach(self, one: list[Any], other: list[Any]) -> bool:
        return self.foreach and len({tensor.dtype for tensor in (*one, *other)}) == 1

    @torch.no_grad()
    def step(self, parameters: Any, global_step: int | None = None) -> None:
        parameters = list(parameters)
        assert [id(parameter) for parameter in parameters] == self._tracked_param_ids
        self.calls += 1
        decay = 0.01 * (1 + (global_step or 0))
        if self._should_use_foreach(self.shadow_params, parameters):
            torch._foreach_sub_(self.shadow_params, torch._foreach_sub(self.shadow_params, parameters), alpha=decay)
        else:
            for shadow, parameter in zip(self.shadow_params, parameters, strict=True):
                shadow.sub_(decay * (shadow - parameter.to(shadow.dtype)))


class Trainer:
    """SimpleTuner's, as far as offload reaches into it."""

    def __init__(self, make: Make, ema: bool = True, **config: Any) -> None:
        self.accelerator = SimpleNamespace(device=DEVICE, distributed_type=SimpleNamespace(value="NO"))
        self.config = SimpleNamespace(use_ema=ema, ema_device="accelerator", max_grad_norm=1.0, **config)
        self._make, self.optimizer, self.ema_model = make, None, None
        self.optimizer: Any
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers)

    def move_models(self) -> None:
        self.model.to(DEVICE)

    def init_prepare_models(self) -> None:
        self.optimizer = self._make(list(self.model.parameters()))

    def init_ema_model(self) -> None:
        if self.config.use_ema:
            self.ema_model = EmaModel(list(self.model.parameters()))

    def begin(self) -> None:
        self.move_models()
        self.init_prepare_models()
        self.init_ema_model()

    def train(self, steps: int = 3, first: int = 0, micro: int = 2, unused: tuple[int, ...] = ()) -> list[str]:
        losses = []
        for step in range(first, first + steps):
            for part in range(micro):
                batch = torch.linspace(-1, 1, 4 * WIDTH, device=DEVICE).view(4, WIDTH) * (1 + step + part)
                for number, layer in enumerate(self.model):
                    layer.requires_grad_(not (step == first + 1 and number in unused))
                loss = self.model(batch).square().mean()
                loss.backward()
                losses.append(loss.item().hex())
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.ema_model is not None:
                self.ema_model.step(self.model.parameters(), global_step=step)
        return losses

    def bits(self) -> list[bytes]:
        tensors = [*self.model.parameters(), *(self.ema_model.shadow_params if self.ema_model else ())]
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            tensors += [value for _, value in sorted(state.items()) if isinstance(value, torch.Tensor)]
        return [tensor.detach().cpu().view(torch.uint8).numpy().tobytes() for tensor in map(torch.atleast_1d, tensors)]


def adamw(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def begun(trainer: Trainer, mode: str = "auto", **optimizations: Any) -> Run:
    values = {"managed_memory": mode, "uvm_oversubscription_ratio": 20} | optimizations
    settings = read_settings({"gh200_optimizations": values}, {})
    run = begin_memory_run(CacheOptions.from_settings(settings), settings)
    run.hints.settle_on(DEVICE)
    hooks.begin_pools(trainer, run)
    trainer.begin()
    return run


def placed(trainer: Trainer) -> dict[str, str]:
    """The plan that the run follows."""
    found: dict[str, str] = trainer.init_prepare_models.__self__.placement.plan.places  # type: ignore[attr-defined]
    return found


def managed(tensor: torch.Tensor) -> bool:
    driver = load_driver()
    assert isinstance(driver, Driver)
    return driver.managed_range(tensor.data_ptr(), 0) is not None


def stock(make: Make, **how: Any) -> tuple[list[str], list[bytes]]:
    ema = how.pop("ema", True)
    trainer = Trainer(make, ema)
    trainer.begin()
    losses, bits = trainer.train(**how), trainer.bits()
    return losses, bits


def planned(make: Make, **how: Any) -> tuple[list[str], list[bytes], Trainer]:
    ema = how.pop("ema", True)
    trainer = Trainer(make, ema)
    begun(trainer)
    losses, bits = trainer.train(**how), trainer.bits()
    return losses, bits, trainer


class filled:
    """HBM beside this model is taken, so that so many bytes are left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __enter__(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        driver = load_driver()
        assert isinstance(driver, Driver)
        with driver.on_device(0):
            self.taken = driver.call("cuMemAlloc", torch.cuda.mem_get_info(DEVICE)[0] - self.left)
        self.driver = driver

    def __exit__(self, *_: object) -> None:
        with self.driver.on_device(0):
            self.driver.call("cuMemFree", self.taken)
        torch.cuda.empty_cache()


def steps_since(before: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_traffic()["steps"][before:]
    return found


def check_state_and_ema_are_streamed_with_no_fault_and_no_byte_too_many() -> None:
    losses, bits = stock(adamw, steps=4)
    with filled(88 * MB):
        before = len(read_traffic()["steps"])
        seen, found, trainer = planned(adamw, steps=4)
        assert (seen, found) == (losses, bits)
        assert placed(trainer) == {"weights": HBM, "gradients": HBM, "optimizer": STREAMED, "ema": STREAMED}, placed(
            trainer
        )
        assert all(map(managed, trainer.ema_model.shadow_params))
        states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.is_cuda]
        assert states and all(map(managed, states)) and not any(map(managed, trainer.model.parameters()))
        marked = steps_since(before)
        assert sum(step["faults"] + step["evictions"] for step in marked) == 0, marked
        lower = STATE + 4 * PARAMETERS
        for step in marked[2:]:  # EMA of a step comes after its mark
            assert step["to_device"]["remote"] == step["to_host"]["remote"] == 0, step
            assert lower <= step["to_device"]["copy"] <= 1.02 * lower, (step, lower)
            assert lower <= step["to_host"]["copy"] <= 1.02 * lower, (step, lower)
        end()
        del trainer, states


def check_gradients_go_too_where_they_do_not_fit() -> None:
    losses, bits = stock(adamw, micro=1)
    with filled(44 * MB):
        before = len(read_traffic()["steps"])
        seen, found, trainer = planned(adamw, micro=1)
        assert (seen, found) == (losses, bits)
        assert placed(trainer)["gradients"] == REMOTE
        assert sum(step["faults"] + step["evictions"] for step in steps_since(before)) == 0
        end()
        del trainer


def check_what_fits_is_left_alone() -> None:
    losses, bits = stock(adamw)
    seen, found, trainer = planned(adamw)
    assert (seen, found) == (losses, bits)
    assert set(placed(trainer).values()) == {HBM}
    run = current()
    assert run is not None and run.managed is not None and run.managed.pools == 0
    end()


def two_groups(parameters: list[Any]) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:7]}, {"params": parameters[7:], "lr": 1e-3, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-2, amsgrad=True)


def check_groups_and_missing_gradients() -> None:
    losses, bits = stock(two_groups, unused=(3, 9))
    with filled(88 * MB):
        seen, found, trainer = planned(two_groups, unused=(3, 9))
        assert (seen, found) == (losses, bits)
        assert placed(trainer)["optimizer"] == STREAMED
        end()
        del trainer


def check_fused_and_other_optimizers_keep_their_bits() -> None:
    makes: list[Make] = [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, foreach=False),
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        lambda parameters: torch.optim.Adafactor(parameters, lr=1e-2),
        lambda parameters: torch.optim.NAdam(parameters, lr=1e-2),
    ]
    for make in makes:
        losses, bits = stock(make, steps=2)
        with filled(64 * MB):
            seen, found, trainer = planned(make, steps=2)
            assert (seen, found) == (losses, bits), make
            end()
            del trainer


def check_an_optimizer_that_couples_its_parameters_keeps_the_unstreamed_step() -> None:
    class Coupled(torch.optim.AdamW):
        """Not in the list."""

    def make(parameters: list[Any]) -> torch.optim.Optimizer:
        return Coupled(parameters, lr=1e-2)

    losses, bits = stock(make)
    with filled(96 * MB):
        seen, found, trainer = planned(make)
        assert (seen, found) == (losses, bits)
        assert placed(trainer)["optimizer"] == REMOTE
        end()
        del trainer


def check_a_checkpoint_goes_in_either_direction() -> None:
    whole, bits = stock(adamw, steps=4)

    def saved(trainer: Trainer) -> Any:
        kept = io.BytesIO()
        torch.save([trainer.model.state_dict(), trainer.optimizer.state_dict(), trainer.ema_model.shadow_params], kept)
        return kept

    def resumed(trainer: Trainer, kept: io.BytesIO) -> list[str]:
        kept.seek(0)
        model, optimizer, shadows = torch.load(kept, weights_only=True, map_location="cpu")
        run = current()
        trainer.model.load_state_dict(model)
        if run is None:
            trainer.optimizer.load_state_dict(optimizer)
        else:
            with run.resuming():
                trainer.optimizer.load_state_dict(optimizer)
        for shadow, value in zip(trainer.ema_model.shadow_params, shadows, strict=True):
            shadow.copy_(value)
        return trainer.train(2, first=2)

    plain = Trainer(adamw)
    plain.begin()
    assert plain.train(2) == whole[:4]
    of_stock = saved(plain)
    del plain
    with filled(88 * MB):
        trainer = Trainer(adamw)
        begun(trainer)
        trainer.train(2)
        of_planned = saved(trainer)
        end()
        del trainer
        gc.collect()
        torch.cuda.empty_cache()
        trainer = Trainer(adamw)
        begun(trainer)
        assert resumed(trainer, of_stock) == whole[4:] and trainer.bits() == bits
        assert placed(trainer)["optimizer"] == STREAMED
        end()
        del trainer
    plain = Trainer(adamw)
    plain.begin()
    assert resumed(plain, of_planned) == whole[4:] and plain.bits() == bits


def check_a_window_steps_once() -> None:
    """A prepared optimizer does nothing before its window ends; nothing may be copied for it."""

    class Prepared:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.gradient_state = optimizer, SimpleNamespace(sync_gradients=False)
            self.scaler = None
            self.zero_grad, self.param_groups, self.state = optimizer.zero_grad, optimizer.param_groups, optimizer.state

        def step(self) -> None:
            if self.gradient_state.sync_gradients:
                self.optimizer.step()

    with filled(88 * MB):
        trainer = Trainer(lambda parameters: Prepared(adamw(parameters)))  # type: ignore[arg-type, return-value]
        begun(trainer)
        before = copy.deepcopy(read_traffic()["total"])
        trainer.model(torch.ones(1, WIDTH, device=DEVICE)).sum().backward()
        trainer.optimizer.step()
        assert not trainer.optimizer.state
        assert read_traffic()["total"]["to_host"]["copy"] == before["to_host"]["copy"]
        trainer.optimizer.gradient_state.sync_gradients = True
        trainer.optimizer.step()
        assert len(trainer.optimizer.state) == 2 * LAYERS
        end()
        del trainer


def check_ema_takes_the_kernel_that_the_whole_model_would() -> None:
    class Mixed(Trainer):
        def init_ema_model(self) -> None:
            super().init_ema_model()
            self.ema_model.shadow_params[0] = self.ema_model.shadow_params[0].bfloat16()

    plain = Mixed(adamw)
    plain.begin()
    losses, bits = plain.train(), plain.bits()
    with filled(88 * MB):
        trainer = Mixed(adamw)
        begun(trainer)
        assert (trainer.train(), trainer.bits()) == (losses, bits)
        assert trainer.ema_model.calls > 2 * 3 and trainer.ema_model.foreach is True
        end()
        del trainer
    del plain


def check_ema_has_no_temporary_of_the_models_size_with_state_either() -> None:
    peaks = {}
    for mode in ("off", "state"):
        trainer = Trainer(adamw)
        begun(trainer, mode)
        trainer.train(1)
        torch.cuda.reset_peak_memory_stats(DEVICE)
        before = torch.cuda.memory_allocated(DEVICE)
        with torch.no_grad():
            trainer.ema_model.step(trainer.model.parameters(), global_step=9)
        peaks[mode] = torch.cuda.max_memory_allocated(DEVICE) - before
        end()
        del trainer
    assert peaks["off"] >= 4 * PARAMETERS, peaks
    assert peaks["state"] < peaks["off"], peaks


def check_the_first_step_leaves_no_scratch_in_the_optimizers_pool() -> None:
    trainer = Trainer(adamw, ema=False)
    run = begun(trainer, "state")
    trainer.train(2)
    kind = run.measured["Managed memory"]()["kinds"]["optimizer state"]
    assert kind["peak_bytes"] <= 1.1 * STATE + 22 * MB, (kind, STATE)
    end()


def check_a_job_that_fails_leaves_its_tensors_at_home() -> None:
    home = torch.ones(1000, device=DEVICE)
    shown = [home]

    def fail() -> None:
        assert shown[0] is not home
        raise ValueError("no")

    staging = Staging(DEVICE)
    try:
        staging.run([StagedWork([StagedTensor(home, lambda tensor: shown.__setitem__(0, tensor))], fail)])
        raise AssertionError("it went on")
    except ValueError:
        assert shown[0] is home


def check_staging_keeps_strides_and_orders_its_copies() -> None:
    homes = [
        torch.arange(24.0, device=DEVICE).view(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        for _ in range(5)
    ]
    seen: list[Any] = [None] * 5

    def work(number: int) -> None:
        tensor = seen[number]
        assert tensor.stride() == homes[number].stride() and tensor.data_ptr() != homes[number].data_ptr()
        tensor.add_(number)

    Staging(DEVICE).run(
        [
            StagedWork([StagedTensor(home, lambda tensor, number=number: seen.__setitem__(number, tensor))], lambda number=number: work(number))
            for number, home in enumerate(homes)
        ]
    )  # fmt: skip
    for number, home in enumerate(homes):
        assert torch.equal(home.cpu().contiguous(), torch.arange(24.0).view(2, 3, 2, 2) + number)
    assert not is_dense(torch.ones(4, 4)[:, ::2]) and is_dense(homes[0]) and is_dense(torch.ones(3, 1, 2))
