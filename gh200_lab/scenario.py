"""What the validation scripts have in common: named scenarios, one line each, an exit code, JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .place import Place, find_place

LEVELS = ("unit", "integration", "system", "performance")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Skipped(Exception):
    """This machine cannot run the scenario; the text says why."""


class Failed(Exception):
    """The scenario ran and did not show what it must; the text says what was seen."""


@dataclass(frozen=True)
class Scenario:
    """Something to show. `run` returns one sentence about what was seen, or raises Skipped or Failed."""

    name: str
    level: str
    run: Callable[[Place, argparse.Namespace], str]


@dataclass(frozen=True)
class Outcome:
    """How a scenario ended."""

    name: str
    level: str
    verdict: str
    what: str
    seconds: float
    trace: str = field(default="", repr=False)


def parser(description: str) -> argparse.ArgumentParser:
    """The options every script has; a script adds its own."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--level", choices=LEVELS, help="only the scenarios of one level")
    made.add_argument("--only", metavar="NAME", action="append", default=[], help="only this scenario; may be repeated")
    made.add_argument("--list", action="store_true", help="name the scenarios and end")
    made.add_argument(
        "--json", metavar="FILE", help="also write the outcomes to FILE; - for stdout, lines then go to stderr"
    )
    made.add_argument("--keep", action="store_true", help="leave the files of the runs where they are")
    return made


def main(scenarios: Sequence[Scenario], options: argparse.Namespace) -> int:
    """Runs the chosen scenarios. 0: none failed; 1: at least one did; 2: there is nothing to run them on."""
    known = {scenario.name: scenario for scenario in scenarios}
    unknown = [name for name in options.only if name not in known]
    if unknown:
        return _reject(f"there is no scenario named {', '.join(unknown)}", f"choose from: {', '.join(known)}")
    chosen = [
        scenario
        for scenario in scenarios
        if (not options.only or scenario.name in options.only) and options.level in (None, scenario.level)
    ]
    if options.list:
        print("\n".join(f"{scenario.name:<32} {scenario.level}" for scenario in chosen))
        return 0
    try:
        place = find_place()
    except FileNotFoundError as problem:
        return _reject(*map(str, problem.args))
    lines = sys.stderr if options.json == "-" else sys.stdout
    outcomes = []
    for scenario in chosen:
        outcome = _run(scenario, place, options)
        outcomes.append(outcome)
        print(
            f"{outcome.verdict:<8} {outcome.name:<32} {outcome.seconds:>6.0f} s  {outcome.what}", file=lines, flush=True
        )
        if outcome.trace:
            print(outcome.trace, file=sys.stderr, flush=True)
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in (PASSED, FAILED, SKIPPED)}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), file=lines)
    if options.json:
        _write(options.json, {"counts": counts, "scenarios": [asdict(outcome) for outcome in outcomes]})
    return 1 if counts[FAILED] else 0


def _run(scenario: Scenario, place: Place, options: argparse.Namespace) -> Outcome:
    started = time.monotonic()
    trace = ""
    try:
        verdict, what = PASSED, scenario.run(place, options)
    except Skipped as reason:
        verdict, what = SKIPPED, str(reason)
    except Failed as reason:
        verdict, what = FAILED, str(reason)
    except Exception as problem:
        # One scenario's surprise must not hide what the others would have shown.
        verdict, what, trace = FAILED, f"{type(problem).__name__}: {problem}", traceback.format_exc()
    return Outcome(scenario.name, scenario.level, verdict, what, time.monotonic() - started, trace)


def _write(target: str, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text, encoding="utf-8")


def _reject(what: str, fix: str) -> int:
    print(f"error: {what}\n  fix: {fix}", file=sys.stderr)
    return 2
