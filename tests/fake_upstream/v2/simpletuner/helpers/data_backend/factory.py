from simpletuner.helpers.data_backend.local import LocalDirectory


def make_backend(kind, root):
    makers = {
        "local": LocalDirectory,
        "disk": LocalDirectory  # another word for it
    }
    if kind not in makers: raise ValueError(kind)
    return makers[kind](root)
