"""Ranks of one machine: one stages, the others attach; a stager that dies or fails is named in seconds."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simpletuner.gh200.datasets import rendezvous
from simpletuner.gh200.datasets.rendezvous import Run, StagerFailed, meeting_point, share
from simpletuner.gh200.datasets.staging import stage
from simpletuner.gh200.memory.numa import cpu_node
from simpletuner.gh200.settings.schema import InMemory

pytestmark = pytest.mark.unit

RANK = """
import json, os, sys, time
from pathlib import Path
from simpletuner.gh200.datasets.rendezvous import share
from simpletuner.gh200.datasets.staging import stage
from simpletuner.gh200.settings.schema import InMemory
point, root, delay, failure, patience = sys.argv[1:]
def fill():
    print("staging", flush=True)
    time.sleep(float(delay))
    if failure:
        raise ValueError(failure)
    return stage("x", root, InMemory())
print("ready", flush=True)
try:
    arena = share(Path(point), fill, lambda arena: None, float(patience))
except BaseException as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
else:
    data = {name: arena.read(number).hex() for name, number in arena.names()}
    print(json.dumps({"data": data, "token": arena.digest}), flush=True)
    sys.stdin.readline()
"""


def rank(point: Path, root: Path, delay: float = 0, failure: str = "", patience: float = 0) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RANK, str(point), str(root), str(delay), failure, str(patience)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def answer(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout
    line = process.stdout.readline()
    while not line.startswith("{"):
        line = process.stdout.readline()
    return json.loads(line)


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout
    while process.stdout.readline().strip() != word:
        assert process.poll() is None


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / f"data/{number}.bin").write_bytes(os.urandom(1000))
    return tmp_path / "data"


@pytest.fixture
def point(tmp_path: Path) -> Path:
    return tmp_path / "meeting.json"


def test_four_ranks_share_one_arena_which_outlives_the_stager(root: Path, point: Path) -> None:
    ranks = [rank(point, root, delay=0.5) for _ in range(4)]
    try:
        answers = [answer(process) for process in ranks]
        assert len({reply["token"] for reply in answers}) == 1
        assert answers[0]["data"] == {str(path): path.read_bytes().hex() for path in root.iterdir()}
        assert all(reply == answers[0] for reply in answers)
        stager = json.loads(point.read_text().splitlines()[0])["pid"]
        assert stager in {process.pid for process in ranks}
    finally:
        end(*ranks)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_stager_that_dies_is_named_in_seconds(root: Path, point: Path, how: signal.Signals) -> None:
    stager = rank(point, root, delay=60)
    wait_for(stager, "staging")
    others = [rank(point, root) for _ in range(2)]
    for process in others:
        wait_for(process, "ready")
    time.sleep(1)
    stager.send_signal(how)
    stager.wait()
    began = time.monotonic()
    try:
        for process in others:
            reply = answer(process)
            assert reply["error"] == "StagerFailed" and f"Process {stager.pid} ended" in reply["text"]
        assert time.monotonic() - began < 10
    finally:
        end(*others)


def test_a_stager_that_fails_tells_the_others_why(root: Path, point: Path) -> None:
    ranks = [rank(point, root, delay=2, failure="the disk is on fire") for _ in range(2)]
    try:
        # Both fail: one by itself, the other (unless it came too late to see the first at work) with the same words.
        for process in ranks:
            assert "the disk is on fire" in answer(process)["text"]
        assert "the disk is on fire" in point.read_text()
    finally:
        end(*ranks)


def test_what_a_dead_run_left_behind_is_staged_anew(root: Path, point: Path) -> None:
    complete = rank(point, root)
    answer(complete)
    end(complete)
    assert '"handle"' in point.read_text()
    halfway = rank(point, root, delay=60)
    wait_for(halfway, "staging")
    end(halfway)
    assert point.read_text() == f'{{"pid": {halfway.pid}}}\n'
    fresh = rank(point, root)
    try:
        assert len(answer(fresh)["data"]) == 20
    finally:
        end(fresh)


def test_other_ranks_leave_the_staging_to_the_first(root: Path, point: Path) -> None:
    left_over = rank(point, root, delay=60)
    wait_for(left_over, "staging")
    end(left_over)
    others = [rank(point, root, patience=60) for _ in range(2)]
    for process in others:
        wait_for(process, "ready")
    time.sleep(0.5)
    first = rank(point, root)
    try:
        assert len({answer(process)["token"] for process in (first, *others)}) == 1
        assert json.loads(point.read_text().splitlines()[0])["pid"] == first.pid
    finally:
        end(first, *others)


def test_a_first_rank_that_never_comes_is_not_waited_for_long(root: Path, point: Path) -> None:
    began = time.monotonic()
    assert share(point, lambda: stage("x", root, InMemory()), lambda arena: None, patience=0.5) is not None
    assert 0.5 <= time.monotonic() - began < 5


def test_the_meeting_point_goes_with_the_stager(root: Path, point: Path) -> None:
    seen: list[object] = []
    arena = share(point, lambda: stage("x", root, InMemory()), seen.append)
    assert arena is not None and not seen
    again = share(point, lambda: pytest.fail("staged twice"), seen.append)
    assert again is not None and again.digest == arena.digest and seen == [again]
    del arena
    assert not point.exists()


def test_a_refused_attach_says_so_and_reads_from_disk(
    root: Path, point: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    arena = share(point, lambda: stage("x", root, InMemory()), lambda arena: None)
    assert arena is not None

    def refused(handle: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(rendezvous, "attach", refused)
    assert share(point, lambda: pytest.fail("staged twice"), lambda arena: None) is None
    assert "reading from disk" in caplog.text and str(os.getpid()) in caplog.text


def test_a_stager_seen_at_work_that_left_an_error(point: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point.write_text(f'{{"pid": {os.getpid()}}}\n')
    holder = point.open("r+")
    fcntl.flock(holder, fcntl.LOCK_EX)

    def meanwhile(_: float) -> None:
        with point.open("a") as file:
            file.write('{"error": "no space"}\n')
        holder.close()

    monkeypatch.setattr(rendezvous.time, "sleep", meanwhile)
    with pytest.raises(StagerFailed, match=rf"Process {os.getpid()} could not stage(.|\n)*no space"):
        share(point, lambda: pytest.fail("staged"), lambda arena: None)


def test_runs_meet_by_run_id_or_port_and_single_processes_do_not() -> None:
    assert Run.from_environment({}) is None
    assert Run.from_environment({"TORCHELASTIC_RUN_ID": "none"}) is None
    by_port = Run.from_environment({"MASTER_PORT": "29500"})
    other = Run.from_environment({"MASTER_PORT": "29500", "LOCAL_RANK": "3"})
    assert by_port is not None and other is not None and by_port.identity == other.identity
    assert by_port.patience == 0 and (other.patience > 0 or cpu_node() is not None)
    assert by_port != Run.from_environment({"MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert by_port != Run.from_environment({"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"})


def test_each_dataset_has_its_own_private_meeting_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous.tempfile, "tempdir", str(tmp_path))
    run = Run(("run",))
    points = {meeting_point(run, name, folder) for name in "ab" for folder in ("/x", "/y")}
    assert len(points) == 4 and meeting_point(run, "a", "/x") in points
    (folder,) = {point.parent for point in points}
    assert folder.stat().st_mode & 0o077 == 0
    folder.chmod(0o777)
    with pytest.raises(Exception, match="not private"):
        meeting_point(run, "a", "/x")
