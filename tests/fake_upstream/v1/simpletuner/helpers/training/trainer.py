"""Counts rounds and calls it training."""

import logging

from simpletuner.helpers.caching.store import Store
from simpletuner.helpers.configuration.loader import read_settings

log = logging.getLogger(__name__)


class Loop:
    """Not part of any real program."""

    def __init__(self, given):
        self.settings = read_settings(given)
        self.store = Store(self.settings["directory"])
        self.seen = []

    def fetch(self, number):
        return [number, number * 2]

    def run(self):
        number = 0
        while number < self.settings["rounds"]:
            pair = self.fetch(number)  # one pair per round
            if pair is None:
                break
            if number % self.settings["every"] == 0:
                self.seen.append(pair)
            number += 1
        self.report(number)
        return number

    def report(self, number):
        log.info("did %s rounds, not self.report(number)", number)
