DEFAULTS = {"rounds": 1, "every": 2, "folder": "store"}


def read_settings(given, defaults=None):
    merged = dict(defaults or DEFAULTS)
    merged.update(given)
    return merged
