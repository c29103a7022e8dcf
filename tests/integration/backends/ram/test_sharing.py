"""One staged copy for the ranks of a run: who stages, who attaches, and what each does when another fails or ends."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from gh200_lab.place import ROOT
from simpletuner.gh200.backends.ram import sharing
from simpletuner.gh200.backends.ram.arena import ArenaDamaged, SharedArena
from simpletuner.gh200.backends.ram.sharing import RankGroup, StagerEnded, StagerFailed, shared_arena
from simpletuner.gh200.backends.ram.staging import stage
from simpletuner.gh200.config.schema import InMemory
from simpletuner.gh200.memory.limits import OverMemoryLimit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / f"data/{number}.bin").write_bytes(os.urandom(1000))
    return tmp_path / "data"


def staged(root: Path) -> SharedArena:
    return stage("x", root, InMemory())


def never() -> SharedArena:
    raise AssertionError("staged")


def ask(group: RankGroup, root: Path, fill: Callable[[], SharedArena], known: SharedArena | None = None) -> Any:
    return group.arena("x", str(root), None, known, fill)


def test_the_first_rank_of_each_machine_owns_its_copy(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    store, groups = HashStore(), []
    for rank, name in enumerate(["a", "a", "b", "b", "a"]):
        monkeypatch.setattr(sharing, "machine", lambda name=name: [name])
        groups.append(RankGroup(store, rank, 2))
    assert [group.owner for group in groups] == [0, 0, 2, 2, 0]
    first, second = ask(groups[0], root, lambda: staged(root)), ask(groups[2], root, lambda: staged(root))
    assert ask(groups[4], root, never).token == ask(groups[1], root, never).token == first.token
    assert ask(groups[3], root, never).token == second.token != first.token


def test_whether_it_is_staged_again_is_the_owners_word(root: Path) -> None:
    """One rank may still hold what the owner has let go of."""
    store = HashStore()
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    first = ask(owner, root, lambda: staged(root))
    theirs = ask(other, root, never)
    assert ask(owner, root, never, known=first) is first and ask(other, root, never, known=theirs) is theirs
    again = ask(owner, root, lambda: staged(root))
    assert ask(other, root, never, known=theirs).token == again.token != first.token
    # A second process group of the same processes, over the same store.
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    third = ask(owner, root, lambda: staged(root))
    assert ask(other, root, never).token == third.token != again.token


def test_the_owners_error_is_everybodys(root: Path) -> None:
    store = HashStore()
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    failed: list[BaseException] = []

    def own() -> None:
        try:
            ask(owner, root, lambda: stage("x", root, InMemory(memory_limit_gb=1e-6)))
        except OverMemoryLimit as error:
            failed.append(error)

    thread = threading.Thread(target=own)
    thread.start()
    with pytest.raises(StagerFailed) as caught:
        ask(other, root, never)
    began = time.monotonic()
    thread.join()
    assert time.monotonic() - began < 5, "the owner ends as soon as the others have read its error"
    for line in str(failed[0]).splitlines():
        assert line in str(caught.value)
    assert "Rank 0 could not stage" in str(caught.value)


def test_an_owner_that_ends_is_named(root: Path) -> None:
    group = RankGroup(HashStore(), 0, 2)
    child = subprocess.Popen(["sleep", "600"])
    group.owner, group.owner_pid, group.rank = 0, child.pid, 1
    threading.Timer(0.5, child.kill).start()
    for _ in range(2):
        with pytest.raises(StagerEnded, match=f"process {child.pid}.*ended while it was staging"):
            ask(group, root, never)
        child.wait()


def test_a_rank_that_never_comes_is_named() -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(StagerEnded, match="Rank 0 did not come"):
        RankGroup(store, 1, 2)


def test_a_store_that_is_gone_is_the_end_of_the_owner_and_hides_no_error(root: Path) -> None:
    class Gone:
        def __init__(self) -> None:
            self.works = True

        def add(self, key: str, value: int) -> int:
            return 1

        def set(self, key: str, value: str) -> None:
            if not self.works:
                raise RuntimeError("connection reset")

        def get(self, key: str) -> bytes:
            return json.dumps([sharing.machine(), os.getpid()]).encode()

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

    store = Gone()
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    store.works = False
    with pytest.raises(StagerEnded, match="connection reset"):
        ask(other, root, never)
    with pytest.raises(AssertionError, match="staged"):
        ask(owner, root, never)


def test_a_slow_owner_is_waited_for_and_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sharing, "_REPORT_SECONDS", 0.2)
    store = HashStore()
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    thread = threading.Timer(1, lambda: ask(owner, root, lambda: staged(root)))
    thread.start()
    with caplog.at_level(logging.INFO):
        # The owner's arena goes with its thread: what was announced may be gone when it is asked for.
        ask(other, root, never)
    thread.join()
    assert f"Waiting for rank 0 (process {os.getpid()})" in caplog.text and "is still staging" in caplog.text


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), OSError(24, "Too many open files"), ArenaDamaged("half")]
)
def test_an_attach_that_fails_reads_from_disk_with_the_reason(
    root: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = HashStore()
    owner, other = RankGroup(store, 0, 2), RankGroup(store, 1, 2)
    known = ask(owner, root, lambda: staged(root))

    def rejected(handle: object) -> None:
        raise error

    monkeypatch.setattr(sharing, "attach", rejected)
    assert known is not None and ask(other, root, never) is None
    assert "reading from disk" in caplog.text and str(error) in caplog.text


def test_a_process_without_a_group_stages_for_itself_once(root: Path) -> None:
    one = shared_arena("x", str(root), None, lambda: staged(root))
    assert one is not None and shared_arena("y", str(root), None, never) is one
    assert shared_arena("x", str(root), "zlib", lambda: staged(root)) is not one


def test_a_hidden_boot_id_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "_BOOT_ID", Path("/proc/none"))
    assert sharing.machine()[0]


class Run:
    """Real ranks, each a process, in a group over gloo."""

    def __init__(self, root: Path, output: Path, ranks: int = 2, torchrun: bool = False, **order: Any) -> None:
        output.mkdir()
        self.output, self.ranks = output, ranks
        script = [str(ROOT / "tests/support/ram_rank.py"), str(root), str(output), json.dumps(order)]
        usual = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        if torchrun:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
            self.processes = [subprocess.Popen([*command, *script], env=usual)]
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        group |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        self.processes = [
            subprocess.Popen([sys.executable, *script], env=usual | group | {"RANK": str(rank)})
            for rank in range(ranks)
        ]

    def reported(self, rank: int, key: str, seconds: float = 90) -> Any:
        """What a rank said under that key; what it never says is a hang."""
        until = time.monotonic() + seconds
        path = self.output / f"rank{rank}.jsonl"
        while time.monotonic() < until:
            lines = path.read_text().splitlines(keepends=True) if path.exists() else []
            for line in lines:
                if line.endswith("\n") and key in (said := json.loads(line)):
                    return said[key]
            time.sleep(0.05)
        raise AssertionError(f"rank {rank} said nothing about {key} in {seconds} s")

    def end(self) -> list[int]:
        (self.output / "end").touch()
        return [process.wait(60) for process in self.processes]


@pytest.fixture
def start(root: Path, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(name: str, **order: Any) -> Run:
        runs.append(Run(root, tmp_path / name, **order))
        return runs[-1]

    yield begin
    for run in runs:
        for process in run.processes:
            process.kill()
            process.wait()


def holders(root: Path) -> list[str]:
    """Processes that were started for this directory and have a memory file of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            ours = entry.name.isdigit() and str(root).encode() in (entry / "cmdline").read_bytes()
            links = [os.readlink(link) for link in (entry / "fd").iterdir()] if ours else []
        except OSError:
            continue
        found += [entry.name for link in links if link.startswith("/memfd:simpletuner-gh200-")]
    return found


def test_two_ranks_share_one_copy_and_what_one_forgets(start: Callable[..., Run], root: Path) -> None:
    run = start("run", torchrun=True)
    tokens = [run.reported(rank, "token") for rank in range(2)]
    assert tokens[0] == tokens[1] and [run.reported(rank, "owned") for rank in range(2)] == [True, False]
    assert [run.reported(rank, "forgotten") and run.reported(rank, "others") for rank in range(2)] == [True, True]
    (root / "3.bin").write_bytes(b"changed while it trains")
    assert run.end() == [0]
    assert str(root / "3.bin") in run.reported(0, "changed")[0] and run.reported(1, "changed_here")
    assert not holders(root)


@pytest.mark.slow(reason="starts and kills several processes")
def test_the_ranks_of_a_run_stop_with_its_owners_error(start: Callable[..., Run]) -> None:
    run = start("run", ranks=3, options={"memory_limit_gb": 1e-6})
    assert [process.wait(90) for process in run.processes] == [2, 2, 2]
    assert [run.reported(rank, "error") for rank in range(3)] == ["OverMemoryLimit", "StagerFailed", "StagerFailed"]
    assert all(run.reported(0, "text").splitlines()[0] in run.reported(rank, "text") for rank in (1, 2))


@pytest.mark.slow(reason="starts and kills several processes")
@pytest.mark.parametrize("torchrun", [False, True])
def test_an_owner_killed_while_it_stages_ends_the_others_and_frees_the_memory(
    start: Callable[..., Run], root: Path, torchrun: bool
) -> None:
    run = start("run", delay=600, torchrun=torchrun)
    assert run.reported(0, "staging")
    began = time.monotonic()
    os.kill(run.reported(0, "pid"), signal.SIGKILL)
    for process in run.processes:
        process.wait(60)
    assert time.monotonic() - began < 40 and not holders(root)
    if not torchrun:
        # Its store is in the process that was killed.
        assert run.reported(1, "error") == "StagerEnded" and f"process {run.reported(0, 'pid')}" in run.reported(
            1, "text"
        )


@pytest.mark.slow(reason="starts and kills several processes")
def test_two_runs_have_a_copy_each_and_cannot_hurt_each_other(start: Callable[..., Run], root: Path) -> None:
    one, two = start("one"), start("two")
    tokens = [{run.reported(rank, "token") for rank in range(2)} for run in (one, two)]
    assert len(tokens[0]) == len(tokens[1]) == 1 and tokens[0] != tokens[1]
    assert one.reported(0, "forgotten") and two.reported(0, "forgotten")
    for process in one.processes:
        process.kill()
    assert two.end() == [0, 0] and two.reported(1, "bytes") == 1000
    assert not holders(root)
