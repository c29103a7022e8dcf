"""Eight processes that come and go over one folder for fifty rounds, killed and stopped at random."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from fleet import Rank

from simpletuner.gh200.datasets.command import main

pytestmark = [pytest.mark.unit, pytest.mark.slow]
RANKS, ROUNDS = 8, 50


def holders(place: Path) -> set[str]:
    """Processes of this storm that have a memory file of ours."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                ours = f"TMPDIR={place}".encode() in (entry / "environ").read_bytes().split(b"\0")
                links = {os.readlink(link) for link in (entry / "fd").iterdir()} if ours else set()
            except OSError:
                continue
            if any(link.startswith("/memfd:simpletuner-gh200-") for link in links):
                found.add(entry.name)
    return found


def test_fleet_storm_no_false_death_no_hang_nothing_left(
    tmp_path: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / f"data/{number}.bin").write_bytes(os.urandom(20_000))
    chosen = random.Random(18)
    came = killed = told = 0
    for _ in range(ROUNDS):
        ranks = [
            Rank(tmp_path / "data", delay=chosen.choice([0, 0, 0.3]), run=[f"run{chosen.randrange(2)}"], patience=5)
            for _ in range(RANKS)
        ]
        victims = set(chosen.sample(ranks, chosen.randrange(4)))
        stopped = set(chosen.sample(ranks, chosen.randrange(2))) - victims
        time.sleep(chosen.uniform(0.3, 2.5))
        for rank in stopped:
            rank.process.send_signal(signal.SIGSTOP)
        for rank in victims:
            rank.process.kill()
            time.sleep(chosen.uniform(0, 0.2))
        dead = {f"Process {rank.pid} ended" for rank in victims}
        digests = set()
        for rank in set(ranks) - victims - stopped:
            reply = rank.came(seconds=90)
            if "error" in reply:
                # Only of one that was really killed, and never more than that.
                assert reply["error"] == "StagerFailed" and any(text in reply["text"] for text in dead), reply
                told += 1
            elif reply["digest"] is not None:
                digests.add(reply["digest"])
                came += 1
            else:
                assert stopped, "read from disk, though nobody was stopped"
        assert len(digests) <= 1 or victims or stopped, digests
        for rank in stopped:
            rank.process.send_signal(signal.SIGCONT)
        killed += len(victims)
        for rank in ranks:
            rank.end()
    assert came > ROUNDS and killed > ROUNDS / 2, (came, killed, told)
    assert not holders(temporary)
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert all(path.stat().st_size == 0 and path.suffix == ".stage" for path in left) and len(left) <= 1
    assert main(["list"]) == 0 and str(tmp_path) not in capsys.readouterr().out
    assert not list(temporary.rglob("*.stage"))
