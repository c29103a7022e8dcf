"""The parts of an acceptance run in their order: none can stop the others, and what was cut is marked not tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...memory.driver import CudaError
from .batch import batch
from .bench import Bench
from .claims import CLAIMS, NOT_TESTED, REFUTED, Answer, NotTested, complete
from .compared import OUT_OF_TIME, large, trainings
from .identity import machine
from .moving import hints, prefetch
from .pressure import pressure
from .processes import forked_child, threads
from .scale import bandwidth, scale
from .touching import first_touch

GONE = "the GPU stopped answering in an earlier part"


@dataclass(frozen=True)
class Part:
    """Named as its claims name it; an optional one is not begun once the minutes are over."""

    name: str
    ask: Callable[[Bench], Iterator[Answer]]
    optional: bool = False


# Other processes want the GPU for themselves, so they come after everything that this one does on it.
PARTS: tuple[Part, ...] = (
    Part("machine", machine),
    Part("threads", threads),
    Part("first touch", first_touch),
    Part("hints", hints),
    Part("prefetch", prefetch),
    Part("pressure", pressure),
    Part("forked child", forked_child),
    Part("bandwidth", bandwidth, optional=True),
    Part("scale", scale, optional=True),
    Part("moving a batch", batch, optional=True),
    Part("trainings", trainings, optional=True),
    Part("large", large),  # looks at the time itself, once it is asked for
)
ALONE = ("moving a batch", "trainings", "large")


def run_parts(bench: Bench, answers: dict[str, Answer]) -> None:
    """Fills `answers` as they come, so that an interrupted run keeps what it has seen."""
    gone = False
    for part in PARTS:
        if part.name in ALONE:
            bench.device.close()
            bench.driver.let_go()
        if gone:
            complete(answers, part.name, NOT_TESTED, GONE)
        elif part.optional and bench.left() <= 0:
            complete(answers, part.name, NOT_TESTED, OUT_OF_TIME)
        else:
            bench.tell(part.name, 0.0)
            gone = _run(part, bench, answers)


def _run(part: Part, bench: Bench, answers: dict[str, Answer]) -> bool:
    """Whether the GPU is gone."""
    try:
        for answer in part.ask(bench):
            answers[answer.claim] = answer
    except NotTested as reason:
        complete(answers, part.name, NOT_TESTED, str(reason))
    except CudaError as error:
        complete(answers, part.name, REFUTED, f"failed: {error}")
        return error.device_gone
    except Exception as error:  # a fault of ours must not cost the other parts
        complete(answers, part.name, NOT_TESTED, f"the test itself failed: {type(error).__name__}: {error}")
    complete(answers, part.name, NOT_TESTED, "left out: what it builds on was not seen")
    return False


def nothing_tried(answers: dict[str, Answer], why: str) -> None:
    for claim in CLAIMS:
        answers.setdefault(claim.id, Answer(claim.id, NOT_TESTED, "", why))
