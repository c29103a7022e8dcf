DEFAULTS = {"rounds": 1, "every": 2, "directory": "store"}


def read_settings(given, defaults=None):
    merged = dict(defaults or DEFAULTS)
    merged.update(given)
    return merged
