"""Copies a dataset folder into RAM: a pool of threads, each appending whole files to a memory file of its own."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import GH200Error
from ..memory.limits import Limit, memory_limits, over_limit, spoken_size
from ..memory.numa import keep_to_cpu_memory
from ..run import current
from .arena import Row, SharedArena, create_arena
from .codecs import Codec, load_codec
from .listing import Kinds, Listing, SourceFile, drop_page_cache, list_dataset
from .segment import MemorySegment, SourceChanged, estimated_room, room_for_all

if TYPE_CHECKING:
    from ..settings.schema import InMemory

logger = logging.getLogger("gh200.in_memory")

PAGE_CACHE_THREAD = "gh200-page-cache"
_SHOWN_PROBLEMS = 20
# Each is a descriptor in every process that attaches.
_MOST_SEGMENTS = 16
_TICK_SECONDS = 0.2
_KINDS = Kinds()


@dataclass
class StagingBudget:
    """The bytes all threads together may still take."""

    limit: Limit
    used: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size: int) -> bool:
        with self.lock:
            fits = self.used + size <= self.limit.bytes
            self.used += size if fits else 0
            return fits


@dataclass
class Job:
    """One staging run, shared by its threads. A slot of `rows` stays None where the file is read from disk."""

    dataset: str
    listing: Listing
    options: InMemory
    kinds: Kinds
    codec: Codec | None
    budget: StagingBudget
    rows: list[Row | None]
    numbers: Iterator[int]
    problems: list[str] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    policy_problems: set[str] = field(default_factory=set)
    stop: threading.Event = field(default_factory=threading.Event)


class Worker:
    """A thread and the segment it appends to; with many threads, some share one and read ahead while they wait."""

    def __init__(self, job: Job, segment: MemorySegment, shares: bool) -> None:
        self.job, self.segment, self.shares = job, segment, shares
        self.done_bytes = 0

    def run(self) -> None:
        if problem := keep_to_cpu_memory():
            self.job.policy_problems.add(problem)
        files = self.job.listing.files
        while not self.job.stop.is_set() and (number := next(self.job.numbers)) < len(files):
            try:
                self._stage(number, files[number])
            except SourceChanged as changed:
                self.job.problems.append(f"{files[number].path}: {changed}")
            self.done_bytes += files[number].size

    def _stage(self, number: int, file: SourceFile) -> None:
        job = self.job
        placed = self.segment.add(file, job.codec, job.budget.take, self.shares)
        if placed is not None:
            where = (self.segment.number, placed.compressed, placed.offset, placed.stored)
            job.rows[number] = Row(*where, file.size, file.mtime_ns, file.device, file.inode)
        elif job.options.on_limit == "partial":
            job.left_out.append(number)
        else:
            need = max(job.listing.bytes, job.budget.limit.bytes + 1)
            raise over_limit(job.dataset, need, job.budget.limit, estimated=True, compressed=job.codec is not None)


def stage(dataset: str, root: str | os.PathLike[str], options: InMemory, kinds: Kinds = _KINDS) -> SharedArena:
    """Checks the limits, then reads the whole folder into a new arena; one log line at the end says what was done."""
    began = time.monotonic()
    codec = load_codec(options.compression)
    listing = list_dataset(root)
    if not listing.files:
        raise GH200Error(
            f'The in-memory dataset "{dataset}" has nothing to stage.',
            where=listing.root,
            why="; ".join(listing.problems) or "the folder holds no files besides caches",
            fix="check instance_data_dir",
        )
    limit = check_limits(dataset, listing, options, codec)
    rows: list[Row | None] = [None] * len(listing.files)
    job = Job(
        dataset, listing, options, kinds, codec, StagingBudget(limit), rows, itertools.count(), list(listing.problems)
    )
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
    # A quarter of the staging time, and nobody has to wait for it.
    staged = [file for file, row in zip(listing.files, job.rows, strict=True) if row is not None]
    threading.Thread(target=drop_page_cache, args=(staged, kinds), name=PAGE_CACHE_THREAD, daemon=True).start()
    return arena


def check_limits(dataset: str, listing: Listing, options: InMemory, codec: Codec | None) -> Limit:
    """The tightest limit; raises before the first byte where the dataset cannot fit and must."""
    limit = memory_limits(options.memory_limit_gb)[0]
    need = room_for_all(listing.files)
    if codec is not None and limit.bytes < need:
        need = estimated_room(listing.files, codec)
    if need > limit.bytes and options.on_limit == "error":
        raise over_limit(dataset, need, limit, estimated=codec is not None, compressed=codec is not None)
    return limit


def _run(job: Job, workers: list[Worker]) -> None:
    with ThreadPoolExecutor(len(workers), thread_name_prefix="gh200-staging") as pool:
        futures = [pool.submit(worker.run) for worker in workers]
        try:
            _watch(job, workers, futures)
        finally:
            job.stop.set()
    for future in futures:
        future.result()


def _watch(job: Job, workers: list[Worker], futures: list[Future[None]]) -> None:
    with _progress_bar(job) as bar:
        waiting = True
        while waiting:
            done, pending = wait(futures, timeout=_TICK_SECONDS, return_when=FIRST_EXCEPTION)
            bar.update(sum(worker.done_bytes for worker in workers) - bar.n)
            waiting = bool(pending) and not any(future.exception() for future in done)


@contextmanager
def _progress_bar(job: Job):  # type: ignore[no-untyped-def]
    from tqdm import tqdm

    with tqdm(
        total=job.listing.bytes, unit="B", unit_scale=True, desc=f"Staging {job.dataset}", mininterval=0.5
    ) as bar:
        yield bar


def _arena_of(job: Job, segments: list[int]) -> SharedArena:
    """Only what was staged gets a number; the rest of the names stay on disk."""
    rows = [row for row in job.rows if row is not None]
    numbers = {old: new for new, old in enumerate(old for old, row in enumerate(job.rows) if row is not None)}
    names = [(name, numbers[old]) for name, old in job.listing.names if old in numbers]
    return create_arena(job.listing.root, job.codec.name if job.codec else None, rows, names, segments)


def _report(job: Job, seconds: float) -> None:
    rows = [row for row in job.rows if row is not None]
    size, stored = sum(row.size for row in rows), sum(row.stored for row in rows)
    logger.info(
        "(id=%s) Staged %d files, %s as %s in RAM (ratio %.2f), %.1f s. "
        "Page cache kept whole: audio and video; start of the file: images; dropped: all other files.",
        *(job.dataset, len(rows), spoken_size(size), spoken_size(stored), size / stored if stored else 1.0, seconds),
    )
    run = current()
    if run is not None:
        told = {"files": len(rows), "bytes": size, "bytes in RAM": stored, "seconds": round(seconds, 3)}
        run.measure(f"Staged into RAM: {job.dataset}", lambda: told)
    if job.left_out:
        left = sum(job.listing.files[number].size for number in job.left_out)
        logger.warning(
            "(id=%s) %d files (%s) did not fit and are read from disk; limit: %s, %s.",
            *(
                job.dataset,
                len(job.left_out),
                spoken_size(left),
                job.budget.limit.name,
                spoken_size(job.budget.limit.bytes),
            ),
        )
    report_files(job.dataset, "could not be staged and are read from disk", job.problems)
    for problem in job.policy_problems:
        logger.warning("(id=%s) Pages could not be kept out of GPU memory: %s", job.dataset, problem)


def report_files(dataset: str, what: str, problems: list[str]) -> None:
    if problems:
        shown = "\n  ".join(problems[:_SHOWN_PROBLEMS])
        more = f"\n  ... and {len(problems) - _SHOWN_PROBLEMS} more" if len(problems) > _SHOWN_PROBLEMS else ""
        logger.warning("(id=%s) %d files %s:\n  %s%s", dataset, len(problems), what, shown, more)
