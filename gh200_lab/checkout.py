"""Which `simpletuner` a process of ours reads: this checkout's, although the environment's path leads to the built fork."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from .place import ROOT


def see_this_checkout() -> None:
    """A regular package anywhere on the path beats our folder, which has no `__init__.py`: so it is named beforehand."""
    spec = ModuleSpec("simpletuner", None, is_package=True)
    spec.submodule_search_locations = [str(ROOT / "simpletuner")]
    package = ModuleType("simpletuner")
    package.__spec__ = spec
    package.__path__ = spec.submodule_search_locations
    sys.modules["simpletuner"] = package
