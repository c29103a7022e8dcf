"""What a process does with the signals of a scheduler: real processes, no trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from simpletuner.gh200.preemption.marker import MARKER, keep_place, mark, place_in, unmark
from simpletuner.gh200.preemption.signals import EXIT_CODE, SAME_WARNING_SECONDS, PreemptionError, Signals

REPO = ROOT

LISTEN = """
import multiprocessing, os, sys, time
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
from simpletuner.gh200.preemption.signals import Signals
heard = Signals()
heard.listen()
def wait():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.02)
"""
WAIT = "print('ready', flush=True)\nwait()\n"


class Listener:
    """A Python that listens, and then does what the lines say."""

    def __init__(self, lines: str) -> None:
        variables = {**os.environ, "PYTHONPATH": str(REPO)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LISTEN + lines],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        _, told = self.process.communicate(timeout=30)
        return self.process.returncode, told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_superchip_a_signal_before_training_ends_the_run_with_its_own_code(number: signal.Signals) -> None:
    listener = Listener(WAIT)
    listener.tell(number)
    code, told = listener.end()
    assert code == EXIT_CODE and f"{number.name} before training has begun" in told


def test_superchip_in_training_the_first_signal_asks_and_a_later_one_ends_at_once() -> None:
    listener = Listener("heard.training = True\n" + WAIT)
    listener.tell(signal.SIGUSR1)
    # What a launcher passes on at the same moment is no second one.
    listener.tell(signal.SIGTERM)
    time.sleep(SAME_WARNING_SECONDS + 0.3)
    assert listener.process.poll() is None
    listener.tell(signal.SIGTERM)
    code, told = listener.end()
    assert code == -signal.SIGTERM and told.count("this window is finished") == 1


def test_superchip_a_second_signal_after_the_checkpoint_keeps_the_code() -> None:
    listener = Listener("heard.training, heard.leaving, heard.asked_with = False, True, 15\n" + WAIT)
    listener.tell(signal.SIGTERM)
    assert listener.end()[0] == EXIT_CODE


def test_superchip_a_forked_worker_still_ends_when_its_parent_says_so() -> None:
    lines = """
heard.training = True
child = multiprocessing.get_context("fork").Process(target=wait)
child.start()
print("ready", flush=True)
os.kill(child.pid, 10)
time.sleep(0.3)
assert child.is_alive(), "a warning to all processes is not for it"
child.terminate()
child.join(20)
sys.exit(7 if child.exitcode == -15 and not heard.asked_with else 1)
"""
    assert Listener(lines).end()[0] == 7


def test_superchip_what_listened_before_is_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    heard = Signals()
    heard.listen()
    assert signal.getsignal(signal.SIGTERM) != before[0]
    heard.stop_listening()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_superchip_upstreams_own_use_of_the_signal_is_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_FAULTHANDLER_DIR", "dumps")
    with pytest.raises(PreemptionError, match="unset SIMPLETUNER_FAULTHANDLER_DIR"):
        Signals().listen()


def test_superchip_somebody_elses_handler_is_a_rejection() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with pytest.raises(PreemptionError, match="listens for SIGUSR1 itself"):
            Signals().listen()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_superchip_the_marker_comes_and_goes_and_a_broken_place_is_none(tmp_path: Path) -> None:
    unmark(tmp_path)
    mark(tmp_path, checkpoint="checkpoint-3", step=3)
    assert '"checkpoint": "checkpoint-3"' in (tmp_path / MARKER).read_text()
    unmark(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert place_in(tmp_path) is None
    keep_place(tmp_path, 17)
    assert place_in(tmp_path) == 17
    (tmp_path / "gh200_micro_step.json").write_text('{"micro_step":')
    assert place_in(tmp_path) is None
