"""The first command. Its report uses a definition of the fork's, and needs nothing else of it: no torch is loaded."""

from __future__ import annotations

from ..checkout import see_this_checkout

see_this_checkout()
