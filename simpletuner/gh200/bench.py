"""`python -m simpletuner.gh200.bench NAME`: the benchmarks of this package, one module each."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

# name -> module with `main(arguments) -> exit code`; its docstring is the help.
BENCHMARKS = {
    "caches": "bench_caches",
    "ramp": "bench_ramp",
    "staging": "bench_staging",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m simpletuner.gh200.bench", description=__doc__)
    parser.add_argument("benchmark", choices=sorted(BENCHMARKS))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of the benchmark; --help shows them")
    chosen = parser.parse_args(arguments)
    return int(import_module(f"{__package__}.{BENCHMARKS[chosen.benchmark]}").main(chosen.options))


if __name__ == "__main__":
    sys.exit(main())
