"""Copies a dataset directory into RAM: a pool of threads, each appending whole files to a memory file of its own."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tqdm import tqdm

from ...errors import GH200Error, printable
from ...memory.limits import Limit, format_size, memory_limits, over_limit
from ...memory.numa import keep_to_cpu_memory
from ...runtime import STAGED, current
from . import page_cache
from .arena import SharedArena, create_arena
from .budget import StagingBudget
from .codecs import Codec, load_codec
from .index import NOT_STAGED, Row
from .listing import Listing, SourceFile, drop_page_cache, list_dataset
from .segment import BLOCK_BYTES, MemorySegment, SourceChanged, bytes_for_all, estimated_bytes
from .unstaged_report import report_files

if TYPE_CHECKING:
    from ...config.schema import InMemory

logger = logging.getLogger("gh200.in_memory")

# A quarter of the staging time, and nobody has to wait for it.
PAGE_CACHE_THREAD = "gh200-page-cache"
# Each is a descriptor in every process that attaches.
_MOST_SEGMENTS = 16
_TICK_SECONDS = 0.2
_LIMITS_OF_THE_SHELL = {
    errno.ENOMEM: "there is no memory left, or a limit of the shell is in the way (ulimit -v)",
    errno.EFBIG: "a limit of the shell is in the way (ulimit -f)",
    errno.EMFILE: "a limit of the shell is in the way (ulimit -n)",
    errno.EAGAIN: "a limit of the shell is in the way (ulimit -u or -v)",
}


class StagingFailed(GH200Error):
    """The system stopped a staging half-way."""


@dataclass
class CopyJob:
    """One staging run, shared by its threads. A slot of `rows` stays None where the file is read from disk."""

    dataset: str
    listing: Listing
    options: InMemory
    codec: Codec | None
    budget: StagingBudget
    rows: list[Row | None]
    numbers: Iterator[int]
    problems: list[str] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    policy_problems: set[str] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes_read: int = 0
    page_cache: bool = False

    def next_number(self) -> int | None:
        """The next file to stage; None at the end."""
        with self.lock:
            return next(self.numbers, None)

    def moved(self, size: int) -> None:
        """Counts bytes that were read."""
        with self.lock:
            self.bytes_read += size


class Worker:
    """A thread and the segment it appends to; with many threads, some share one and read ahead while they wait."""

    def __init__(self, job: CopyJob, segment: MemorySegment, shares: bool) -> None:
        self.job, self.segment, self.shares = job, segment, shares

    def run(self) -> None:
        """Stages files until none is left."""
        if problem := keep_to_cpu_memory():
            self.job.policy_problems.add(problem)
        files = self.job.listing.files
        while not self.job.stop.is_set() and (number := self.job.next_number()) is not None:
            try:
                self._stage(number, files[number])
            except SourceChanged as changed:
                self.job.problems.append(f"{files[number].path}: {changed}")

    def _stage(self, number: int, file: SourceFile) -> None:
        job = self.job
        placed = self.segment.add(file, job.codec, job.budget, self.shares, job.moved)
        if placed is not None:
            where = (self.segment.number, placed.blocks, placed.offset, placed.stored)
            seen = (file.size, placed.mtime_ns, placed.ctime_ns, file.device, file.inode)
            job.rows[number] = Row(*where, *seen)
        elif job.options.on_limit != "error":
            job.left_out.append(number)
        else:
            need = max(job.listing.bytes, job.budget.limit.bytes + 1)
            raise over_limit(job.dataset, need, job.budget.limit, estimated=True, compressed=job.codec is not None)


def stage(dataset: str, root: str | os.PathLike[str], options: InMemory) -> SharedArena:
    """Checks the limits, then reads the whole directory into a new arena; one log line at the end says what was done."""
    try:
        return _stage(dataset, root, options)
    except (OSError, MemoryError, RuntimeError) as error:
        number = _number_of(error)
        why = _LIMITS_OF_THE_SHELL.get(number) if number is not None else None
        raise StagingFailed(
            f'The in-memory dataset "{dataset}" could not be staged.',
            where=printable(os.fspath(root)),
            why=f"{error or type(error).__name__}" + (f"; {why}" if why else ""),
            fix="raise the limit that is named, use fewer in_memory.num_workers, or set the dataset's type to local",
        ) from error


def _number_of(error: BaseException) -> int | None:
    """Python gives two of them no number: there was no memory, or a thread could not be started."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return errno.EAGAIN if "new thread" in str(error) else getattr(error, "errno", None)


def _stage(dataset: str, root: str | os.PathLike[str], options: InMemory) -> SharedArena:
    began = time.monotonic()
    codec = load_codec(options.compression)
    listing = list_dataset(root)
    if not listing.files:
        raise GH200Error(
            f'The in-memory dataset "{dataset}" has nothing to stage.',
            where=printable(listing.root),
            why="; ".join(map(printable, listing.problems)) or "the directory holds no files besides caches",
            fix="check instance_data_dir",
        )
    on_disk = page_cache.is_better(listing.files, codec)
    limit = memory_limits()[0] if on_disk else check_limits(dataset, listing, options, codec)
    rows: list[Row | None] = [None] * len(listing.files)
    budget = StagingBudget(limit, lambda: memory_limits()[0])
    job = CopyJob(dataset, listing, options, codec, budget, rows, iter(range(len(rows))), list(listing.problems))
    job.page_cache = on_disk
    if on_disk or (options.on_limit == "disk" and listing.bytes > limit.bytes):
        job.numbers, job.left_out = iter(()), list(range(len(rows)))
    count = min(options.workers, len(listing.files))
    segments = [MemorySegment(number) for number in range(min(count, _MOST_SEGMENTS))]
    workers = [Worker(job, segments[number % len(segments)], count > len(segments)) for number in range(count)]
    try:
        _run(job, workers)
    except BaseException:
        for segment in segments:
            segment.close()
        raise
    arena = _arena_of(job, [segment.descriptor for segment in segments])
    _report(job, time.monotonic() - began)
    staged = [file for file, row in zip(listing.files, job.rows, strict=True) if row is not None]
    threading.Thread(target=drop_page_cache, args=(staged,), name=PAGE_CACHE_THREAD, daemon=True).start()
    return arena


def check_limits(dataset: str, listing: Listing, options: InMemory, codec: Codec | None) -> Limit:
    """The tightest limit; raises before the first byte where the dataset cannot fit and must."""
    limit = memory_limits(options.memory_limit_gb)[0]
    need = bytes_for_all(listing.files)
    if codec is not None and limit.bytes < need:
        need = estimated_bytes(listing.files, codec)
    if need > limit.bytes and options.on_limit == "error":
        raise over_limit(dataset, need, limit, estimated=codec is not None, compressed=codec is not None)
    if options.on_limit == "disk":
        free = memory_limits()[0]
        return min(limit, Limit(free.kind, f"half of the {free.name}", free.bytes // 2), key=lambda one: one.bytes)
    return limit


def _run(job: CopyJob, workers: list[Worker]) -> None:
    with ThreadPoolExecutor(len(workers), thread_name_prefix="gh200-staging") as pool:
        try:
            futures = [pool.submit(worker.run) for worker in workers]
            _watch(job, futures)
        finally:
            job.stop.set()
    for future in futures:
        future.result()


def _watch(job: CopyJob, futures: list[Future[None]]) -> None:
    total = job.listing.bytes
    with tqdm(total=total, unit="B", unit_scale=True, desc=f"Staging {job.dataset}", mininterval=0.5) as shown:
        waiting = True
        while waiting:
            done, pending = wait(futures, timeout=_TICK_SECONDS, return_when=FIRST_EXCEPTION)
            shown.update(min(job.bytes_read, total) - shown.n)
            waiting = bool(pending) and not any(future.exception() for future in done)


def _arena_of(job: CopyJob, segments: list[int]) -> SharedArena:
    """Only what was staged gets a number; the other names say that their files are read from disk."""
    staged = ((row, old) for old, row in enumerate(job.rows) if row is not None)
    in_order = sorted(staged, key=lambda one: (one[0].device, one[0].inode))
    rows = [row for row, _ in in_order]
    numbers = {old: new for new, (_, old) in enumerate(in_order)}
    names = [(name, numbers.get(old, NOT_STAGED)) for name, old in job.listing.names]
    more = {"block": BLOCK_BYTES, "bytes": sum(row.size for row in rows), "page_cache": job.page_cache}
    return create_arena(job.listing.root, job.codec.name if job.codec else None, rows, names, segments, more)


def _report(job: CopyJob, seconds: float) -> None:
    if job.page_cache:
        logger.info(
            "(id=%s) Not staged: %s. They are read ahead, and dropped from the page cache once they were read.",
            *(job.dataset, page_cache.WHY),
        )
        return
    rows = [row for row in job.rows if row is not None]
    size, stored = sum(row.size for row in rows), sum(row.stored for row in rows)
    logger.info(
        "(id=%s) Staged %d files, %s as %s in RAM (ratio %.2f), %.1f s. "
        "Page cache kept: start and end of each file; the rest is given back.",
        *(job.dataset, len(rows), format_size(size), format_size(stored), size / stored if stored else 1.0, seconds),
    )
    run = current()
    if run is not None:
        values = {"files": len(rows), "bytes": size, "bytes in RAM": stored, "seconds": round(seconds, 3)}
        run.measure(f"{STAGED}{job.dataset}", lambda: values)
    if job.left_out:
        _report_left_out(job)
    report_files(job.dataset, "could not be staged and are read from disk", job.problems)
    for problem in job.policy_problems:
        logger.warning("(id=%s) Pages could not be kept out of GPU memory: %s", job.dataset, problem)


def _report_left_out(job: CopyJob) -> None:
    files = [job.listing.files[number] for number in sorted(job.left_out)]
    left, limit = sum(file.size for file in files), job.budget.limit
    report_files(
        job.dataset,
        f"of {len(job.rows)} ({format_size(left)}, {left / max(job.listing.bytes, 1):.1%} of the bytes) did not fit and "
        f"are read from disk; limit: {limit.name}, {format_size(limit.bytes)}",
        [f"{file.path}: {format_size(file.size)}" for file in files],
    )
