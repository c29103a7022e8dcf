"""Staging a real directory into RAM, and the arena it becomes: contents, sharing between processes, bad input."""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from simpletuner.gh200.backends.ram import segment as staging_segment
from simpletuner.gh200.backends.ram.arena import ArenaDamaged, Handle, SharedArena, attach, create_arena
from simpletuner.gh200.backends.ram.index import Row
from simpletuner.gh200.backends.ram.invalidation import forget_changed
from simpletuner.gh200.backends.ram.listing import list_dataset
from simpletuner.gh200.backends.ram.memory_files import memory_file
from simpletuner.gh200.backends.ram.staging import PAGE_CACHE_THREAD, stage
from simpletuner.gh200.config.schema import CodecName, InMemory
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.memory.limits import OverMemoryLimit

LONG = "\u96ea" * 80


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "sub" / "deeper").mkdir(parents=True)
    (root / "photo.jpg").write_bytes(os.urandom(300_000))
    (root / "photo.txt").write_text("a caption\n" * 5000)
    (root / "empty.txt").write_bytes(b"")
    (root / "sub" / f"{LONG}.png").write_bytes(os.urandom(70_000))
    (root / "sub" / "deeper" / "mask.bmp").write_bytes(bytes(200_000))
    (root / os.fsdecode(b"not-\xffunicode.txt")).write_bytes(b"x")
    (root / "aspect_ratio_bucket_indices_x.json").write_text("{}")
    (root / "latent.pt").write_bytes(b"pt")
    (root / "outside.txt").symlink_to(tmp_path / "elsewhere.txt")
    (tmp_path / "elsewhere.txt").write_text("linked")
    (root / "loop").symlink_to(root)
    (root / "twin.jpg").hardlink_to(root / "photo.jpg")
    return root


def staged_names(arena: SharedArena) -> set[str]:
    return {name for name, _ in arena.names()}


def get(arena: SharedArena, path: Path) -> bytes:
    number = arena.find(str(path))
    assert number is not None, path
    return arena.read(number)


@pytest.mark.parametrize("compression", [None, *get_args(CodecName)])
def test_all_files_come_back_and_nothing_a_run_rewrites_is_staged(tree: Path, compression: str | None) -> None:
    arena = stage("x", tree, InMemory(compression=compression, num_workers=3))
    wanted = {
        path for path in tree.rglob("*") if path.is_file() and "aspect_ratio" not in path.name and path.suffix != ".pt"
    }
    assert staged_names(arena) == {str(path) for path in wanted}
    for path in wanted:
        assert get(arena, path) == path.read_bytes()
    rows = {name: arena.row(number) for name, number in arena.names()}
    assert rows[str(tree / "photo.jpg")].blocks == 0
    assert rows[str(tree / "photo.txt")].blocks == int(compression is not None)
    assert arena.find(str(tree / "photo.jpg")) == arena.find(str(tree / "twin.jpg"))


def test_a_relative_root_is_indexed_by_absolute_paths(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    assert get(stage("x", "data", InMemory()), tree / "photo.txt") == (tree / "photo.txt").read_bytes()


def test_many_threads_share_a_few_segments(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.bin").write_bytes(os.urandom(number * 37))
    arena = stage("x", tmp_path, InMemory(num_workers=50))
    assert len(arena.segment_sizes) == 16
    for path in tmp_path.iterdir():
        assert get(arena, path) == path.read_bytes()


def test_a_file_is_read_whole_where_the_kernel_reads_less_at_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with files above 2 GB."""
    usual = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: usual(descriptor, min(size, 1000), offset))
    for compression in (None, "zlib"):
        arena = stage("x", tree, InMemory(compression=compression))
        for name in ("photo.jpg", "photo.txt", "empty.txt"):
            assert get(arena, tree / name) == (tree / name).read_bytes()


def test_what_somebody_else_may_write_is_compared_in_every_process(tree: Path) -> None:
    arena = stage("x", tree, InMemory())
    attached = attach(arena.handle())
    (tree / "photo.txt").write_bytes(b"new")
    (tree / "empty.txt").unlink()
    assert get(arena, tree / "photo.txt") != b"new", "until the next check"
    attached.compare_before_reads()
    for one in (arena, attached):
        assert one.find(str(tree / "photo.txt")) is None and one.find(str(tree / "empty.txt")) is None
        assert get(one, tree / "photo.jpg") == (tree / "photo.jpg").read_bytes()


def test_sealed_memory_rejects_every_change(tree: Path) -> None:
    arena = stage("x", tree, InMemory())
    handle = arena.handle()
    # One thread may have been quick enough to stage everything.
    filled = max(handle.segments, key=lambda segment: os.fstat(segment).st_size)
    writable = os.open(f"/proc/self/fd/{filled}", os.O_RDWR)
    for attempt in (lambda: os.ftruncate(writable, 0), lambda: os.pwrite(writable, b"x", 0)):
        with pytest.raises(PermissionError):
            attempt()
    os.close(writable)


def test_one_line_at_the_end_says_what_was_done(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        stage("photos", tree, InMemory(compression="zlib"))
    (record,) = caplog.records
    for part in ("photos", "7 files", "620.0 KB", "ratio", " s.", "Page cache"):
        assert part in record.getMessage()


def cached_pages(path: Path) -> list[bool]:
    """Which pages of a file are in the page cache, asked of the kernel without touching them."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
        pages = (ctypes.c_ubyte * (len(mapping) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapping)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), pages)
        del first
    assert not failed, os.strerror(ctypes.get_errno())
    return [bool(page & 1) for page in pages]


def test_after_staging_the_second_copy_is_given_back(tmp_path: Path) -> None:
    names = ("clip.mp4", "photo.jpg", "table.parquet")
    for name in names:
        with (tmp_path / name).open("wb") as file:
            file.write(os.urandom(1 << 24))
            os.fsync(file.fileno())
    arena = stage("x", tmp_path, InMemory())
    for thread in threading.enumerate():
        if thread.name == PAGE_CACHE_THREAD:
            thread.join()
    cached = {name: cached_pages(tmp_path / name) for name in names}
    # The cache is dropped in whole blocks of up to 2 MiB: those with a header stay, which may be at either end.
    block = (1 << 21) // mmap.PAGESIZE
    for pages in cached.values():
        assert pages[0] and pages[-1] and not any(pages[block:-block])
    assert arena.files == 3


def test_a_broken_link_is_reported_by_name(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tree / "dangling.png").symlink_to(tree / "gone.png")
    stage("x", tree, InMemory())
    assert f"{tree}/dangling.png: No such file" in caplog.text


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_files_that_change_between_listing_and_staging(
    tree: Path, caplog: pytest.LogCaptureFixture, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(root: Path) -> object:
        listing = list_dataset(root)
        (tree / "photo.txt").write_text("shorter")
        (tree / "photo.jpg").write_bytes(os.urandom(400_000))
        (tree / "sub/deeper/mask.bmp").unlink()
        return listing

    monkeypatch.setattr("simpletuner.gh200.backends.ram.staging.list_dataset", meddle)
    arena = stage("x", tree, InMemory(compression=compression, num_workers=1))
    for name in ("photo.txt", "photo.jpg", "sub/deeper/mask.bmp"):
        assert arena.find(str(tree / name)) is None and f"{tree / name}: " in caplog.text
    assert get(arena, tree / f"sub/{LONG}.png") == (tree / f"sub/{LONG}.png").read_bytes()
    assert get(arena, tree / "outside.txt") == b"linked"


def test_files_that_change_after_staging_are_forgotten_and_named(tree: Path) -> None:
    arena = stage("x", tree, InMemory())
    assert forget_changed(arena) == []
    (tree / "photo.txt").write_text("new")
    os.utime(tree / "photo.jpg", ns=(1, 1))
    (tree / "empty.txt").unlink()
    problems = forget_changed(arena)
    assert {problem.split(": ")[0] for problem in problems} == {
        str(tree / name) for name in ("photo.txt", "photo.jpg", "twin.jpg", "empty.txt")
    }
    assert arena.find(str(tree / "twin.jpg")) is None and forget_changed(arena) == []


def test_where_sendfile_is_not_possible_the_file_is_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reject(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(staging_segment.os, "sendfile", reject)
    assert get(stage("x", tree, InMemory()), tree / "photo.jpg") == (tree / "photo.jpg").read_bytes()


def test_a_dataset_over_the_limit_is_rejected_before_the_first_byte(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner.gh200.backends.ram.staging.Worker", None)
    for compression in (None, "lz4"):
        with pytest.raises(OverMemoryLimit, match="100.0 KB may be used"):
            stage("x", tree, InMemory(compression=compression, memory_limit_gb=0.0001))


def test_compression_lets_a_dataset_fit(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text("the same words " * 20_000)
    with pytest.raises(OverMemoryLimit):
        stage("x", tmp_path, InMemory(memory_limit_gb=0.005))
    arena = stage("x", tmp_path, InMemory(memory_limit_gb=0.005, compression="zlib"))
    assert arena.files == 30 and sum(arena.segment_sizes) < 5e6


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_partial_stages_what_fits_and_says_so(
    tree: Path, caplog: pytest.LogCaptureFixture, compression: str | None
) -> None:
    options = InMemory(memory_limit_gb=0.0002, on_limit="partial", compression=compression)
    arena = stage("x", tree, options)
    assert 0 < arena.files < 7 and sum(arena.segment_sizes) <= 200_000
    assert arena.find(str(tree / "photo.jpg")) is None
    assert "did not fit" in caplog.text


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_sparse_file_larger_than_ram(tree: Path, compression: str | None) -> None:
    with (tree / "huge.mp4").open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(OverMemoryLimit, match="free memory"):
        stage("x", tree, InMemory(compression=compression))
    arena = stage("x", tree, InMemory(compression=compression, on_limit="partial"))
    assert arena.files == 7 and arena.find(str(tree / "huge.mp4")) is None


def test_missing_empty_and_forbidden_directories(tmp_path: Path) -> None:
    (tmp_path / "only-caches").mkdir()
    (tmp_path / "only-caches/a.pt").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    for name, why in (("nowhere", "No such file"), ("only-caches", "nothing to stage"), ("file", "Not a directory")):
        with pytest.raises(GH200Error, match=why):
            stage("x", tmp_path / name, InMemory())


def unprivileged(action: Callable[[], object]) -> str:
    """What the action raises in a child that may not read everything."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            action()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading) as answer:
        return answer.read()


def test_a_directory_without_permission(tree: Path) -> None:
    tree.chmod(0)
    said = unprivileged(lambda: stage("x", tree, InMemory()))
    tree.chmod(0o700)
    assert said.startswith("GH200Error") and "Permission denied" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_cannot_attach(tree: Path) -> None:
    arena = stage("x", tree, InMemory())
    handle = arena.handle()
    assert unprivileged(lambda: attach(handle)).startswith("PermissionError")


def test_offsets_above_four_gigabytes() -> None:
    far = (5 << 30) + 7
    segment = memory_file("data")
    os.pwrite(segment, b"far away", far)
    row = Row(0, 0, far, 8, 8, 0, 0, 1, 1)
    arena = create_arena("/data", None, [row], [("/data/a", 0)], [segment])
    again = attach(arena.handle())
    assert again.read(0) == b"far away" and again.row(0) == row


def test_an_arena_that_is_not_what_was_announced(tree: Path) -> None:
    arena = stage("x", tree, InMemory())
    good = arena.handle()
    for changed in ({"token": "0" * 16}, {"segments": good.segments[:-1]}):
        with pytest.raises(ArenaDamaged):
            attach(Handle.from_dict(good.as_dict() | changed))
    for changed in ({"index": 0}, {"index": good.flags}, {"flags": good.index}):
        with pytest.raises(OSError):
            attach(Handle.from_dict(good.as_dict() | changed))


CHILD = """
import json, sys
from simpletuner.gh200.backends.ram.arena import Handle, attach
arena = attach(Handle.from_dict(json.loads(sys.argv[1])))
print(sum(len(arena.read(number)) for _, number in arena.names()), flush=True)
for line in sys.stdin:
    word, path = line.split(maxsplit=1)
    number = arena.find(path.strip())
    if word == "forget":
        arena.forget(number)
    print(number is not None, flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(child: subprocess.Popen[str], line: str = "") -> str:
    assert child.stdin and child.stdout
    if line:
        child.stdin.write(line + "\n")
        child.stdin.flush()
    return child.stdout.readline().strip()


def test_another_process_reads_the_same_memory_and_forgets_for_all(tree: Path) -> None:
    arena = stage("x", tree, InMemory(compression="zlib"))
    total = sum(len(arena.read(number)) for _, number in arena.names())
    first, second = (start(CHILD, json.dumps(arena.handle().as_dict())) for _ in range(2))
    try:
        assert ask(first) == ask(second) == str(total)
        assert ask(first, f"forget {tree}/photo.txt") == "True"
        assert ask(second, f"find {tree}/photo.txt") == "False"
        assert arena.find(str(tree / "photo.txt")) is None
        assert ask(second, f"find {tree}/photo.jpg") == "True"
    finally:
        first.kill(), second.kill()
        first.wait(), second.wait()


STAGER = """
import json, sys, time
from simpletuner.gh200.backends.ram.staging import PAGE_CACHE_THREAD, stage
from simpletuner.gh200.config.schema import InMemory
arena = stage("x", sys.argv[1], InMemory())
print(json.dumps(arena.handle().as_dict()), flush=True)
time.sleep(600)
"""


def test_the_memory_outlives_its_stager_and_goes_with_the_last_user(tree: Path) -> None:
    stager = start(STAGER, str(tree))
    handle = Handle.from_dict(json.loads(ask(stager)))
    arena = attach(handle)
    os.kill(stager.pid, signal.SIGKILL)
    stager.wait()
    assert get(arena, tree / "photo.jpg") == (tree / "photo.jpg").read_bytes()
    child = start(CHILD, json.dumps(arena.handle().as_dict()))
    assert int(ask(child)) > 0
    child.kill(), child.wait()
    with pytest.raises(OSError):
        attach(handle)
    own = arena.handle()
    inodes = {os.fstat(descriptor).st_ino for descriptor in (own.index, own.flags, *own.segments)}
    del arena
    assert not inodes & open_inodes()


def open_inodes() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.stat(f"/proc/self/fd/{name}").st_ino)
        except FileNotFoundError:
            pass  # a thread of another test has closed it meanwhile
    return found


def test_threads_read_while_others_forget(tree: Path) -> None:
    names = [tree / f"{number}.txt" for number in range(200)]
    for path in names:
        path.write_bytes(zlib.compress(os.urandom(100)) * 50)
    arena = stage("x", tree, InMemory(compression="zstd"))
    wanted = {str(path): path.read_bytes() for path in names}
    wrong: list[str] = []

    def work(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(500):
            name = chosen.choice(list(wanted))
            number = arena.find(name)
            if number is not None and arena.read(number) != wanted[name]:
                wrong.append(name)
            if number is not None and chosen.random() < 0.02:
                arena.forget(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
