"""`simpletuner gh200 bench NAME`: what the fork's features cost, beside what they replace, in one run."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime
from importlib import import_module
from pathlib import Path

from .plot import draw
from .result import BenchSettings, Ratio, Result, Series

# name -> module with `measure(settings)`, a generator of results; its docstring says what it measures.
BENCHMARKS = {
    "staging": "staging",
    "caches": "caches",
    "warm": "warm",
    "ramp": "ramp",
    "step": "step",
    "start": "start",
    "offload": "offload",
}
EPILOG = """Every figure is the median of interleaved rounds with the tenth and ninetieth percentile: the peers take turns, so that
whatever else the machine does falls on all of them. Results go to OUTPUT/NAME.json and, as a plot of cost against
size, OUTPUT/NAME.png. Targets that were missed are marked; only with --check do they make the exit code 1."""


def parser() -> argparse.ArgumentParser:
    """The command line of `bench`."""
    made = argparse.ArgumentParser(
        prog="simpletuner gh200 bench",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("benchmark", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    made.add_argument("--rounds", type=_count, default=5, help="how often everything is repeated (5)")
    made.add_argument(
        "--quick", action="store_true", help="small sizes: shows that it works, the measurements mean little"
    )
    made.add_argument("--million", action="store_true", help="start: also at 1,000,000 files, which takes long")
    made.add_argument("--directory", help="where test files are made (the system's directory for temporary files)")
    made.add_argument("--output", type=Path, default=Path("build/bench"), help="where results go (build/bench)")
    made.add_argument("--check", action="store_true", help="exit with 1 when a target was missed")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks; returns the exit code."""
    made = parser()
    chosen = made.parse_args(arguments)
    if chosen.directory and not Path(chosen.directory).is_dir():
        made.error(f"--directory {chosen.directory}: there is no such directory")
    try:
        chosen.output.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        made.error(f"--output {chosen.output}: {problem.strerror}")
    names = list(BENCHMARKS) if chosen.benchmark == "all" else [chosen.benchmark]
    results = {
        name: _measure(name, BenchSettings(chosen.rounds, chosen.quick, chosen.directory, chosen.million))
        for name in names
    }
    _write(chosen.output / chosen.benchmark, results)
    missed = [one.what for found in results.values() for one in found if isinstance(one, Ratio) and not one.met]
    print("\nmissed: " + "; ".join(missed) if missed else "\nall targets met")
    return 1 if missed and chosen.check else 0


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _measure(name: str, settings: BenchSettings) -> list[Result]:
    module = import_module(f"{__package__}.{BENCHMARKS[name]}")
    print(f"\n{name}: {str(module.__doc__).strip()}", flush=True)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {settings.rounds} rounds", flush=True)
    found: list[Result] = []
    for result in module.measure(settings):
        print("\n".join(result.lines()), flush=True)
        found.append(result)
    return found


def _write(target: Path, results: dict[str, list[Result]]) -> None:
    content = {
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %z}",
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "benchmarks": {name: [result.as_dict() for result in found] for name, found in results.items()},
    }
    target.with_suffix(".json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten: {target.with_suffix('.json')}")
    series = [result for found in results.values() for result in found if isinstance(result, Series)]
    if series:
        draw(series, target.with_suffix(".png"))
        print(f"written: {target.with_suffix('.png')}")
