"""Which of the ramp's keys go together; the sizes themselves are judged once the number of processes is known."""

from __future__ import annotations

from .problems import Problem, join_path, start_problems
from .schema import Optimizations

RAMP_SIZES = ("initial_effective_batch_size", "target_effective_batch_size", "batch_rampup_table")
_NOT_BESIDE_A_TABLE = (
    "initial_effective_batch_size",
    "target_effective_batch_size",
    "batch_rampup_steps",
    "batch_rampup_shape",
)


def check_ramp(block: Optimizations, where: str) -> tuple[list[Problem], list[str]]:
    """Problems, and what an operator may not expect."""
    problems: list[Problem] = []
    notes: list[str] = []
    if not block.enable_batch_size_rampup:
        idle = sorted(key for key in block.model_fields_set if key.startswith("batch_rampup_"))
        if idle and "enable_batch_size_rampup" not in block.model_fields_set:
            notes.append(f"no ramp: {', '.join(idle)} alone does not ask for one; give a size, a table or the switch")
        return problems, notes
    if block.batch_rampup_table is not None:
        return problems + _table_problems(block, where), notes
    if block.batch_rampup_shape == "measured":
        problems += _measured_problems(block, where)
    initial, target = block.initial_effective_batch_size, block.target_effective_batch_size
    if initial is not None and target is not None and target < initial:
        notes.append(f"the ramp goes down, from an effective batch of {initial} to {target}")
    if "batch_rampup_steps" not in block.model_fields_set:
        takes = "takes" if block.batch_rampup_shape != "measured" else "grows at most once in"
        unit = block.batch_rampup_unit.replace("_", "-")
        notes.append(f"batch_rampup_steps is not given: the ramp {takes} {block.batch_rampup_steps} {unit}")
    return problems, notes


def _table_problems(block: Optimizations, where: str) -> list[Problem]:
    beside = [key for key in _NOT_BESIDE_A_TABLE if key in block.model_fields_set]
    found = [
        Problem(join_path(where, key), "has no meaning beside batch_rampup_table; remove one of them") for key in beside
    ]
    path = join_path(where, "batch_rampup_table")
    starts = [start for start, _ in block.batch_rampup_table or ()]
    return found + [Problem(path, text) for text in start_problems(starts)]


def _measured_problems(block: Optimizations, where: str) -> list[Problem]:
    found = []
    if not block.measure_gradient_noise_scale:
        path = join_path(where, "measure_gradient_noise_scale")
        found.append(Problem(path, 'a ramp of the shape "measured" cannot do without it; remove one of them'))
    if block.batch_rampup_steps == 0:
        path = join_path(where, "batch_rampup_steps")
        found.append(Problem(path, "a measured ramp needs a distance between two growths, at least 1"))
    return found
