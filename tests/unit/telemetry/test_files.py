"""Telemetry on disk: what one rank appends, and what a reader makes of files that runs, kills and others left."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.pages import telemetry as telemetry_docs
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.telemetry.files import append, last_lines, path_of
from simpletuner.gh200.telemetry.reader import NoTelemetry, read_directory
from simpletuner.gh200.telemetry.record import Record, WindowMetrics

NOW = time.time()


def record(run: str = "one", rank: int = 0, **changes: Any) -> Record:
    given: dict[str, Any] = {
        "kind": "interval", "run": run, "rank": rank, "ranks": 1, "host": "here", "pid": 7, "began": NOW, "time": NOW,
        "interval": 10.0, "step": 0,
    }  # fmt: skip
    return Record(**given | changes)


def write(directory: Path, *records: Record) -> None:
    for one in records:
        append(path_of(directory, one.rank), one.line())


def test_telemetry_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record(
        window=WindowMetrics(accumulation_steps=2, effective_batch_size=8, schedule=[(0, 4), (3, 8)]), step=3
    )
    write(tmp_path, written)
    assert read_directory(tmp_path).first.latest == written
    assert read_directory(tmp_path).first.schedule == [(0, 4), (3, 8)]
    with pytest.raises(ValueError, match="frozen"):
        written.step = 4  # type: ignore[misc]


def test_telemetry_of_a_newer_release_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    line = {**json.loads(record(step=5).line()), "format": 2, "colour": "blue"}
    append(path_of(tmp_path, 0), json.dumps(line).encode() + b"\n")
    assert read_directory(tmp_path).first.latest.step == 5


def test_telemetry_after_a_kill_the_half_line_stays_and_the_resumed_run_appends(tmp_path: Path) -> None:
    write(tmp_path, record("killed", step=1), record("killed", step=2))
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    path.write_bytes(whole + record("killed", step=3).line()[:40])
    assert read_directory(tmp_path).first.latest.step == 2
    write(tmp_path, record("resumed", began=NOW + 50, time=NOW + 50, step=2))
    seen = read_directory(tmp_path).first
    assert path.read_bytes().startswith(whole)
    assert seen.latest.run == "resumed" and len(seen.records) == 1 and seen.broken_lines == 1
    assert seen.other_runs == ()


def test_telemetry_a_line_that_is_being_written_does_not_count_yet(tmp_path: Path) -> None:
    write(tmp_path, record(step=1))
    path_of(tmp_path, 0).open("ab").write(record(step=2).line()[:-1])
    seen = read_directory(tmp_path).first
    assert seen.latest.step == 1 and seen.broken_lines == 0


def test_telemetry_of_two_runs_in_one_directory_is_kept_apart_and_said(tmp_path: Path) -> None:
    for second in range(3):
        write(tmp_path, record("first", time=NOW + 20 + second, step=second))
        write(tmp_path, record("second", began=NOW + 15, time=NOW + 20 + second, step=10 + second))
    seen = read_directory(tmp_path).first
    assert [one.step for one in seen.records] == [10, 11, 12]
    assert seen.other_runs == ("first",)


def test_telemetry_lines_of_many_writers_are_never_mixed(tmp_path: Path) -> None:
    def writer(name: str) -> None:
        for step in range(200):
            write(tmp_path, record(name, step=step, problems={"long": "x" * 3000}))

    threads = [threading.Thread(target=writer, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = last_lines(path_of(tmp_path, 0), 10_000)
    assert len(lines) == 600 and {len(Record.model_validate_json(line).problems["long"]) for line in lines} == {3000}


def test_telemetry_names_ranks_without_a_file_and_passes_over_those_of_a_run_before(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, record("old", rank, ranks=4, began=NOW - 9000, time=NOW - 8000, kind="end"))
    write(tmp_path, record("new", 0, ranks=3, time=NOW + 5), record("new1", 1, ranks=3, time=NOW + 5))
    path_of(tmp_path, 2).unlink()
    seen = read_directory(tmp_path)
    assert list(seen.ranks) == [0, 1] and seen.missing == (2,)
    path_of(tmp_path, 0).unlink()
    assert read_directory(tmp_path).first.latest.rank == 1


def test_telemetry_state_says_running_ended_or_silent(tmp_path: Path) -> None:
    write(tmp_path, record(interval=20.0))
    seen = read_directory(tmp_path)
    assert seen.state(NOW + 59) == "running" and seen.state(NOW + 61) == "silent"
    write(tmp_path, record(kind="end"))
    assert read_directory(tmp_path).state(NOW + 9999) == "ended"


def test_telemetry_of_a_long_run_is_read_from_its_end(tmp_path: Path) -> None:
    """A hole before the lines: whoever reads the whole file finds no memory for it."""
    with path_of(tmp_path, 0).open("wb") as file:
        file.seek(1 << 38)
        file.writelines(record(step=step).line() for step in range(2000))
    seen = read_directory(tmp_path, most=100).first
    assert [one.step for one in seen.records] == list(range(1900, 2000))


def _missing(directory: Path) -> Path:
    return directory / "nowhere"


def _a_file(directory: Path) -> Path:
    (directory / "file").write_text("")
    return directory / "file"


def _empty(directory: Path) -> Path:
    return directory


def _another_file(directory: Path) -> Path:
    path_of(directory, 0).write_bytes(os.urandom(5000))
    return directory


@pytest.mark.parametrize("made", [_missing, _a_file, _empty, _another_file])
def test_telemetry_that_is_not_there_names_the_fix(made: Any, tmp_path: Path) -> None:
    directory = made(tmp_path)
    with pytest.raises(NoTelemetry) as rejected:
        read_directory(directory)
    assert str(directory) in rejected.value.render() and "fix: " in rejected.value.render()


def test_telemetry_on_a_full_disk_is_an_error_for_its_caller_and_the_next_line_is_whole(tmp_path: Path) -> None:
    path = path_of(tmp_path, 0)
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        append(path, b"line\n")
    path.unlink()
    append(path, b"half")
    append(path, b"line\n")
    assert path.read_bytes() == b"half\nline\n"


def test_telemetry_page_is_what_the_record_says() -> None:
    assert telemetry_docs.main(["--check"]) == 0


def ours(**keys: object) -> float:
    return read_settings({"gh200_optimizations": keys}, {}).telemetry_interval


def test_telemetry_interval_acts_with_a_key_of_ours_only() -> None:
    assert (
        ours(enable_uvm_hints=False) == 10.0 and ours(telemetry_interval=0) == 0 and ours(telemetry_interval=2.5) == 2.5
    )
    assert read_settings({}, {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "1"}).telemetry_interval == 0
    assert read_settings({}, {}).telemetry_interval == 0


def test_telemetry_has_taken_over_from_uvm_log_interval() -> None:
    assert ours(uvm_log_interval=0, telemetry_interval=3) == 3
    notes = read_settings({"gh200_optimizations": {"uvm_log_interval": 50}}, {}).notes
    assert any("telemetry_interval" in note for note in notes)


@pytest.mark.parametrize("value", [-1, "often", True, float("inf"), float("nan")])
def test_telemetry_interval_that_is_no_number_of_seconds_is_rejected(value: object) -> None:
    with pytest.raises(Exception, match="gh200_optimizations.telemetry_interval"):
        ours(telemetry_interval=value)
