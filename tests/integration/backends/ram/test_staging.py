"""What a staging takes and says, what a check of the files sees, and what a rank keeps for itself."""

from __future__ import annotations

import json
import logging
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from simpletuner.gh200.backends.ram.arena import SharedArena
from simpletuner.gh200.backends.ram.budget import StagingBudget
from simpletuner.gh200.backends.ram.directory import StagedDirectory, lies_in
from simpletuner.gh200.backends.ram.invalidation import CHUNK, forget_changed, forget_path
from simpletuner.gh200.backends.ram.listing import list_dataset
from simpletuner.gh200.backends.ram.media_paths import staged_path
from simpletuner.gh200.backends.ram.staging import StagingFailed, stage
from simpletuner.gh200.config.schema import InMemory
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.memory.limits import GB, Limit, OverMemoryLimit, format_size

pytestmark = pytest.mark.usefixtures("temporary")


def make(root: Path, count: int, size: int = 1000) -> list[Path]:
    root.mkdir(parents=True, exist_ok=True)
    files = [root / f"{number:05}.bin" for number in range(count)]
    for path in files:
        path.write_bytes(os.urandom(size))
    return files


def test_two_files_swapped_are_seen_at_the_check(tmp_path: Path) -> None:
    one, two, three = make(tmp_path / "data", 3)
    for path in (one, two, three):
        os.utime(path, ns=(7, 7))
    arena = stage("x", tmp_path / "data", InMemory())
    assert forget_changed(arena) == []
    one.rename(tmp_path / "away")
    two.rename(one)
    (tmp_path / "away").rename(two)
    problems = forget_changed(arena)
    assert {problem.split(": ")[0] for problem in problems} == {str(one), str(two)}
    assert arena.find(str(one)) is None and arena.find(str(three)) is not None


def test_a_file_rewritten_with_its_old_time_is_seen_at_the_check(tmp_path: Path) -> None:
    (one, other) = make(tmp_path, 2)
    before = one.stat()
    arena = stage("x", tmp_path, InMemory())
    one.write_bytes(os.urandom(1000))
    os.utime(one, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [problem.split(": ")[0] for problem in forget_changed(arena)] == [str(one)]
    assert arena.find(str(other)) is not None


def test_a_link_more_or_other_rights_are_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make(tmp_path / "data", 2)
    arena = stage("x", tmp_path / "data", InMemory(compression="zlib"))
    (tmp_path / "link").hardlink_to(one)
    two.chmod(0o640)
    assert forget_changed(arena) == [] and arena.find(str(one)) is not None and arena.find(str(two)) is not None
    # And the look inside is not repeated at every check.
    with no_reads(monkeypatch):
        assert forget_changed(arena) == []


@contextmanager
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def reject(path: str) -> int:
        raise AssertionError(f"{path} is read")

    with monkeypatch.context() as patch:
        patch.setattr("simpletuner.gh200.backends.ram.invalidation.open_regular", reject)
        yield


def test_equal_files_under_new_inodes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cp -a` and `mv` back leave them, one of two names of a file among them."""
    files = make(tmp_path / "data", 3)
    (tmp_path / "data/twin.bin").hardlink_to(files[0])
    arena = stage("x", tmp_path / "data", InMemory())
    for path in files:
        subprocess.run(["cp", "-a", path, tmp_path / "copy"], check=True)
        (tmp_path / "copy").rename(path)
    assert forget_changed(arena) == []
    with no_reads(monkeypatch):
        assert forget_changed(arena) == [] and all(arena.find(str(path)) is not None for path in files)
    before = files[1].stat()
    files[1].write_bytes(os.urandom(1000))
    os.utime(files[1], ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [problem.split(": ")[0] for problem in forget_changed(arena)] == [str(files[1])]


def test_inodes_that_are_others_at_every_look_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on file systems that number files when they are looked up (sshfs)."""
    (one,) = make(tmp_path, 1)
    arena = stage("x", tmp_path, InMemory())
    usual, inodes = os.stat, count(10**9)

    def renumbered(path: object, *rest: object, **more: object) -> os.stat_result:
        status = usual(path, *rest, **more)  # type: ignore[call-overload]
        values = list(status)
        values[stat.ST_INO] = next(inodes)
        more_fields = {name: getattr(status, name) for name in ("st_mtime_ns", "st_ctime_ns")}
        return os.stat_result(values, more_fields)

    monkeypatch.setattr("simpletuner.gh200.backends.ram.invalidation.os.stat", renumbered)
    assert forget_changed(arena) == []
    with no_reads(monkeypatch):
        assert forget_changed(arena) == [] and arena.find(str(one)) is not None


def test_a_path_is_forgotten_by_any_of_its_names(tmp_path: Path) -> None:
    one, two, three, four = make(tmp_path / "data", 4)
    (tmp_path / "alias").symlink_to("data")
    (tmp_path / "link.bin").hardlink_to(two)
    arenas = [stage("x", tmp_path / "data", InMemory(compression=codec)) for codec in (None, "zlib")]
    three.unlink()
    for path in (tmp_path / "alias" / one.name, tmp_path / "link.bin", three, tmp_path / "none", b"\0", None):
        forget_path(path)
    for arena in arenas:
        assert [arena.find(str(path)) is None for path in (one, two, three, four)] == [True, True, True, False]


def test_a_check_goes_on_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make(tmp_path, 4 * CHUNK, 1)
    arena = stage("x", tmp_path, InMemory())
    seen: set[int] = set()
    usual = os.stat

    def slow(path: object, *rest: object, **more: object) -> os.stat_result:
        seen.add(threading.get_ident())
        if len(seen) == 1:
            time.sleep(0.0001)
        return usual(path, *rest, **more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr("simpletuner.gh200.backends.ram.invalidation.os.stat", slow)
    files[-1].unlink()
    assert len(forget_changed(arena)) == 1 and len(seen) > 1


PEAK = """
import json, os, resource, sys, threading, time
from simpletuner.gh200.backends.ram import staging
from simpletuner.gh200.config.schema import InMemory
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
arena = staging.stage("x", sys.argv[1], InMemory(compression="zlib", memory_limit_gb=0.1, num_workers=8))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
same = all(arena.read(number) == open(name, "rb").read() for name, number in arena.names())
print(json.dumps({"buffers": (peak - before) * 1024, "stored": sum(arena.segment_sizes), "same": same}))
"""


def test_buffers_of_a_codec_are_part_of_the_budget(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.bmp").write_bytes((os.urandom(1000) + bytes(14_000)) * 3300)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path], env=environment, capture_output=True, text=True)
    measured = json.loads(done.stdout)
    assert measured["same"] and measured["buffers"] + measured["stored"] <= 0.1 * GB, measured


def test_a_budget_waits_for_what_others_give_back_and_never_goes_over() -> None:
    budget = StagingBudget(Limit("operator", "x", 100))
    assert budget.reserve(80) and not budget.used
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(budget.reserve(60)))
    thread.start()
    while not budget._changed._waiters:  # type: ignore[attr-defined]
        time.sleep(0.001)
    assert not got
    budget.settle(80, 30)
    thread.join()
    assert got == [True] and budget.used == 30
    budget.settle(60, 60)
    assert not budget.reserve(11) and budget.reserve(10)


class Memory:
    """What a machine has left, if `budget` is all that takes from it; others may."""

    def __init__(self, total: int) -> None:
        self.total, self.others = total, 0
        self.budget = StagingBudget(Limit("operator", "at first", total), self.free)

    def free(self) -> Limit:
        written = self.budget.used + self.budget._reserved
        return Limit("machine", "free memory", max(0, self.total - self.others - written))

    def take(self, size: int) -> bool:
        if not self.budget.reserve(size):
            return False
        self.budget.settle(size, size)
        return True


def test_a_budget_that_nobody_shares_is_used_to_the_last_byte() -> None:
    memory = Memory(1000)
    assert all(memory.take(10) for _ in range(100)) and not memory.take(1)
    # What this one has in hand is nobody else's: two large files at once fit as they would one by one.
    memory = Memory(1000)
    both = [threading.Thread(target=memory.budget.reserve, args=(450,), daemon=True) for _ in range(2)]
    for thread in both:
        thread.start()
        thread.join(10)
    assert memory.budget._reserved == 900


def test_a_budget_follows_what_others_take_meanwhile() -> None:
    """All that stage at once began with the same free memory: what another has taken is not there any more."""
    memory = Memory(1000)
    assert memory.take(100)
    memory.others = 700
    taken = 100 + sum(10 for _ in range(50) if memory.take(10))
    assert 250 <= taken <= 300, "some memory is left for another process that stages"
    assert memory.budget.limit.name == "free memory"
    memory.others = 0
    assert sum(10 for _ in range(100) if memory.take(10)) + taken == 1000, "and it comes back"


@pytest.mark.parametrize("policy", ["error", "partial"])
def test_free_memory_that_shrinks_while_staging_is_seen(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 40, 100_000)
    looks: list[Limit] = []

    def limits(operators: float | None = None) -> list[Limit]:
        looks.append(Limit("machine", "free memory of the machine", max(0, 5_000_000 - 1_000_000 * len(looks))))
        return [looks[-1]]

    monkeypatch.setattr("simpletuner.gh200.backends.ram.staging.memory_limits", limits)
    if policy == "error":
        with pytest.raises(OverMemoryLimit, match="free memory of the machine"):
            stage("x", tmp_path, InMemory(num_workers=2))
        return
    arena = stage("x", tmp_path, InMemory(on_limit="partial", num_workers=2))
    assert 0 < arena.files < 40 and "did not fit" in caplog.text and "free memory of the machine" in caplog.text


def test_a_directory_with_everything_in_it(tmp_path: Path) -> None:
    """Links in circles, pipes, sockets, devices, holes, names that are no text: staged is what can be read, and the log says so."""
    root, log = tmp_path / "data", tmp_path / "run.log"
    make(root, 2)
    strange = os.path.join(os.fsencode(root), b"not-\xff\xfetext")
    os.mkdir(strange)
    for name in (b"caf\xe9.png", b"two\nlines.txt"):
        Path(os.fsdecode(os.path.join(strange, name))).write_bytes(name)
    (root / "self").symlink_to(".")
    (root / "one").symlink_to("two")
    (root / "two").symlink_to("one")
    (root / "null.png").symlink_to("/dev/null")
    os.symlink(os.fsdecode(b"nowhere"), os.path.join(strange, b"gone\xff.png"))
    os.mkfifo(root / "pipe.png")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(root / "socket.png"))
    with (root / "sparse.npy").open("wb") as file:
        file.seek(3_000_000)
        file.write(b"end")
    # A file that says it is empty and is not.
    (root / "status.txt").symlink_to("/proc/self/status")
    handler = logging.FileHandler(log, encoding="utf-8")
    logging.getLogger("gh200.in_memory").addHandler(handler)
    try:
        arenas = [stage("x", root, InMemory(compression=codec)) for codec in (None, "zlib")]
    finally:
        logging.getLogger("gh200.in_memory").removeHandler(handler)
        handler.close()
    for arena in arenas:
        assert arena.files == 5
        for name, number in arena.names():
            assert arena.read(number) == Path(name).read_bytes(), name
        assert forget_changed(arena) == []
    logged = log.read_text()
    for text in (
        "one: Too many levels",
        "two: Too many levels",
        "gone\\udcff.png: No such file",
        "status.txt: its file system",
    ):
        assert text in logged, logged


def test_a_file_that_becomes_a_pipe_is_left_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between listing and reading, and after staging: an ordinary open would wait for a writer for ever."""
    files = make(tmp_path, 3)

    def meddle(root: str) -> object:
        listing = list_dataset(root)
        files[0].unlink()
        os.mkfifo(files[0])
        return listing

    monkeypatch.setattr("simpletuner.gh200.backends.ram.staging.list_dataset", meddle)
    for codec in (None, "zlib"):
        arena = stage("x", tmp_path, InMemory(compression=codec, memory_limit_gb=0.00001))
        assert arena.files == 2 and arena.find(str(files[0])) is None
        files[0].unlink()
        files[0].touch()
    assert f"{files[0]}: not a regular file any more" in caplog.text
    files[1].unlink()
    os.mkfifo(files[1])
    assert [problem.split(": ")[0] for problem in forget_changed(arena)] == [str(files[1])]


def test_names_with_control_characters_are_escaped_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make(tmp_path, 1)
    (tmp_path / "red\x1b[31m\nERROR all is lost\u202e.png").symlink_to("nowhere")
    arena = stage("x", tmp_path, InMemory())
    assert "red\\x1b[31m\\nERROR all is lost\\u202e.png: No such file" in caplog.text
    assert arena.files == 1 and "\x1b" not in caplog.text
    with pytest.raises(GH200Error) as caught:
        stage("x", tmp_path / "no\x1bwhere", InMemory())
    assert "no\\x1bwhere" in str(caught.value)


def test_a_name_that_was_not_listed_differs_from_one_that_is_on_disk(tmp_path: Path) -> None:
    files = make(tmp_path / "data", 3, 50_000)
    arena = stage("x", tmp_path / "data", InMemory(on_limit="partial", memory_limit_gb=62e-6, num_workers=1))
    directory = StagedDirectory(arena, str(tmp_path / "data"))
    assert arena.files == 1 and [arena.find(str(path)) is None for path in files] == [False, True, True]
    (tmp_path / "data/latent.pt").write_bytes(b"x")
    (tmp_path / "outside").write_bytes(b"x")
    (tmp_path / "data/link").symlink_to(".")
    known = [*files, tmp_path / "data/latent.pt", tmp_path / "outside", tmp_path / "data/none"]
    assert not any(directory.is_new(str(path)) for path in known) and not directory.is_new(
        f"{tmp_path}/data/link/00000.bin"
    )
    (tmp_path / "data/new.bin").write_bytes(b"x")
    assert directory.is_new(str(tmp_path / "data/new.bin")) and directory.is_new(f"{tmp_path}/data/./new.bin")
    files[0].write_bytes(b"other")
    forget_changed(arena)
    assert not directory.is_new(str(files[0]))


def test_small_sizes_are_shown_in_small_units(tmp_path: Path) -> None:
    make(tmp_path, 3, 40_000)
    with pytest.raises(OverMemoryLimit, match=r"needs 12\d\.\d KB of RAM, 50\.0 KB may be used"):
        stage("x", tmp_path, InMemory(memory_limit_gb=5e-5))
    assert format_size(3 * GB) == "3.000 GB" and format_size(12_345_678) == "12.3 MB"


LIMITED = """
import resource, sys
from simpletuner.gh200.backends.ram.staging import StagingFailed, stage
from simpletuner.gh200.config.schema import InMemory
stage("warm", sys.argv[1], InMemory(num_workers=2))
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]),) * 2)
try:
    stage("x", sys.argv[1], InMemory(num_workers=2))
except StagingFailed as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("limit", "value", "says"), [("RLIMIT_FSIZE", 1000, "ulimit -f"), ("RLIMIT_NOFILE", 5, "ulimit -n")]
)
def test_a_limit_of_the_shell_is_one_clear_error(tmp_path: Path, limit: str, value: int, says: str) -> None:
    make(tmp_path, 4, 100_000)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LIMITED, str(tmp_path), limit, str(value)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert says in done.stdout and "Traceback" not in done.stderr, done.stderr


def test_a_thread_that_cannot_be_started_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, 4)

    def reject(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", reject)
    with pytest.raises(StagingFailed, match="new thread; a limit of the shell is in the way .ulimit -u"):
        stage("x", tmp_path, InMemory(num_workers=4))


def test_a_rank_keeps_nothing_per_file_for_itself(tmp_path: Path) -> None:
    """Allocated by Python, for an arena that is open, was read from and was written to."""
    import tracemalloc

    files = make(tmp_path, 3000, 10)
    arena = stage("x", tmp_path, InMemory())
    handle = arena.handle()
    from simpletuner.gh200.backends.ram.arena import attach

    tracemalloc.start()
    again = attach(handle)
    assert again.find(str(files[7])) is not None
    again.forget_file(files[9].stat().st_dev, files[9].stat().st_ino)
    assert again.find(str(files[9])) is None and forget_changed(again) == []
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / len(files) < 30


def test_a_directory_is_read_under_its_own_name_and_its_real_one(tmp_path: Path) -> None:
    files = make(tmp_path / "data", 3)
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    arena = stage("x", tmp_path / "data", InMemory())
    directory = StagedDirectory(arena, str(tmp_path / "alias"))
    for path in (tmp_path / "alias" / files[1].name, files[1]):
        number = directory.find(str(path))
        assert number is not None and arena.read(number) == files[1].read_bytes()
    assert directory.find(str(tmp_path / "other")) is None
    assert lies_in("/a/b", "/a") and lies_in("/a", "/a") and not lies_in("/ab", "/a") and lies_in("/a", "/")


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_path_leads_to_the_staged_bytes_for_another_process_too(tmp_path: Path, compression: str | None) -> None:
    clip = tmp_path / "clip.mp4"
    clip.write_bytes(b"moov" * 100_000)
    arena = stage("x", tmp_path, InMemory(compression=compression))
    number = arena.find(str(clip))
    assert number is not None
    path = staged_path(arena, number, str(clip))
    clip.unlink()
    assert path.endswith("/clip.mp4") and Path(path).read_bytes() == b"moov" * 100_000
    counted = subprocess.run(["wc", "-c", path], capture_output=True, text=True, check=True)
    assert counted.stdout.startswith("400000 ")
    # A child made meanwhile has the path too; that it ends must not end it here.
    if os.fork() == 0:
        del path
        os._exit(0)
    os.wait()
    assert Path(path).exists()
    directory = Path(path).parent
    del path, counted
    assert not directory.exists()
    # The thread that gives the page cache back opens and closes files meanwhile.
    assert not any("-media" in link for link in map(_link, Path("/proc/self/fd").iterdir()))


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def test_large_files_are_compressed_in_blocks(tmp_path: Path) -> None:
    data = (os.urandom(3000) + bytes(7000)) * 1000
    (tmp_path / "large.npy").write_bytes(data)
    for codec in ("zlib", "lz4", "zstd", "snappy"):
        arena: SharedArena = stage("x", tmp_path, InMemory(compression=codec))
        (row,) = [arena.row(number) for number in range(arena.files)]
        assert row.blocks == 3 and row.stored < len(data) / 2 and arena.read(0) == data
    assert resource.getpagesize()


@pytest.mark.parametrize("page", [4096, 65536])
def test_large_files_start_on_a_page_of_the_kernel(page: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner.gh200.backends.ram.segment._PAGE", page)
    sizes = [100, 16 * page, 77, 20 * page + 1]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.bin").write_bytes(os.urandom(size))
    arena = stage("x", tmp_path, InMemory(num_workers=1))
    rows = [arena.row(number) for number in range(arena.files)]
    assert {row.offset % page for row in rows if row.size >= 16 * page} == {0}
    assert sorted(row.size for row in rows) == sorted(sizes)
    for name, number in arena.names():
        assert arena.read(number) == Path(name).read_bytes()
