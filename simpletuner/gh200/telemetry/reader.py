"""What a run's files say: `read_directory(OUTPUT_DIR)`, for the terminal page, for scripts and for the web page. No torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ..errors import GH200Error
from .files import files_in, last_lines, path_of
from .record import Record

# Enough to find the ramp's schedule, which older releases wrote into every hundredth record.
MOST_RECORDS = 360
# Ranks begin together; a file whose newest record is older than this before another's beginning is of a run before.
_TOGETHER = 60.0
_LEAST_SILENCE = 30.0

State = Literal["running", "ended", "silent"]


class NoTelemetry(GH200Error):
    """There is nothing to read in this directory."""


@dataclass(frozen=True)
class RankRecords:
    """The newest run in one rank's file, oldest record first; `other_runs` are runs that wrote among its records."""

    path: Path
    records: tuple[Record, ...]
    broken_lines: int
    other_runs: tuple[str, ...]

    @property
    def latest(self) -> Record:
        """The newest record."""
        return self.records[-1]

    @property
    def schedule(self) -> list[tuple[int, int]] | None:
        """The ramp as it is now."""
        schedules = (record.window.schedule for record in reversed(self.records) if record.window is not None)
        return next((schedule for schedule in schedules if schedule is not None), None)


@dataclass(frozen=True)
class Telemetry:
    """The newest run in an output directory. `missing` are its ranks that have no records here."""

    directory: Path
    ranks: dict[int, RankRecords]
    missing: tuple[int, ...]

    @property
    def first(self) -> RankRecords:
        """The records of the lowest rank."""
        return self.ranks[min(self.ranks)]

    def state(self, now: float | None = None) -> State:
        """Silent: nothing for three intervals, and no last record. It was killed, or it hangs."""
        latest = self.first.latest
        if latest.kind == "end":
            return "ended"
        return "silent" if self.silence(now) > max(3 * latest.interval, _LEAST_SILENCE) else "running"

    def silence(self, now: float | None = None) -> float:
        """Seconds since the last record."""
        return max(0.0, (time.time() if now is None else now) - self.first.latest.time)

    def as_json(self) -> dict[str, Any]:
        """For scripts and pages."""
        first = self.first
        return {
            "folder": str(self.directory),
            "state": self.state(),
            "silent_seconds": round(self.silence(), 1),
            "missing_ranks": list(self.missing),
            "other_runs": list(first.other_runs),
            "broken_lines": sum(rank.broken_lines for rank in self.ranks.values()),
            "schedule": first.schedule,
            "ranks": {
                str(rank): seen.latest.model_dump(mode="json", exclude_none=True) for rank, seen in self.ranks.items()
            },
        }


def read_directory(directory: Path, most: int = MOST_RECORDS) -> Telemetry:
    """The newest run in this output directory, or a NoTelemetry that says what to do."""
    try:
        paths = files_in(directory)
    except OSError as error:
        raise NoTelemetry(
            f"{directory} cannot be read: {error.strerror}.",
            fix="name the output_dir of a training config; paths in a config start at the directory the training is started in",
        ) from error
    found = {rank: seen for rank, path in paths.items() if (seen := _read_rank(path, most)) is not None}
    if not found:
        raise _nothing_in(directory, bool(paths))
    newest = max((seen.latest for seen in found.values()), key=lambda record: record.began)
    of_run = {
        rank: seen
        for rank, seen in found.items()
        if rank < newest.ranks and seen.latest.time >= newest.began - _TOGETHER
    }
    return Telemetry(directory, of_run, tuple(rank for rank in range(newest.ranks) if rank not in of_run))


def _nothing_in(directory: Path, files: bool) -> NoTelemetry:
    if files:
        return NoTelemetry(
            "No line of the telemetry files is a record.",
            where=str(path_of(directory, 0)),
            why="a run was killed before its first record, or a newer release wrote them",
            fix="wait some seconds and look again; read them with the release that wrote them",
        )
    return NoTelemetry(
        f"{directory} has no telemetry of a run.",
        why="it is written with a key of the fork's in the config, while gh200_optimizations.telemetry_interval is not 0",
        fix="name the output_dir of a run that was started with such a config, or start one",
    )


def newest_record(path: Path) -> Record | None:
    """The last record of one rank's file."""
    try:
        return next((record for line in reversed(last_lines(path, 2)) if (record := _record(line))), None)
    except OSError:
        return None


def _read_rank(path: Path, most: int) -> RankRecords | None:
    try:
        lines = last_lines(path, most)
    except OSError as error:
        raise NoTelemetry(
            f"{path} cannot be read: {error.strerror}.", fix="its owner can; or change its mode"
        ) from error
    read = [_record(line) for line in lines]
    records = [record for record in read if record is not None]
    if not records:
        return None
    run = max(records, key=lambda record: (record.began, record.time)).run
    own = tuple(record for record in records if record.run == run)
    since = own[0].time
    ended = {record.run for record in records if record.kind == "end"}
    others = {record.run for record in records if record.run != run and record.time > since} - ended
    return RankRecords(path, own, len(read) - len(records), tuple(sorted(others)))


def _record(line: bytes) -> Record | None:
    try:
        return Record.model_validate_json(line)
    except ValidationError:
        return None
