"""Real processes over one folder: who stages, who attaches, and what each does when another dies, stops or lies."""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import Rank

from simpletuner.gh200.datasets import meeting, rendezvous
from simpletuner.gh200.datasets.arena import ArenaDamaged, SharedArena
from simpletuner.gh200.datasets.check import forget_changed
from simpletuner.gh200.datasets.command import main
from simpletuner.gh200.datasets.elsewhere import Change
from simpletuner.gh200.datasets.meeting import GivenWord, NoMeeting, meeting_file, meeting_path
from simpletuner.gh200.datasets.party import Party, Run
from simpletuner.gh200.datasets.places import Key, folders
from simpletuner.gh200.datasets.record import OwnRecord
from simpletuner.gh200.datasets.rendezvous import Meeting, share
from simpletuner.gh200.datasets.staging import stage
from simpletuner.gh200.memory.numa import cpu_node
from simpletuner.gh200.run import STAGED, begin, end
from simpletuner.gh200.settings.cache_options import CacheOptions
from simpletuner.gh200.settings.schema import InMemory
from simpletuner.gh200.settings.sources import read_settings

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("temporary")]
Start = Callable[..., Rank]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data/sub").mkdir(parents=True)
    for number in range(20):
        (tmp_path / f"data/{number}.bin").write_bytes(os.urandom(1000))
        (tmp_path / f"data/sub/{number}.txt").write_bytes(b"caption " * 1000)
    return tmp_path / "data"


@pytest.fixture
def start(root: Path) -> Iterator[Start]:
    ranks: list[Rank] = []

    def begin(folder: Path = root, **order: Any) -> Rank:
        ranks.append(Rank(folder, **order))
        return ranks[-1]

    yield begin
    for rank in ranks:
        rank.end()


def here(root: Path, stage_it: Callable[..., SharedArena] | None = None, **party: Any) -> SharedArena | None:
    def fill(told: Any) -> SharedArena:
        return stage("x", root, InMemory())

    usual = Party("x", Run(("one",)), InMemory().model_dump_json(), **party)
    return share(Key.of(root, None), usual, stage_it or fill, lambda arena: None)


def never(told: object) -> SharedArena:
    raise AssertionError("staged")


def test_fleet_four_ranks_share_one_arena_which_outlives_the_stager(start: Start, temporary: Path) -> None:
    ranks = [start(delay=0.5) for _ in range(4)]
    answers = [rank.came() for rank in ranks]
    assert len({answer["digest"] for answer in answers}) == 1 and answers[0]["files"] == 40
    for rank in ranks[:3]:
        rank.end()
    late = start()
    assert late.came()["digest"] == answers[0]["digest"]
    for rank in (ranks[3], late):
        assert rank.ask("drop") == {"done": True}
    assert not list(temporary.rglob("*.stage"))


def test_fleet_two_names_of_one_folder_are_one_arena_with_or_without_a_run(start: Start, root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    one = start(dataset="a", run=["mine"])
    two = start(root.parent / "alias", dataset="b", run=["yours"])
    assert one.came()["digest"] == two.came()["digest"] is not None


def test_fleet_a_change_by_one_is_seen_by_all_nodes_codecs_and_folders_at_once(start: Start, root: Path) -> None:
    others = [
        start(),
        start(node=1),
        start(options={"compression": "zlib"}),
        start(root / "sub"),
    ]
    assert len({rank.came()["digest"] for rank in others}) == 4
    path = str(root / "sub/3.txt")
    assert all(rank.ask(f"read {path}")["data"] for rank in others)
    mine = here(root.parent)
    assert mine is not None and mine.find(path) is not None
    assert others[3].ask(f"change {path}") == {"done": True}
    assert mine.find(path) is None
    assert [rank.ask(f"read {path}")["data"] for rank in others] == [None] * 4
    Change(root / "sub/4.txt").forget_everywhere()
    assert [rank.ask(f"read {root}/sub/4.txt")["data"] for rank in others] == [None] * 4
    assert all(rank.ask(f"read {root}/sub/5.txt")["data"] for rank in others)


def test_fleet_one_that_attaches_is_told_what_it_shares_and_what_is_not_in_it(
    start: Start, root: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """The limit is that of whoever staged; others share knowingly."""
    stager = start(options={"on_limit": "partial", "memory_limit_gb": 20e-6, "num_workers": 1}, run=["other"])
    held = stager.came()["files"]
    assert 0 < held < 40
    settings = read_settings({}, {})
    run = begin(settings, CacheOptions.from_settings(settings))
    with caplog.at_level(logging.INFO):
        arena = here(root, never)
    (told,) = [source() for title, source in run.measured.items() if title.startswith(STAGED)]
    end()
    assert arena is not None and arena.files == held == told["files"] and 0 < told["bytes"] <= told["bytes in RAM"]
    assert f"Attached to the dataset in RAM of process {stager.pid}: {held} files" in caplog.text
    assert f"{40 - held} files, " in caplog.text and "did not fit where" in caplog.text
    stager.end()
    caplog.clear()
    whole = start(root / "sub")
    assert whole.came()["files"] == 20 and main(["list"]) == 0
    told = capsys.readouterr().out
    assert f"{root}: {held} files" not in told, "this process's own word is not listed to itself"
    assert f"{root / 'sub'}: 20 files" in told and "left out" not in told


def test_fleet_a_write_while_another_stages_is_found_when_it_gives_its_word(root: Path) -> None:
    written: list[str] = []

    def slow(told: object) -> SharedArena:
        arena = stage("x", root, InMemory())
        (root / "1.bin").write_bytes(b"new")
        written.append("1.bin")
        return arena

    arena = share(Key.of(root, None), Party("x", Run(("one",))), slow, lambda arena: _forget(arena))
    assert arena is not None and written and arena.find(str(root / "1.bin")) is None


def _forget(arena: SharedArena) -> None:
    forget_changed(arena)


def test_fleet_a_dead_stagers_number_that_lives_again_means_nothing(start: Start, root: Path) -> None:
    """What a killed process leaves is an empty file: there is no number in it to be believed."""
    dead = start(delay=60)
    dead.answer("staging")
    dead.end()
    (left,) = (Path(os.environ["TMPDIR"]) / f"simpletuner-gh200-{os.geteuid()}").iterdir()
    assert left.stat().st_size == 0
    # As strong as it gets: a live process's number in the file, and in a word nobody has given.
    left.write_text(f'{{"pid": {os.getpid()}}}\n')
    ranks = [start() for _ in range(3)]
    assert len({rank.came()["digest"] for rank in ranks}) == 1


@pytest.mark.parametrize("moment", ["_ask", "_remember", "_claim"])
def test_fleet_a_stager_that_finishes_between_look_and_lock_is_attached_to(
    start: Start, root: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stager = start(delay=0.2)
    stager.answer("staging")
    usual = Meeting._PERFORM
    step = next(step for step, perform in usual.items() if perform.__name__ == moment)

    def late(meeting: Meeting) -> Any:
        if not done:
            done.append(stager.came())
        return usual[step](meeting)

    done: list[dict[str, Any]] = []
    monkeypatch.setattr(Meeting, "_PERFORM", {**usual, step: late})
    arena = here(root, never) if moment == "_ask" else here(root)
    assert arena is not None
    if done:
        assert arena.digest == done[0]["digest"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("fork", [False, True])
def test_fleet_a_stager_that_dies_is_named_in_seconds_whatever_its_children_do(
    start: Start, how: signal.Signals, fork: bool
) -> None:
    stager = start(delay=60, fork=fork)
    child = stager.answer("child")["child"] if fork else None
    stager.answer("staging") if not fork else None
    others = [start() for _ in range(2)]
    for rank in others:
        rank.answer("ready")
    time.sleep(1)
    try:
        stager.process.send_signal(how)
        stager.process.wait()
        for rank in others:
            reply = rank.came(seconds=20)
            assert reply["error"] == "StagerFailed" and f"Process {stager.pid} ended" in reply["text"]
            assert "3.0 MB of 12.0 MB" in reply["text"]
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_fleet_another_runs_stager_that_dies_or_fails_stops_nobody(start: Start) -> None:
    stager = start(delay=60, run=["other"])
    stager.answer("staging")
    mine = start()
    mine.answer("ready")
    time.sleep(0.5)
    stager.end()
    assert mine.came()["files"] == 40
    mine.end()
    failing = start(delay=1, failure="its own limit", run=["other"])
    failing.answer("staging")
    mine = start()
    assert failing.came()["text"] == "its own limit" and mine.came()["files"] == 40


def test_fleet_a_stager_that_fails_tells_its_own_run_why(start: Start) -> None:
    stager = start(delay=5, failure="the disk is on fire")
    stager.answer("staging")
    same = start()
    same.answer("ready")
    assert "the disk is on fire" in stager.came()["text"]
    reply = same.came()
    assert reply.get("error") == "StagerFailed" and "the disk is on fire" in reply["text"]


def test_fleet_a_limit_of_another_with_other_options_is_not_ones_own(start: Start) -> None:
    stager = start(delay=5, failure="my limit", options={"memory_limit_gb": 3})
    stager.answer("staging")
    other = start()
    assert stager.came()["text"] == "my limit" and other.came()["files"] == 40


def test_fleet_a_stopped_stager_is_named_with_its_progress_and_has_a_bound(
    root: Path, start: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    stager = start(delay=60)
    stager.answer("staging")
    os.kill(stager.pid, signal.SIGSTOP)
    with caplog.at_level(logging.INFO):
        assert here(root, never, patience=2) is None
    text = caplog.text
    assert f"Waiting for process {stager.pid}" in text and "is stopped" in text
    assert "3.0 MB of 12.0 MB, 25%" in text and "reading from disk" in text
    assert f"Waiting for process {stager.pid}: staging x" in capsys.readouterr().err


def test_fleet_a_slow_stager_that_moves_is_waited_for(start: Start, root: Path) -> None:
    def slow(told: Any) -> SharedArena:
        for done in range(20):
            told("reading", done, 20)
            time.sleep(0.1)
        return stage("x", root, InMemory())

    first: list[SharedArena | None] = []
    thread = threading.Thread(target=lambda: first.append(here(root, slow)))
    thread.start()
    time.sleep(0.3)
    waiting = start(patience=1)
    assert waiting.came()["files"] == 40
    thread.join()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (ArenaDamaged("half of it is missing"), "half of it is missing"),
        (FileNotFoundError(2, "closed"), "says it holds the folder, and does not"),
    ],
)
def test_fleet_an_attach_that_fails_reads_from_disk_with_the_true_reason(
    start: Start,
    root: Path,
    error: Exception,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    holder = start()
    holder.came()

    def refused(handle: object) -> None:
        raise error

    monkeypatch.setattr(rendezvous, "attach", refused)
    assert here(root, never) is None
    assert "reading from disk" in caplog.text and says in caplog.text and str(holder.pid) in caplog.text
    assert "ended" not in caplog.text


def test_fleet_a_record_that_lies_is_not_believed(start: Start, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = meeting_file(meeting_path(Key.of(root, None)))
    record = OwnRecord({"pid": os.getpid()})
    record._put(16 << 10, {"segments": "what"}, 48 << 10)
    record._map[0] = 1
    word = GivenWord.of(os.getpid(), record.descriptor)
    file.give(word)
    liar = start()
    try:
        assert liar.came() == {"digest": None, "files": None}
        assert "no handle" in liar.errors()
    finally:
        file.take_back(word)
        record.close()


def test_fleet_other_ranks_leave_the_staging_to_the_first(start: Start) -> None:
    others = [start(first=False) for _ in range(2)]
    for rank in others:
        rank.answer("ready")
    time.sleep(0.5)
    first = start()
    assert first.answer("staging", "digest") == {"staging": first.pid}
    assert len({rank.came()["digest"] for rank in (first, *others)}) == 1


def test_fleet_the_file_goes_with_the_last_and_a_crash_leaves_an_empty_one(root: Path, temporary: Path) -> None:
    arena = here(root)
    assert arena is not None and here(root, never) is arena
    (file,) = temporary.rglob("*.stage")
    assert file.stat().st_size == 0 and stat.S_IMODE(file.stat().st_mode) == 0o600
    del arena
    assert not file.exists()
    assert here(root) is not None


def test_fleet_a_file_removed_by_the_last_user_is_opened_anew(start: Start, root: Path) -> None:
    path = meeting_path(Key.of(root, None))
    path.unlink()
    arena = here(root)
    assert arena is not None and path.exists()
    assert start().came()["digest"] == arena.digest


def test_fleet_another_users_folder_in_the_temporary_one_does_not_matter(start: Start, temporary: Path) -> None:
    taken = temporary / f"simpletuner-gh200-{os.geteuid()}"
    taken.mkdir(mode=0o777)
    taken.chmod(0o777)
    ranks = [start(delay=0.3) for _ in range(2)]
    assert len({rank.came()["digest"] for rank in ranks}) == 1
    assert not list(taken.iterdir())


@pytest.mark.parametrize("what", ["missing", "file", "link"])
def test_fleet_a_temporary_folder_that_cannot_be_used(
    start: Start, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    if what == "file":
        place.write_text("")
    if what == "link":
        place.mkdir()
        (place / f"simpletuner-gh200-{os.geteuid()}").symlink_to(tmp_path)
    monkeypatch.setenv("TMPDIR", str(place))
    ranks = [start(delay=0.3) for _ in range(2)]
    assert len({rank.came()["digest"] for rank in ranks}) == 1


def test_fleet_no_place_at_all_is_one_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "folders", lambda: iter([Path("/proc/none"), root / "1.bin"]))
    with pytest.raises(NoMeeting, match="TMPDIR(.|\n)*|cannot"):
        here(root)


def test_fleet_a_folder_whose_files_cannot_be_locked_is_not_used(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a network disk without a lock service."""
    usual = meeting.MeetingFile._ask

    def refused(file: meeting.MeetingFile, *positions: int) -> tuple[int, int] | None:
        if file.path.is_relative_to(temporary):
            raise OSError(37, "No locks available")
        return usual(file, *positions)

    monkeypatch.setattr(meeting.MeetingFile, "_ask", refused)
    path = meeting_path(Key.of(root, None))
    assert not path.is_relative_to(temporary)
    path.unlink()
    monkeypatch.setattr(meeting, "folders", lambda: iter([temporary / "own"]))
    with pytest.raises(NoMeeting, match="No locks available"):
        meeting_path(Key.of(root, None))


def test_fleet_a_hidden_boot_id_does_not_matter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner.gh200.datasets.places._BOOT_ID", Path("/proc/none"))
    assert here(root) is not None


def test_fleet_runs_are_told_apart_by_their_parents_and_single_processes_are_their_own() -> None:
    alone = Run.from_environment({})
    assert alone.alone and alone != Run.from_environment({}) and alone.leave_to_first == 0
    assert Run.from_environment({"MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "1"}).alone
    by_port = Run.from_environment({"MASTER_PORT": "29500"})
    other = Run.from_environment({"MASTER_PORT": "29500", "LOCAL_RANK": "3"})
    assert by_port.identity == other.identity and str(os.getppid()) in by_port.identity
    assert by_port.leave_to_first == 0 and (other.leave_to_first > 0 or cpu_node() is not None)
    assert by_port != Run.from_environment({"MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "1"})
    assert by_port != Run.from_environment({"MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "job"})


def test_fleet_keys_are_of_the_real_folder_the_node_and_the_codec(root: Path) -> None:
    (root.parent / "alias").symlink_to(root)
    assert Key.of(root, None).name == Key.of(root.parent / "alias", None).name
    names = {Key(str(root), codec, node).name for codec in (None, "lz4") for node in (None, 0, 1)}
    assert len(names) == 6 and Key(str(root / "sub"), None, None).name not in names
    assert all(f"-{os.geteuid()}" in folder.name for folder in folders())
