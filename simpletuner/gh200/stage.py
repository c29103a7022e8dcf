"""`python -m simpletuner.gh200.stage`: datasets held in RAM between runs."""

import sys

from .datasets.command import main

if __name__ == "__main__":
    sys.exit(main())
