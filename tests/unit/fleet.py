"""Processes that meet over a folder, each a real one, told what to do through a pipe."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = """
import json, os, sys, time
from pathlib import Path
from simpletuner.gh200.datasets.check import forget_changed
from simpletuner.gh200.datasets.elsewhere import Change
from simpletuner.gh200.datasets.party import Party, Run
from simpletuner.gh200.datasets.places import Key
from simpletuner.gh200.datasets.rendezvous import share
from simpletuner.gh200.datasets.staging import stage
from simpletuner.gh200.settings.schema import InMemory
order = json.loads(sys.argv[1])
def say(**what):
    print(json.dumps(what), flush=True)
def fill(told):
    told("reading", 3_000_000, 12_000_000)
    say(staging=os.getpid())
    if order["fork"] and not (child := os.fork()):
        time.sleep(600)
    if order["fork"]:
        say(child=child)
    time.sleep(order["delay"])
    if order["failure"]:
        raise ValueError(order["failure"])
    return stage(order["dataset"], order["root"], InMemory(**order["options"]), told=told)
run = Run(tuple(order["run"]), order["first"])
options = InMemory(**order["options"])
party = Party(order["dataset"], run, options.model_dump_json(), order["patience"])
key = Key(os.path.realpath(order["root"]), options.compression, order["node"])
say(ready=os.getpid())
try:
    arena = share(key, party, fill, lambda arena: forget_changed(arena))
except BaseException as error:
    say(error=type(error).__name__, text=str(error))
    sys.exit(1)
say(digest=arena and arena.digest, files=arena and arena.files)
for line in sys.stdin:
    word, _, path = line.strip().partition(" ")
    if word == "read":
        number = arena.find(path)
        say(data=None if number is None else arena.read(number).hex())
    elif word == "change":
        change = Change(path)
        change.forget_everywhere()
        say(done=True)
    elif word == "check":
        say(found=forget_changed(arena))
    elif word == "drop":
        del arena
        say(done=True)
"""


class Rank:
    def __init__(self, root: Path, **order: Any) -> None:
        usual = {"root": str(root), "dataset": "x", "options": {}, "delay": 0, "failure": "", "fork": False}
        more = {"run": ["one"], "first": True, "patience": 60, "node": None}
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, json.dumps(usual | more | order)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)
        self._read = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def answer(self, *keys: str, seconds: float = 60) -> dict[str, Any]:
        """The next answer that has one of the keys; an answer that does not come is a hang."""
        assert self.process.stdout
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            line, end, rest = self._read.partition(b"\n")
            if end:
                self._read = rest
                said: dict[str, Any] = json.loads(line)
                if not keys or set(keys) & set(said):
                    return said
                continue
            select.select([self.process.stdout], [], [], 0.5)
            self._read += self.process.stdout.read() or b""
            if self.process.poll() is not None and not self._read:
                raise AssertionError(f"process {self.pid} ended: {self.errors()}")
        raise AssertionError(f"process {self.pid} said nothing about {keys} in {seconds} s")

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        return self.answer()

    def came(self, seconds: float = 60) -> dict[str, Any]:
        return self.answer("digest", "error", seconds=seconds)

    def errors(self) -> str:
        assert self.process.stderr
        os.set_blocking(self.process.stderr.fileno(), False)
        return (self.process.stderr.read() or b"").decode()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe
            pipe.close()
