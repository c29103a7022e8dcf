"""The first command. Its report shares the fork's definition of the loss trend; no torch is loaded for that."""

import sys

from ..checkout import see_this_checkout

# Tests of the fork are collected with those of the quick start, and need all of its package.
if "simpletuner" not in sys.modules:
    see_this_checkout()
