"""Unit tests import only the overlay and stay in one process."""

from in_process import pytest_runtest_call, pytest_runtest_setup
from light_imports import _light_imports

__all__ = ["_light_imports", "pytest_runtest_call", "pytest_runtest_setup"]
