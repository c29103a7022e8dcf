"""The whole training on a GPU made of host memory: one device, two ranks on two, and failures of the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
from cuda_sim_training import Trained, trained
from preloaded import Preloaded

from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.launch import Launcher
from gh200_lab.tiny.run import Run
from tests.cuda_sim.needed import cuda_sim_or_skip

pytestmark = pytest.mark.timeout(1800)

IMAGES, BATCH, STEPS = 8, 2, 4
CONFIG = {"max_train_steps": STEPS, "train_batch_size": BATCH}
IN_RAM = {"type": "in_memory", "in_memory": {"compression": "zstd"}}
HINTS = {"enable_uvm_hints": True}
RAMP = {
    "enable_batch_size_rampup": True,
    "initial_effective_batch_size": 2,
    "target_effective_batch_size": 4,
    "batch_rampup_steps": 3,
}
BF16_STEP = 2**-8
# Copies are counted here: how latents get to the GPU is not left to a measurement.
ON = {"cache_config": UNIFIED | {"placement": "managed"}, "gh200_optimizations": HINTS}
RAMPED = {"cache_config": UNIFIED, "gh200_optimizations": HINTS | RAMP}
# As Accelerate's launcher sets it; the other makes a run comparable with one on the CPU.
VARIABLES = {"ACCELERATE_MIXED_PRECISION": "bf16", "CUDA_SIM_RANDOM": "cpu"}


class SimulatedRuns:
    """Runs on the simulated device that share a directory, so that they can be compared."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lab = tiny.Lab(directory)
        self.lab.add_dataset("squares", IMAGES)

    def train(
        self,
        name: str,
        *options: str,
        ranks: int = 1,
        in_ram: bool = False,
        cold: bool = True,
        code: int | None = 0,
        **changes: Any,
    ) -> Trained:
        self.lab.entry_changes = IN_RAM if in_ram else {}

        def start(name: str, launcher: Launcher, variables: dict[str, str]) -> Run:
            given = VARIABLES | variables
            return self.lab.watched(name, launcher=launcher, cold=cold, variables=given, **CONFIG | changes)

        ran = trained(self.directory, name, *options, ranks=ranks, start=start)
        assert code is None or ran.run.code == code, ran.run.text[-4000:]
        return ran


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> SimulatedRuns:
    cuda_sim_or_skip()
    return SimulatedRuns(tmp_path_factory.mktemp("simulated"))


@pytest.fixture(scope="module")
def off(simulated: SimulatedRuns) -> Trained:
    return simulated.train("off")


@pytest.fixture(scope="module")
def on(simulated: SimulatedRuns) -> Trained:
    return simulated.train("on", in_ram=True, **ON)


def check_clean(ran: Trained, ranks: int) -> None:
    """Nothing a GPU would reject, nothing left of ours, no kernel without code; each rank on its own device only."""
    devices = [[bool(peak) for peak in report["device_bytes_peak"]] for report in ran.trainers]
    assert devices == [[device == rank for device in range(ranks)] for rank in range(ranks)], devices
    for report in ran.trainers:
        assert report["violations"] == [] and report["unhandled_launches"] == 0
        assert report["left"]["driver"] == dict.fromkeys(report["left"]["driver"], 0), report["left"]
        assert report["copies"]["device_to_other_device"]["count"] == 0


def test_training_is_bit_identical_with_all_but_the_ramp(off: Trained, on: Trained) -> None:
    assert on.bits() == off.bits()
    losses, updates, kept = on.bits()
    assert len(losses) == len(set(updates)) == STEPS and kept
    assert "GH200" not in off.run.text and f"Staged {2 * IMAGES} files" in on.run.text
    check_clean(on, 1)
    check_clean(off, 1)


def test_a_cached_latent_is_not_copied_and_not_waited_for(off: Trained, on: Trained) -> None:
    (stock,), (ours,) = off.trainers, on.trainers
    latents = STEPS * BATCH
    fewer = stock["copies"]["host_to_device"]["count"] - ours["copies"]["host_to_device"]["count"]
    assert fewer == latents, "stock copies each from pinned memory"
    # What a cache writes is fetched from the GPU once more, to be cached at once: that is the build's, and waited for.
    waits = [report["synchronisations"] - report["copies"]["device_to_host"]["count"] for report in (stock, ours)]
    assert waits[0] - waits[1] == latents, "and waits for it"


def test_ramp_has_the_windows_of_the_cpu_and_its_losses_to_rounding(
    simulated: SimulatedRuns, forked: Preloaded
) -> None:
    ramped = simulated.train("ramp", in_ram=True, **RAMPED)
    check_clean(ramped, 1)
    plainly = {"launcher": forked, "orders": {"plain_attention": True}}
    cpu = simulated.lab.watched("cpu", cold=True, **plainly, **CONFIG | RAMPED)
    assert cpu.code == 0, cpu.text[-4000:]
    assert ramped.run.watched_windows() == cpu.watched_windows() == [1, 1, 1, 2]
    pairs = zip(ramped.run.micro_losses(), cpu.micro_losses(), strict=True)
    apart = [abs(float.fromhex(one) / float.fromhex(other) - 1) for one, other in pairs]
    # Autocast computes norms in float32 on a GPU and in bf16 on a CPU; plain forward passes are bit-identical.
    assert max(apart) < BF16_STEP, apart


def test_two_ranks_on_two_devices_are_bit_identical(simulated: SimulatedRuns, on: Trained) -> None:
    """On the caches of a run with one rank: upstream's ranks race for the images of a new cache (UNIFIED_MEMORY.md)."""
    check_clean(on, 1)
    two_off = simulated.train("two-off", ranks=2, cold=False)
    two_on = simulated.train("two-on", ranks=2, cold=False, in_ram=True, **ON)
    assert two_on.bits() == two_off.bits()
    losses, updates, kept = two_on.bits()
    assert len(losses) == 2 * STEPS and len(updates) == 2 * STEPS and len(set(updates)) == STEPS and kept
    check_clean(two_off, 2)
    check_clean(two_on, 2)


@pytest.mark.slow(reason="two trainings on the simulated device")
@pytest.mark.parametrize("mode", ["cdmm", "pcie"])
def test_other_modes_are_bit_identical(simulated: SimulatedRuns, off: Trained, mode: str) -> None:
    on = simulated.train(mode, "--mode", mode, in_ram=True, **ON)
    assert on.bits() == off.bits()
    check_clean(on, 1)
    assert ("cpu_first instead of gpu_first" in on.run.text) == (mode == "cdmm")


SLOW = pytest.mark.slow(reason="one training on the simulated device each")


@pytest.mark.parametrize("family", ["gb10", *(pytest.param(name, marks=SLOW) for name in ("gh200", "gb200", "h100"))])
def test_every_family_is_bit_identical(simulated: SimulatedRuns, off: Trained, family: str) -> None:
    on = simulated.train(family, "--family", family, in_ram=True, cache_config=UNIFIED, gh200_optimizations=HINTS)
    assert on.bits() == off.bits()
    assert all(report["violations"] == [] for report in on.trainers)
    assert ("one memory pool" in on.run.text) == (family == "gb10")


@pytest.mark.slow(reason="three trainings on the simulated device")
@pytest.mark.parametrize("every", [3, 17, 101])
def test_a_driver_that_fails_every_nth_call(simulated: SimulatedRuns, off: Trained, every: int) -> None:
    """It ends well, with the right bytes; or with one clear error."""
    ran = simulated.train(f"every-{every}", "--fail-every", str(every), in_ram=True, code=None, **ON)
    if ran.run.code == 0:
        assert ran.bits() == off.bits()
    else:
        output = ran.run.text
        assert "CUDA_ERROR_UNKNOWN" in output or "CUDA driver error: unknown error" in output, output[
            -4000:
        ]  # ours, or torch's
    for report in ran.trainers:
        assert report["unhandled_launches"] == 0
        left = {what: count for what, count in report["left"]["driver"].items() if count}
        assert set(left) <= {"contexts"}, left


def test_cache_placement_pinned_is_bit_identical_with_one_copy_a_batch(simulated: SimulatedRuns, off: Trained) -> None:
    pinned = simulated.train("pinned", in_ram=True, **_placed("pinned"))
    assert pinned.bits() == off.bits()
    check_clean(pinned, 1)
    measured = pinned.run.end["runtime"]["measured"]
    assert (
        measured["Cache placement"]["way"] == "pinned"
        and measured["Unified memory"]["caches"]["batches_in_one_copy"] == STEPS
    )
    assert "one pinned buffer, one copy a batch" in pinned.run.text


@pytest.mark.slow(reason="four trainings of 12 steps on the simulated device")
@pytest.mark.parametrize("placement", ["hbm", "auto"])
def test_cache_placement_of_every_kind_is_bit_identical(simulated: SimulatedRuns, placement: str) -> None:
    """Two epochs and more: what stays in HBM after the first steps is read from there."""
    longer = {"max_train_steps": 3 * STEPS}
    stock = simulated.train("longer", **longer)
    placed = simulated.train(placement, in_ram=True, **_placed(placement) | longer)
    assert placed.bits() == stock.bits()
    check_clean(placed, 1)
    measured = placed.run.end["runtime"]["measured"]["Cache placement"]
    assert (placement == "auto") == ("milliseconds" in measured) and measured["asked"] == placement, measured
    assert placement == "auto" or placed.run.end["runtime"]["measured"]["Unified memory"]["hbm_share"]["given"] > 0


def _placed(placement: str) -> dict[str, Any]:
    return ON | {"cache_config": UNIFIED | {"placement": placement}}
