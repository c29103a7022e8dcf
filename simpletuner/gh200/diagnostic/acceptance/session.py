"""The parts of an acceptance run in their order: none can stop the others, and what was cut is marked not tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...memory.driver import CudaError
from ...memory.family import ONE_POOL
from .bench import Bench
from .claims import CLAIMS, NOT_APPLICABLE, OF_OWN_MEMORY, REFUTED, Answer, NotTested, complete
from .memory import first_touch, hints, prefetch, pressure
from .processes import forked_child, machine, threads
from .training_claims import OUT_OF_TIME, large, trainings
from .transfers import bandwidth, batch, scale

GONE = "the GPU stopped answering in an earlier part"


@dataclass(frozen=True)
class Part:
    """Named as its claims name it. An optional one is not begun once the minutes are over; where another process does
    the work, this one gives the GPU back first.
    """

    name: str
    ask: Callable[[Bench], Iterator[Answer]]
    optional: bool = False
    elsewhere: bool = False


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
    Part("moving a batch", batch, optional=True, elsewhere=True),
    Part("trainings", trainings, optional=True, elsewhere=True),
    Part("large", large, elsewhere=True),  # looks at the time itself, once it is asked for
)


def run_parts(bench: Bench, answers: dict[str, Answer]) -> None:
    """Fills `answers` as they come, so that an interrupted run keeps what it has seen."""
    if bench.platform.one_pool:
        answers |= {claim: Answer(claim, NOT_APPLICABLE, "", ONE_POOL) for claim in OF_OWN_MEMORY}
    for part in PARTS:
        if all(claim.id in answers for claim in CLAIMS if claim.part == part.name):
            continue
        if part.elsewhere:
            bench.device.close()
            bench.driver.let_go()
        if part.optional and bench.left() <= 0:
            complete(answers, OUT_OF_TIME, part.name)
            continue
        bench.tell(part.name)
        if _gone(part, bench, answers):
            complete(answers, GONE)
            return


def _gone(part: Part, bench: Bench, answers: dict[str, Answer]) -> bool:
    """Runs a part; whether the GPU is gone since."""
    try:
        for answer in part.ask(bench):
            answers.setdefault(answer.claim, answer)
    except NotTested as reason:
        complete(answers, str(reason), part.name)
    except CudaError as error:
        complete(answers, f"failed: {error}", part.name, REFUTED)
        return error.device_gone
    except Exception as error:  # a fault of ours must not cost the other parts
        complete(answers, f"the test itself failed: {type(error).__name__}: {error}", part.name)
    complete(answers, "left out: what it builds on was not seen", part.name)
    return False
