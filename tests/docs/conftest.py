"""The fixtures of tests that import only the overlay."""

from light_imports import _light_imports, machine

__all__ = ["_light_imports", "machine"]
