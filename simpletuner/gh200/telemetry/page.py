"""The terminal page: lines of text that fit the terminal, measurements under their tracker names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..trackers import PREFIX
from .reader import RankRecords, Telemetry
from .record import Record
from .tracker_values import tracker_values

_LABEL = 14


def page(seen: Telemetry, columns: int) -> list[str]:
    """The page as lines of at most `columns` characters."""
    first = seen.first
    lines = [
        *_head(seen),
        "",
        *_ramp(first.latest, first.schedule),
        *_measurements(first),
        *_others(seen),
        *_foot(seen),
    ]
    return [line[: max(20, columns)].rstrip() for line in lines]


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _head(seen: Telemetry) -> Iterator[str]:
    latest = seen.first.latest
    state = {
        "running": f"running, last record {seen.silence():.0f} s ago",
        "ended": "ended",
        "silent": f"silent for {_duration(seen.silence())}: it was killed, or it hangs",
    }[seen.state()]
    yield f"GH200 run: {state}"
    yield f"in {seen.directory}"
    whole = f" of {latest.total_steps}" if latest.total_steps else ""
    loss = f", loss {latest.loss:.4f}" if latest.loss is not None else ""
    epoch = f", epoch {latest.epoch}" if latest.epoch is not None else ""
    yield f"step {latest.step}{whole}{loss}{epoch}, {_duration(latest.time - latest.began)} since it began"
    if seen.missing:
        named = ", ".join(map(str, seen.missing))
        yield f"! no file here of rank {named} of {latest.ranks}: it has not begun, or its machine has a directory of its own"
    if seen.first.other_runs:
        yield f"! {len(seen.first.other_runs)} other run(s) write into this directory too; the newest one is shown"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _ramp(latest: Record, schedule: list[tuple[int, int]] | None) -> Iterator[str]:
    if latest.window is None:
        return
    size, steps = latest.window.effective_batch_size, latest.window.accumulation_steps
    samples = f"{size} samples per step" if size is not None else "datasets have different sizes"
    yield _row("batch", f"{samples}, {steps} micro-batches of each rank")
    if schedule is not None and len(schedule) > 1:
        coming = next((f", {larger} from step {start} on" for start, larger in schedule if start > latest.step), "")
        yield _row("ramp", f"{schedule[0][1]} to {schedule[-1][1]} samples{coming}")
    if latest.noise is not None:
        noise = latest.noise
        ends = f" ({noise.low:.0f} to {noise.high:.0f})" if noise.low is not None and noise.high is not None else ""
        yield _row("noise scale", f"{noise.scale:.0f} samples{ends}")


def _measurements(rank: RankRecords) -> Iterator[str]:
    """A row for the values whose names begin with the same word."""
    done = rank.latest.seconds.micro_batches
    before = next((one for one in reversed(rank.records) if one.seconds.micro_batches < done), None)
    values = tracker_values(rank.latest, before).items()
    named = [(*name.removeprefix(PREFIX).partition("_")[::2], value) for name, value in values]
    for word, group in groupby(named, key=lambda one: one[0]):
        yield _row(word, ", ".join(f"{rest} {_short(value)}" for _, rest, value in group))


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _others(seen: Telemetry) -> Iterator[str]:
    for rank, records in seen.ranks.items():
        if records is not seen.first:
            yield ""
            yield _row(f"rank {rank}", f"step {records.latest.step}")
            yield from _measurements(records)


def _foot(seen: Telemetry) -> Iterator[str]:
    for rank, records in seen.ranks.items():
        for what, why in records.latest.problems.items():
            yield f"! rank {rank}: {what}: {why}"
    cost = seen.first.latest.cost
    if cost is not None:
        lost = f", {cost.lost} records lost" if cost.lost else ""
        yield ""
        yield f"telemetry itself: {cost.percent:.2f} % of the time ({cost.cpu_seconds:.2f} s of CPU){lost}"
