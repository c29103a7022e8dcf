from simpletuner.helpers.data_backend.local import LocalFolder


def make_backend(kind, root):
    makers = {
        "local": LocalFolder,
        "disk": LocalFolder  # another word for it
    }
    if kind not in makers: raise ValueError(kind)
    return makers[kind](root)
