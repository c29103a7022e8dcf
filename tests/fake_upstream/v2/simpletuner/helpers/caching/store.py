import os
import pickle


class Store:
    def __init__(self, folder):
        self.folder = folder
        self.reader = pickle.loads

    def path(self, key): return os.path.join(self.folder, key)

    def load(self, key):
        with open(self.path(key), "rb") as file:
            value = self.reader(file.read())
        return value
