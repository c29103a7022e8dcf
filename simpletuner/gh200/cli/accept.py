"""The acceptance run from its start to its report: rejected on a GPU in use, interruptible, and nothing left behind."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ..diagnostic.acceptance.bench import Bench
from ..diagnostic.acceptance.claims import CLAIMS, REFUTED, VERDICTS, Answer, complete
from ..diagnostic.acceptance.guard import reject_busy
from ..diagnostic.acceptance.session import run_parts
from ..diagnostic.acceptance.trainings import Trained, Trainer
from ..diagnostic.device import Device
from ..diagnostic.facts import Facts, read_facts
from ..diagnostic.machine import Machine
from ..diagnostic.output import deliver, report_head
from ..diagnostic.page import Page, Progress, show_facts
from ..errors import GH200Error
from ..memory.driver import Driver
from ..memory.hbm import free_and_total

REPORT = "gh200_acceptance.json"
NOTHING_TRIED = 3
ORDINAL = 0
NO_LAB = "started without the lab (gh200_lab beside gh200_diagnostic.py), which trains"
MakeTrainer = Callable[[], Trainer]


class AskedToStop(KeyboardInterrupt):
    """A signal; what was seen so far is written all the same."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Acceptance:
    """What has been seen of one machine."""

    def __init__(self, facts: Facts, options: argparse.Namespace) -> None:
        self.facts, self.options = facts, options
        self.answers: dict[str, Answer] = {}
        self.trained: list[Trained] = []
        self.ended, self.code = "", 0
        self._began = time.monotonic()

    def settle(self, ended: str = "", code: int | None = None) -> None:
        """`ended` says why it came to an early end; claims without an answer get it as their reason."""
        self.ended = ended
        complete(self.answers, ended)
        self.code = int(bool(self.refuted())) if code is None else code

    def refuted(self) -> list[str]:
        """Ids of the refuted claims."""
        return [answer.claim for answer in self.answers.values() if answer.verdict == REFUTED]

    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        found = Counter(answer.verdict for answer in self.answers.values())
        return {verdict: found[verdict] for verdict in VERDICTS}

    def report(self, words: Sequence[str]) -> dict[str, Any]:
        """The JSON report."""
        claims = [asdict(claim) | asdict(self.answers[claim.id]) for claim in CLAIMS]
        for claim in claims:
            del claim["claim"]
        return report_head(self.facts, words) | {
            "minutes": self.options.minutes,
            "seconds": round(time.monotonic() - self._began, 1),
            "ended": self.ended,
            "claims": claims,
            "trainings": [asdict(one) for one in self.trained],
            "summary": self.counts() | {"exit_code": self.code},
        }

    def show(self, page: Page) -> None:
        """Writes the page that people read."""
        show_facts(page, self.facts)
        part, indent = "", " " * 14
        for claim in CLAIMS:
            if claim.part != part:
                part = claim.part
                page.title(part[0].upper() + part[1:])
            answer = self.answers[claim.id]
            page.row(f"  {answer.verdict:<15}", f"{claim.text} ({claim.id})", answer.verdict)
            if answer.expected:
                page.row(f"{indent}expected: ", answer.expected)
            page.row(f"{indent}seen: ", answer.seen)
        if self.trained:
            page.title("Step times")
        for one in self.trained:
            times = " ".join(f"{seconds:.2f}" for seconds in one.step_seconds) or "none"
            page.row(f"  {one.name:<22}", f"{times} s; the whole run {one.seconds:.0f} s")
        page.end()

    def summary(self) -> str:
        """One line."""
        parts = [", ".join(f"{count} {verdict}" for verdict, count in self.counts().items())]
        parts += [f"refuted: {', '.join(self.refuted())}"] if self.refuted() else []
        parts += [self.ended] if self.ended else []
        return f"GH200 acceptance: {'; '.join(parts)}"


def accept(machine: Machine, options: argparse.Namespace, words: Sequence[str], trainer: MakeTrainer | None) -> int:
    """Runs the acceptance and delivers its report; the exit code."""
    with _stoppable() as ignore_signals:
        try:
            progress = Progress(options.quiet)
            done = Acceptance(read_facts(machine, progress), options)
            _try(done, machine, progress, trainer)
        except GH200Error as error:
            print(error.render(), file=sys.stderr)
            return NOTHING_TRIED
        except AskedToStop as stop:
            print("\ninterrupted before anything was tried; no report was written", file=sys.stderr)
            return 128 + stop.number
        # From here on there is something to lose.
        ignore_signals()
        return deliver(done.report(words), options, done.show, done.summary())


def _try(done: Acceptance, machine: Machine, progress: Progress, trainer: MakeTrainer | None) -> None:
    driver = None if done.facts.gpus.hung else machine.driver()
    if not isinstance(driver, Driver):
        missing = "; ".join(f"{source}: {text}" for source, text in done.facts.gpus.problems.items())
        done.settle(f"no CUDA device that can be used ({missing}), so nothing could be tried", NOTHING_TRIED)
        return
    try:
        uuid = driver.device_uuid(ORDINAL)
        reject_busy(done.facts, machine, uuid, free_and_total(ORDINAL))
        _run(done, Device(driver, ORDINAL), machine, progress, trainer)
    finally:
        driver.let_go()


def _run(
    done: Acceptance, device: Device, machine: Machine, progress: Progress, make_trainer: MakeTrainer | None
) -> None:
    options = done.options
    trainer, untrained = _trainer(make_trainer)
    bench = Bench(
        done.facts, machine, device, progress, options.oversubscription_scale,
        deadline=time.monotonic() + 60 * options.minutes, hbm=device.memory()[1], trainer=trainer,
        untrained=untrained, large=options.large, trained=done.trained,
    )  # fmt: skip
    try:
        with contextlib.closing(trainer) if trainer else contextlib.nullcontext():
            run_parts(bench, done.answers)
    except AskedToStop as stop:
        done.settle(f"interrupted by {signal.Signals(stop.number).name}", 128 + stop.number)
    else:
        done.settle()
    finally:
        device.close()


def _trainer(make_trainer: MakeTrainer | None) -> tuple[Trainer | None, str]:
    """What trains, or why nothing can."""
    if make_trainer is None:
        return None, NO_LAB
    try:
        return make_trainer(), ""
    except ImportError as error:
        return None, f"{error}; the trainings need gh200_lab beside gh200_diagnostic.py, and .venv/bin/python"


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """The first signal stops the work; from then on they are ignored, as after a call of what this yields."""
    watched = [signal.SIGINT, signal.SIGTERM]
    # nohup means that a lost terminal shall not end it.
    watched += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)

    def ignore() -> None:
        for number in watched:
            signal.signal(number, signal.SIG_IGN)

    def stop(number: int, _: object) -> None:
        ignore()
        raise AskedToStop(number)

    before = {number: signal.signal(number, stop) for number in watched}
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
