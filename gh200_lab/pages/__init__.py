"""Documents and images made from this checkout's own tables, whichever fork is built."""

import sys

from ..checkout import see_this_checkout

# Who has a package already keeps it: tests of the fork are collected with those of the pages, and need all of it.
if "simpletuner" not in sys.modules:
    see_this_checkout()
