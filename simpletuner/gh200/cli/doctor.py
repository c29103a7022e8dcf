"""The diagnostic's command line: will this machine do what a GH200 run is about to ask of it?"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..config.blocks import loaded_config
from ..diagnostic.allocation import Allocation, try_allocation
from ..diagnostic.bandwidth import Bandwidth, measure
from ..diagnostic.checks.table import Finding, run_checks
from ..diagnostic.device import Device
from ..diagnostic.facts import Facts, ask_preflight, read_facts
from ..diagnostic.host import read_host
from ..diagnostic.machine import Machine
from ..diagnostic.output import UNUSABLE, check_output, deliver, report_head
from ..diagnostic.page import Page, Progress, show_facts, show_findings, summary
from ..diagnostic.status import FAIL, SKIP, STATUSES, Result
from ..errors import GH200Error
from ..memory.driver import CudaError, Driver
from ..preflight.config import read_config
from . import accept as acceptance

REPORT = "gh200_diagnostic_report.json"
LARGEST_SCALE = 100.0
INTERRUPTED = 130
MOST_MINUTES = 1440.0
MINUTES, MINUTES_LARGE = 10.0, 60.0
_NO_DRIVER = "no CUDA device that the driver layer can use (see cuda_device)"
_EXAMPLES = """\
examples:
  simpletuner gh200 doctor                             everything, with the allocation test where there is a GPU
  simpletuner gh200 doctor --skip-allocation           facts and checks only: seconds, and nothing is allocated
  simpletuner gh200 doctor --config config/gh200_in_memory_example.json
                                                       will this training config fit on this machine?
  simpletuner gh200 doctor --json | jq .summary      for scripts; the exit code says it too
  simpletuner gh200 accept                             once per machine: every claim of ours tried on it, with trainings

exit code: 0 no check failed, 1 at least one did, 2 the command line or the config file cannot be used.
Of an acceptance run: 0 no claim was refuted, 1 at least one was, 3 nothing was tried (no GPU, or one in use), 130 or 143
interrupted, and what was seen by then is written
gh200_diagnostic.py is the same for any Python from 3.10 on, torch or not. docs/DIAGNOSTIC.md explains every check.
"""


def _up_to(most: float, example: str) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise argparse.ArgumentTypeError(f"{text}: a number above 0 and up to {most:g} is wanted, e.g. {example}")
        return value

    return number


def parser() -> argparse.ArgumentParser:
    """The command line of the diagnostic."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 doctor", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument(
        "--oversubscription-scale", type=_up_to(LARGEST_SCALE, "1.5"), default=1.5, metavar="X",
        help="size of the allocation test as a multiple of the GPU's memory (default 1.5), bounded by free RAM",
    )  # fmt: skip
    made.add_argument("--skip-allocation", action="store_true", help="leave the allocation test out")
    made.add_argument("--bandwidth", action="store_true", help="also measure copies between host and GPU")
    made.add_argument("--config", type=Path, metavar="FILE", help="also check this training config (.json or .toml)")
    made.add_argument(
        "--output", type=Path, metavar="FILE",
        help=f"JSON report (default {REPORT}, of an acceptance run {acceptance.REPORT})",
    )  # fmt: skip
    made.add_argument(
        "--acceptance", action="store_true", help="the acceptance run of a real machine instead of checks"
    )
    made.add_argument(
        "--minutes", type=_up_to(MOST_MINUTES, "10"), metavar="N",
        help=f"time of an acceptance run's optional parts (default {MINUTES:g}; with --large {MINUTES_LARGE:g})",
    )  # fmt: skip
    made.add_argument("--large", action="store_true", help="acceptance: also train a model that is larger than HBM")
    made.add_argument("--json", action="store_true", help="the report on standard output, and nothing else there")
    made.add_argument("--quiet", action="store_true", help="only the summary line")
    return made


def _measured(facts: Facts, machine: Machine, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """The results of the tests that use the GPU, the largest one last."""

    def available() -> int:
        return read_host(machine).room_bytes

    tests: dict[str, tuple[type[Result], Callable[[Device], Result]]] = {}
    if options.bandwidth:
        tests["bandwidth"] = (Bandwidth, lambda device: measure(device, available, facts.gpus.family, progress))
    if not options.skip_allocation and not facts.one_pool:
        scale = options.oversubscription_scale
        tests["allocation"] = (Allocation, lambda device: try_allocation(device, scale, available, progress))
    driver = machine.driver() if tests and not facts.gpus.hung else None
    if not isinstance(driver, Driver):
        return {name: kind(SKIP, _NO_DRIVER) for name, (kind, _) in tests.items()}
    try:
        device = Device(driver, 0)
    except CudaError as error:
        text, fix = f"the GPU cannot be opened: {error}", "check nvidia-smi: another process may hold it exclusively"
        return {name: kind(FAIL, text, fix) for name, (kind, _) in tests.items()}
    try:
        return {name: test(device) for name, (_, test) in tests.items()}
    finally:
        device.close()


def diagnose(
    machine: Machine, options: argparse.Namespace, config: Mapping[str, object] | None
) -> tuple[Facts, tuple[Finding, ...]]:
    """Read the facts, run the tests that were asked for, and judge them."""
    progress = Progress(options.quiet)
    facts = read_facts(machine, progress)
    if config is not None:
        progress("reading the datasets of the config")
        gpus = facts.gpus
        processes = max(1, gpus.usable or len(gpus.devices))
        facts = replace(
            facts,
            config=read_config(options.config, config, processes, machine.environ),
            preflight=ask_preflight(options.config, config, processes, machine.environ, gpus.least_memory),
        )
    facts = replace(facts, **_measured(facts, machine, options, progress))
    return facts, run_checks(facts)


def _options(words: list[str]) -> argparse.Namespace:
    made = parser()
    if words[:1] == ["--acceptance"]:
        made.prog = made.prog.replace("doctor", "accept")
    options = made.parse_args(words)
    if options.acceptance:
        others = [name for name in ("config", "skip_allocation", "bandwidth") if getattr(options, name)]
        if others:
            made.error(
                f"--acceptance goes without --{others[0].replace('_', '-')}: run the diagnostic once more for it"
            )
    elif options.large or options.minutes is not None:
        made.error(f"{'--large' if options.large else '--minutes'} belongs to --acceptance")
    options.minutes = options.minutes or (MINUTES_LARGE if options.large else MINUTES)
    options.output = options.output or Path(acceptance.REPORT if options.acceptance else REPORT)
    return options


def main(
    arguments: Sequence[str] | None = None,
    machine: Machine | None = None,
    trainer: acceptance.MakeTrainer | None = None,
) -> int:
    """`trainer` makes what runs the trainings of an acceptance run; this package has nothing that could."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = _options(words)
    try:
        check_output(options.output)
        config = None if options.config is None else loaded_config(options.config.expanduser())
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return UNUSABLE
    if options.acceptance:
        return acceptance.accept(machine or Machine(), options, words, trainer)
    try:
        facts, findings = diagnose(machine or Machine(), options, config)
    except KeyboardInterrupt:
        print("\ninterrupted; what was allocated has been freed, no report was written", file=sys.stderr)
        return INTERRUPTED
    counts = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    report = report_head(facts, words) | {
        "checks": [asdict(finding) for finding in findings],
        "summary": counts | {"exit_code": int(counts[FAIL] > 0)},
    }

    def show(page: Page) -> None:
        show_facts(page, facts)
        show_findings(page, findings)

    return deliver(report, options, show, summary(findings))
