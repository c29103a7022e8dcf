"""The diagnostic's command line: will this machine do what a GH200 run is about to ask of it?"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..errors import GH200Error
from ..memory.driver import CudaError, Driver
from ..preflight.config import read_config
from ..settings.blocks import loaded_config
from .acceptance import command as acceptance
from .allocation import Allocation, try_allocation
from .bandwidth import Bandwidth, measure
from .checks.table import Finding, run_checks
from .device import Device
from .facts import Facts
from .gpu import read_gpus
from .host import read_host
from .machine import Machine
from .output import check_output, standard_output, write_report
from .preflighted import ask_preflight
from .print import Progress, print_page, summary
from .result import FAIL, SKIP, STATUSES
from .software import read_software

SCHEMA_VERSION = 1
REPORT = "gh200_diagnostic_report.json"
LARGEST_SCALE = 100.0
INTERRUPTED = 130
MOST_MINUTES = 1440.0
MINUTES, MINUTES_LARGE = 10.0, 60.0
_NO_DRIVER = "no CUDA device that the driver layer can use (see cuda_device)"
_EXAMPLES = """\
examples:
  python3 gh200_diagnostic.py                          everything, with the allocation test where there is a GPU
  python3 gh200_diagnostic.py --skip-allocation        facts and checks only: seconds, and nothing is allocated
  python3 gh200_diagnostic.py --config config/gh200_in_memory_example.json
                                                       will this training config fit on this machine?
  python3 gh200_diagnostic.py --json | jq .summary     for scripts; the exit code says it too
  .venv/bin/python gh200_diagnostic.py --acceptance    once per machine: every claim of ours tried on it, with trainings

exit code: 0 no check failed, 1 at least one did, 2 the command line or the config file cannot be used.
Of an acceptance run: 0 no claim was refuted, 1 at least one was, 3 nothing was tried (no GPU, or one in use), 130 or 143
interrupted, and what was seen by then is written
Any Python from 3.10 on will do, torch or not; .venv/bin/python tells most. docs/DIAGNOSTIC.md explains every check.
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
    made = argparse.ArgumentParser(
        prog="gh200_diagnostic.py", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
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


def _dynamic(facts: Facts, machine: Machine, options: argparse.Namespace, progress: Progress) -> Facts:
    """The tests that use the GPU, the largest one last."""
    if options.skip_allocation and not options.bandwidth:
        return facts
    driver = None if facts.gpus.hung else machine.driver()
    if not isinstance(driver, Driver):
        allocation = None if options.skip_allocation else Allocation(SKIP, _NO_DRIVER)
        return replace(
            facts, allocation=allocation, bandwidth=Bandwidth(SKIP, _NO_DRIVER) if options.bandwidth else None
        )

    def room() -> int:
        return read_host(machine).room_bytes

    try:
        device = Device(driver, 0)
    except CudaError as error:
        text, fix = f"the GPU cannot be opened: {error}", "check nvidia-smi: another process may hold it exclusively"
        allocation = None if options.skip_allocation else Allocation(FAIL, text, fix)
        return replace(
            facts, allocation=allocation, bandwidth=Bandwidth(FAIL, text, fix) if options.bandwidth else None
        )
    try:
        if options.bandwidth:
            facts = replace(facts, bandwidth=measure(device, room, facts.gpus.coherent, progress))
        if not options.skip_allocation:
            scale = options.oversubscription_scale
            facts = replace(facts, allocation=try_allocation(device, scale, room, progress))
    finally:
        progress.end()
        device.close()
    return facts


def report_of(facts: Facts, findings: tuple[Finding, ...], arguments: Sequence[str], code: int) -> dict[str, Any]:
    counts = {status: sum(finding.status == status for finding in findings) for status in STATUSES}
    return {
        "schema_version": SCHEMA_VERSION,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime()),
        "arguments": list(arguments),
        "facts": asdict(facts) | {"memory_mode": facts.memory_mode, "room_bytes": facts.host.room_bytes},
        "checks": [asdict(finding) for finding in findings],
        "summary": counts | {"exit_code": code},
    }


def diagnose(
    machine: Machine, options: argparse.Namespace, config: Mapping[str, object] | None
) -> tuple[Facts, tuple[Finding, ...]]:
    progress = Progress(options.quiet)
    progress("asking the machine")
    gpus = read_gpus(machine)
    facts = Facts(read_host(machine), gpus, read_software(machine))
    if config is not None:
        progress("reading the datasets of the config")
        processes = max(1, gpus.usable or len(gpus.devices))
        facts = replace(
            facts,
            config=read_config(options.config, config, processes, machine.environ),
            preflight=ask_preflight(options.config, config, processes, machine.environ, gpus.least_memory),
        )
    facts = _dynamic(facts, machine, options, progress)
    return facts, run_checks(facts, config is not None)


def _options(words: list[str]) -> argparse.Namespace:
    made = parser()
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
        return 2
    if options.acceptance:
        return acceptance.accept(machine or Machine(), options, words, trainer)
    try:
        facts, findings = diagnose(machine or Machine(), options, config)
    except KeyboardInterrupt:
        print("\ninterrupted; what was allocated has been freed, no report was written", file=sys.stderr)
        return INTERRUPTED
    code = 1 if any(finding.status == FAIL for finding in findings) else 0
    text = json.dumps(report_of(facts, findings, words, code), indent=1) + "\n"
    try:
        write_report(options.output, text)
    except OSError as error:
        print(f"The report could not be written to {options.output}: {error}", file=sys.stderr)
        return 2
    _show(options, facts, findings, text)
    return code


def _show(options: argparse.Namespace, facts: Facts, findings: tuple[Finding, ...], text: str) -> None:
    with standard_output():
        if options.json:
            sys.stdout.write(text)
            return
        if not options.quiet:
            print_page(facts, findings, sys.stdout)
        print(summary(findings, str(options.output)))
