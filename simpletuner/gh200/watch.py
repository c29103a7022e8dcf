"""`python -m simpletuner.gh200.watch OUTPUT_DIR`: a run's memory, caches and time, in a terminal or as JSON."""

import sys

from .cli.watch import main

if __name__ == "__main__":
    sys.exit(main())
