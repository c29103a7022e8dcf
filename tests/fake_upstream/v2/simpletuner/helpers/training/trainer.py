"""Counts rounds and calls it training."""

import logging
import threading

from simpletuner.helpers.caching.store import Store
from simpletuner.helpers.configuration.loader import read_settings

log = logging.getLogger(__name__)


class Loop:
    """Not part of any real program."""

    def __init__(self, given):
        self.settings = read_settings(given)
        self.store = Store(self.settings["directory"])
        self.lock = threading.Lock()
        self.seen = []

    def next_pair(self, number, *, doubled=True):
        return [number, number * 2 if doubled else number]

    def run(self):
        number = 0
        self.report(number)
        while number < self.settings["rounds"]:
            with self.lock:
                pair = self.next_pair(number)
            if pair is None:
                break
            if number % self.settings["every"] == 0:
                self.seen.append(pair)
            number += 1
        self.report(number)
        return number

    def report(self, number):
        log.info("did %s rounds, not self.report(number)", number)
