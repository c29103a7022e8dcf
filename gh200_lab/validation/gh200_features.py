"""Each feature of the fork by itself, in processes that import the installed fork and nothing of this checkout."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from .. import process
from ..machine import gpus
from ..place import Place, environment
from ..scenario import Failed, Scenario, Skipped, main, parser
from ..tiny.images import make_images

ABOUT = """\
Shows the diagnostic (with a GPU also its acceptance run), the memory layer, in-memory staging and the accumulation ramp of the built fork, one by one.
With no option, all of them; each option selects one, several add up.

exit codes: 0 nothing failed (skipped is no failure), 1 something failed, 2 there is no fork or no such name"""
LIMIT = 300.0
# Its own ten minutes, and what a training may take beyond them.
ACCEPTANCE_LIMIT = 1200.0
NOTHING_TRIED = 3
# The ramp from 1 to 4 over 12 micro-batches, worked out by hand from docs/RAMP.md.
SCHEDULES = {
    "quadratic": [1, 1, 1, 1, 1, 2, 2, 3, 4, 4],
    "linear": [1, 1, 2, 2, 3, 3, 4, 4, 4, 4],
    "staircase": [1, 1, 1, 1, 2, 2, 3, 3, 4, 4],
}
TOLERANCE = 1e-12


def diagnostic(place: Place, options: argparse.Namespace) -> str:
    """Without a GPU it must say so, and must find nothing else that is wrong."""
    script = place.fork / "gh200_diagnostic.py"
    if not script.is_file():
        raise Skipped("this fork has no gh200_diagnostic.py")
    with place.directory("diagnostic", options.keep) as directory:
        report_file = directory / "report.json"
        done = process.run(
            [
                sys.executable,
                str(script),
                *([] if gpus() else ["--skip-allocation"]),
                "--quiet",
                "--output",
                str(report_file),
            ],
            cwd=directory,
            environment=environment(place.fork),
            log=directory / "printed.log",
            limit=LIMIT,
        )
        report = _report(report_file, done)
        accepted = f"; {_accepted(script, place.fork, directory)}" if gpus() else ""
    failed = [check for check in report["checks"] if check["status"] == "fail"]
    wrong = [check for check in failed if gpus() or check["group"] != "gpu"]
    if wrong:
        raise Failed("; ".join(f"{check['title']} {check['message']}" for check in wrong))
    if done.code != (1 if failed else 0):
        raise Failed(f"{len(failed)} checks failed, and the exit code was {done.code}: {done.complaint()}")
    counts = ", ".join(f"{count} {status}" for status, count in report["summary"].items() if status != "exit_code")
    why = f"; no GPU here: {', '.join(check['id'] for check in failed)}" if failed else ""
    return f"{len(report['checks'])} checks: {counts}{why}{accepted}"


def _accepted(script: Path, fork: Path, directory: Path) -> str:
    """Only where there is a GPU: no claim may be refuted there."""
    report_file = directory / "acceptance.json"
    done = process.run(
        [sys.executable, str(script), "--acceptance", "--quiet", "--output", str(report_file)],
        cwd=directory,
        # What lends a GPU may stand on the path; the fork comes first.
        environment=environment(fork, PYTHONPATH=_behind(fork)),
        log=directory / "accepted.log",
        limit=ACCEPTANCE_LIMIT,
    )
    if done.code == NOTHING_TRIED:
        return f"acceptance rejected: {done.complaint()}"
    claims = _report(report_file, done)["claims"]
    refuted = [f"{claim['text']}: {claim['seen']}" for claim in claims if claim["verdict"] == "refuted"]
    if refuted or done.code:
        raise Failed("; ".join(refuted) or f"the acceptance run ended with exit code {done.code}: {done.complaint()}")
    cut = [claim["id"] for claim in claims if claim["verdict"] == "not tested"]
    return f"acceptance: {len(claims) - len(cut)} claims shown, not tested: {', '.join(cut) or 'none'}"


def _behind(tree: Path) -> str:
    return os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH", ""))))


def _report(path: Path, done: process.Finished) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise Failed(f"its report cannot be read ({problem}): {done.complaint()}") from None
    return report


def memory(place: Place, options: argparse.Namespace) -> str:
    """Memory hints and the cache arena."""
    seen = _probe(place, "memory", options.keep)
    answers = seen["answers"]
    problems = [name for name in ("equal", "strides") if not all(seen[name])]
    problems += [f"{name}: {answer}" for name, answer in answers.items() if answer not in _allowed(seen, name)]
    if seen["blocks_left"]:
        problems.append(f"{seen['blocks_left']} blocks were not given back")
    if problems:
        raise Failed("; ".join(problems))
    where = "managed memory" if seen["managed"] else "plain RAM, no managed memory here"
    return f"{len(seen['equal'])} tensors in {where}, bit-identical; hints counted: {seen['counts']['hints']}"


def _allowed(seen: dict[str, Any], name: str) -> tuple[str, ...]:
    """The allowed results of a hint: never `failed`, and with managed memory it must act on cached tensors."""
    if not gpus():
        return ("no_driver",)
    if seen["managed"] and name.endswith("cached"):
        return ("applied",)
    return ("applied", "not_managed", "unsupported")


def staging(place: Place, options: argparse.Namespace) -> str:
    """A dataset in RAM."""
    seen = _probe(place, "staging", options.keep)
    here, second = seen["here"], seen["second"]
    problems = [f"read back different here: {name}" for name, equal in here.items() if not equal]
    problems += [
        f"read back different by the second process: {name}" for name, equal in second["here"].items() if not equal
    ]
    if not len(here) == seen["staged"] == second["staged"] == len(second["here"]):
        problems.append(f"{len(here)} files, {seen['staged']} staged, {second['staged']} seen by the second process")
    if seen["after_release"]:
        problems.append(f"{seen['after_release']} files are still staged after the release")
    if problems:
        raise Failed("; ".join(problems))
    return f"{seen['staged']} files staged, read back equal, and again by a second process from the same memory"


def ramp(place: Place, options: argparse.Namespace) -> str:
    """A short training with the ramp."""
    seen = _probe(place, "ramp", options.keep)
    problems = [
        f"{shape}: windows {seen['schedules'][shape]} instead of {windows}"
        for shape, windows in SCHEDULES.items()
        if seen["schedules"][shape] != windows
    ]
    pairs = list(zip(seen["updates"], seen["by_hand"], strict=False))
    worst = max((abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)), default=float("inf"))
    if len(seen["updates"]) != len(seen["by_hand"]) or not worst <= TOLERANCE:
        problems.append(f"{len(seen['updates'])} updates, {len(seen['by_hand'])} by hand, furthest apart {worst:.2e}")
    if problems:
        raise Failed("; ".join(problems))
    return (
        f"3 schedules as worked out by hand; {len(pairs)} updates with Accelerate equal hand-made windows ({worst:.0e})"
    )


def _probe(place: Place, name: str, keep: bool) -> dict[str, Any]:
    """What a process of the fork saw; it is a failure if that process took its package from somewhere else."""
    with place.directory(name, keep) as directory:
        make_images(directory / "data", 3)
        answer = directory / "answer.json"
        done = process.run(
            [
                sys.executable,
                str(Path(__file__).with_name("gh200_probe.py")),
                name,
                str(answer),
                str(directory / "data"),
            ],
            cwd=directory,
            # Upstream's start-up code is for trainers, and takes ten seconds.
            environment=environment(place.fork, SIMPLETUNER_SKIP_TORCH="1"),
            log=directory / "printed.log",
            limit=LIMIT,
        )
        if done.code:
            raise Failed(f"exit code {done.code}: {done.complaint()}")
        seen: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if not Path(seen["package"]).is_relative_to(place.fork):
        raise Failed(f"simpletuner was imported from {seen['package']}, not from the fork")
    return seen


SCENARIOS = (
    Scenario("diagnostic", "system", diagnostic),
    Scenario("memory", "integration", memory),
    Scenario("staging", "integration", staging),
    Scenario("ramp", "integration", ramp),
)


def arguments() -> argparse.Namespace:
    """The parsed command line."""
    made = parser(ABOUT)
    made.prog = "scripts/test_gh200_features.sh"
    for scenario in SCENARIOS:
        made.add_argument(
            f"--{scenario.name}", action="append_const", dest="only", const=scenario.name, help=scenario.level
        )
    return made.parse_args()


if __name__ == "__main__":
    process.end_well_when_asked_to()
    sys.exit(main(SCENARIOS, arguments()))
