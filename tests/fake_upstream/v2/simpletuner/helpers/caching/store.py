import os
import pickle


class Store:
    def __init__(self, directory):
        self.directory = directory
        self.reader = pickle.loads

    def path(self, key): return os.path.join(self.directory, key)

    def load(self, key):
        with open(self.path(key), "rb") as file:
            value = self.reader(file.read())
        return value
