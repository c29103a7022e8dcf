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
from simpletuner.gh200.preemption.marker import MARKER, remove_marker, save_micro_step, saved_micro_step, write_marker
from simpletuner.gh200.preemption.signals import EXIT_CODE, SAME_SIGNAL_SECONDS, PreemptionError, Signals

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
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_training_ends_the_run_with_its_own_code(number: signal.Signals) -> None:
    listener = Listener(WAIT)
    listener.tell(number)
    code, errors = listener.end()
    assert code == EXIT_CODE and f"{number.name} before training began" in errors


def test_in_training_the_first_signal_requests_and_a_later_one_ends_at_once() -> None:
    listener = Listener("heard.training = True\n" + WAIT)
    listener.tell(signal.SIGUSR1)
    # What a launcher passes on at the same moment is no second one.
    listener.tell(signal.SIGTERM)
    time.sleep(SAME_SIGNAL_SECONDS + 0.3)
    assert listener.process.poll() is None
    listener.tell(signal.SIGTERM)
    code, errors = listener.end()
    assert code == -signal.SIGTERM and errors.count("finishing this accumulation window") == 1


def test_a_second_signal_after_the_checkpoint_keeps_the_code() -> None:
    listener = Listener("heard.training, heard.saved, heard.asked_with = False, True, 15\n" + WAIT)
    listener.tell(signal.SIGTERM)
    assert listener.end()[0] == EXIT_CODE


def test_a_forked_worker_is_ended_by_sigterm() -> None:
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


def test_the_handlers_from_before_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    heard = Signals()
    heard.listen()
    assert signal.getsignal(signal.SIGTERM) != before[0]
    heard.stop_listening()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_simpletuners_own_use_of_the_signal_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMPLETUNER_FAULTHANDLER_DIR", "dumps")
    with pytest.raises(PreemptionError, match="unset SIMPLETUNER_FAULTHANDLER_DIR"):
        Signals().listen()


def test_another_handler_is_rejected() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with pytest.raises(PreemptionError, match="calling program handles SIGUSR1"):
            Signals().listen()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_marker_is_written_and_removed_and_a_broken_micro_step_is_none(tmp_path: Path) -> None:
    remove_marker(tmp_path)
    write_marker(tmp_path, checkpoint="checkpoint-3", step=3)
    assert '"checkpoint": "checkpoint-3"' in (tmp_path / MARKER).read_text()
    remove_marker(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert saved_micro_step(tmp_path) is None
    save_micro_step(tmp_path, 17)
    assert saved_micro_step(tmp_path) == 17
    (tmp_path / "gh200_micro_step.json").write_text('{"micro_step":')
    assert saved_micro_step(tmp_path) is None
