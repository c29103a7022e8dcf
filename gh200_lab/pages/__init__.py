"""Documents and pictures made from this checkout's own tables, whichever fork is built."""

from ..checkout import see_this_checkout

see_this_checkout()
