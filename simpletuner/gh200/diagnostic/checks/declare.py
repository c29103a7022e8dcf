"""How a check is declared: a function whose docstring is the question, the worst status it can have, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from ..facts import Facts
from ..gpu import Gpu
from ..status import FAIL, PASS, SKIP, WARN, Result

NO_DEVICE = "no CUDA device"
NOT_IN_ONE_POOL = "not applicable: CPU and GPU share one memory pool"
Ask = Callable[[Facts], Result]


@dataclass(frozen=True)
class Check:
    """`worst` is the worst status it can end with; `fix` is shown whenever it is not fine and names no other."""

    group: str
    worst: str
    ask: Ask
    fix: str

    @property
    def question(self) -> str:
        """First line of the docstring."""
        return (self.ask.__doc__ or "").partition("\n")[0]

    @property
    def id(self) -> str:
        """Its key in the report."""
        return self.ask.__name__


class Skipped(Exception):
    """A check cannot say anything here; the message and, where there is one, the fix."""


class Group:
    """Checks in the order in which they are declared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def check(self, worst: str, fix: str) -> Callable[[Ask], Ask]:
        """Declare a check of this group."""

        def declare(ask: Ask) -> Ask:
            self.checks.append(Check(self.name, worst, ask, fix))
            return ask

        return declare


def each_gpu(judge: Callable[[Facts, Gpu], Result]) -> Ask:
    """The worst over all GPUs, with every GPU that is not fine named."""

    @wraps(judge)
    def ask(facts: Facts) -> Result:
        if not facts.gpus.devices:
            return Result(SKIP, NO_DEVICE)
        results = [(gpu.index, judge(facts, gpu)) for gpu in facts.gpus.devices]
        for status in (FAIL, WARN, SKIP):
            found = [(index, result) for index, result in results if result.status == status]
            if found:
                shown = [
                    f"GPU {', '.join(str(index) for index, result in found if result.message == text)}: {text}"
                    for text in sorted({result.message for _, result in found})
                ]
                return Result(status, "; ".join(shown), found[0][1].fix)
        return Result(PASS, "; ".join(sorted({result.message for _, result in results})))

    return ask
