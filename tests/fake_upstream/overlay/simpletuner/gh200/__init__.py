"""What the fork adds to the invented trainer; loaded lazily, like the real one."""

import importlib

_EXPORTS = {"settings_of": ".hooks"}


def __getattr__(name):
    if name not in _EXPORTS:
        raise AttributeError(name)
    return getattr(importlib.import_module(_EXPORTS[name], __name__), name)
