class LocalDirectory:
    kind = "local"

    def __init__(self, root, name="local"):
        self.root = root
        self.name = name

    def read(self, key, as_text=False):
        with open(f"{self.root}/{key}", "r" if as_text else "rb") as file:
            return file.read()

    def keys(self):
        return []
