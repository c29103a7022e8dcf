"""`python -m simpletuner.gh200.bench` has moved: measurements are no part of a training run."""

import sys

sys.exit("error: the benchmarks have moved\n  fix: python -m gh200_lab.bench")
