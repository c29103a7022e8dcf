"""Which `simpletuner` a process of ours reads: this checkout's, although the environment's path leads to the built fork."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from .place import ROOT


def see_this_checkout() -> None:
    """A regular package anywhere on the path beats our directory, which has no `__init__.py`: so it is named beforehand."""
    ours = [str(ROOT / "simpletuner")]
    seen = sys.modules.get("simpletuner")
    if seen is not None and list(seen.__path__) == ours:
        return
    spec = ModuleSpec("simpletuner", None, is_package=True)
    spec.submodule_search_locations = ours
    package = ModuleType("simpletuner")
    package.__spec__ = spec
    package.__path__ = ours
    sys.modules["simpletuner"] = package
