class LocalDirectory:
    kind = "local"

    def __init__(self, root, name="local"):
        self.root = root
        self.name = name

    def read(self, key, as_text=False, limit=None):
        with open(f"{self.root}/{key}", "r" if as_text else "rb") as file:
            return file.read(limit)

    def keys(self):
        return []

    def size(self, key):
        return len(self.read(key))
