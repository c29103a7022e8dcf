"""The acceptance run from its start to its report: refused on a GPU in use, interruptible, and nothing left behind."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import GH200Error
from ...memory.driver import CudaError, Driver
from ..device import Device
from ..facts import Facts
from ..gpu import read_gpus
from ..host import read_host
from ..machine import Machine
from ..output import standard_output, write_report
from ..print import Progress
from ..software import read_software
from .bench import Bench
from .claims import BY_ID, CLAIMS, REFUTED, VERDICTS, Answer
from .guard import only_one, refuse_busy
from .page import print_page, summary
from .session import nothing_tried, run_parts
from .trainings import Trained, Trainer

SCHEMA_VERSION = 1
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

    def __init__(self, facts: Facts, options: argparse.Namespace, words: Sequence[str]) -> None:
        self.facts, self.options, self._words = facts, options, list(words)
        self.answers: dict[str, Answer] = {}
        self.trained: list[Trained] = []
        self.ended, self.code = "", 0
        self._began = time.monotonic()

    def settle(self, ended: str = "", code: int | None = None) -> None:
        """`ended` says why it came to an early end; claims without an answer get it as their reason."""
        self.ended = ended
        nothing_tried(self.answers, ended)
        refuted = any(answer.verdict == REFUTED for answer in self.answers.values())
        self.code = code if code is not None else int(refuted)

    def report(self) -> dict[str, Any]:
        claims = [asdict(BY_ID[claim.id]) | _without_name(self.answers[claim.id]) for claim in CLAIMS]
        counts = {verdict: sum(claim["verdict"] == verdict for claim in claims) for verdict in VERDICTS}
        return {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
            "arguments": self._words,
            "minutes": self.options.minutes,
            "seconds": round(time.monotonic() - self._began, 1),
            "ended": self.ended,
            "facts": asdict(self.facts) | {"memory_mode": self.facts.memory_mode, "room_bytes": self.facts.host.room_bytes},
            "claims": claims,
            "trainings": [asdict(one) for one in self.trained],
            "summary": counts | {"exit_code": self.code},
        }  # fmt: skip


def _without_name(answer: Answer) -> dict[str, Any]:
    told = asdict(answer)
    del told["claim"]
    return told


def accept(machine: Machine, options: argparse.Namespace, words: Sequence[str], trainer: MakeTrainer | None) -> int:
    with _stoppable() as stop_no_more:
        try:
            progress = Progress(options.quiet)
            progress("asking the machine")
            facts = Facts(read_host(machine), read_gpus(machine), read_software(machine))
            done = Acceptance(facts, options, words)
            _try(done, machine, progress, trainer)
        except GH200Error as error:
            print(error.render(), file=sys.stderr)
            return NOTHING_TRIED
        except AskedToStop as stop:
            print("\ninterrupted before anything was tried; no report was written", file=sys.stderr)
            return 128 + stop.number
        # From here on there is something to lose.
        stop_no_more()
        return _told(done)


def _try(done: Acceptance, machine: Machine, progress: Progress, trainer: MakeTrainer | None) -> None:
    driver = None if done.facts.gpus.hung else machine.driver()
    if not isinstance(driver, Driver):
        missing = (
            f"{driver.what}{f': {driver.why}' if driver.why else ''}" if isinstance(driver, GH200Error) else "see above"
        )
        done.settle(f"no CUDA device that can be used ({missing}), so nothing could be tried", NOTHING_TRIED)
        return
    try:
        uuid = driver.device_uuid(ORDINAL)
        with only_one(uuid):
            refuse_busy(done.facts, machine, uuid, driver.memory_info(ORDINAL))
            _run(done, Device(driver, ORDINAL), machine, progress, trainer)
    finally:
        progress.end()
        driver.let_go()


def _run(
    done: Acceptance, device: Device, machine: Machine, progress: Progress, make_trainer: MakeTrainer | None
) -> None:
    options = done.options
    try:
        with contextlib.closing(make_trainer()) if make_trainer else contextlib.nullcontext() as trainer:
            bench = Bench(
                done.facts, machine, device, progress, options.oversubscription_scale,
                deadline=time.monotonic() + 60 * options.minutes, hbm=device.memory()[1], trainer=trainer,
                untrained=NO_LAB, large=options.large, trained=done.trained,
            )  # fmt: skip
            run_parts(bench, done.answers)
    except AskedToStop as stop:
        done.settle(f"interrupted by {signal.Signals(stop.number).name}", 128 + stop.number)
    else:
        done.settle()
    finally:
        with contextlib.suppress(CudaError):
            device.close()


@contextlib.contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """The first signal stops the work; later ones find it stopping already, and so does one after `stop_no_more`."""
    stopping = False

    def stop_no_more() -> None:
        nonlocal stopping
        stopping = True

    def stop(number: int, _: object) -> None:
        if not stopping:
            stop_no_more()
            raise AskedToStop(number)

    watched = [signal.SIGINT, signal.SIGTERM]
    # nohup means that a lost terminal shall not end it.
    watched += [signal.SIGHUP] * (signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)
    before = {number: signal.signal(number, stop) for number in watched}
    try:
        yield stop_no_more
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(done: Acceptance) -> int:
    options = done.options
    text = json.dumps(done.report(), indent=1) + "\n"
    written = _written(options.output, text)
    with standard_output():
        if options.json:
            sys.stdout.write(text)
        else:
            if not options.quiet:
                print_page(done.facts, done.answers, done.trained, sys.stdout)
            print(summary(done.answers, done.ended, written))
    return done.code


def _written(target: Path, text: str) -> str:
    """Minutes of work are not lost because a disk filled up meanwhile."""
    try:
        write_report(target, text)
        return str(target)
    except OSError as error:
        print(f"The report could not be written to {target}: {error}", file=sys.stderr)
    try:
        with tempfile.NamedTemporaryFile("w", prefix="gh200-acceptance-", suffix=".json", delete=False) as kept:
            kept.write(text)
        return kept.name
    except OSError:
        print(text, file=sys.stderr)
        return "above, on standard error"
