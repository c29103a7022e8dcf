"""The terminal page: lines of text that fit the terminal, most wanted first."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory.limits import spoken_size
from .reader import Telemetry
from .record import Caches, Hbm, Record, Seconds, Window
from .tracked import per_micro_batch

_BAR = 24
_LABEL = 14


def page(seen: Telemetry, columns: int) -> list[str]:
    first = seen.first
    latest = first.latest
    lines = [*_head(seen), "", *_ramp(latest, first.schedule), *_memory(latest), *_caches(latest.caches)]
    lines += [*_hints(latest), *_times(first.records), *_others(seen), *_foot(seen)]
    return [line[: max(20, columns)].rstrip() for line in lines]


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL}} {text}"


def _bar(part: float, whole: float | None) -> str:
    if not whole:
        return ""
    filled = max(0, min(_BAR, round(_BAR * part / whole)))
    return f"[{'#' * filled}{'-' * (_BAR - filled)}] "


def _head(seen: Telemetry) -> Iterator[str]:
    latest = seen.first.latest
    state = {
        "running": f"running, last record {seen.silence():.0f} s ago",
        "ended": "ended",
        "silent": f"silent for {_duration(seen.silence())}: it was killed, or it hangs",
    }[seen.state()]
    yield f"GH200 run: {state}"
    yield f"in {seen.folder}"
    whole = f" of {latest.total_steps}" if latest.total_steps else ""
    loss = f", loss {latest.loss:.4f}" if latest.loss is not None else ""
    epoch = f", epoch {latest.epoch}" if latest.epoch is not None else ""
    yield f"step {latest.step}{whole}{loss}{epoch}, {_duration(latest.time - latest.began)} since it began"
    if seen.missing:
        named = ", ".join(map(str, seen.missing))
        yield f"! no file here of rank {named} of {latest.ranks}: it has not begun, or its machine has a folder of its own"
    if seen.first.other_runs:
        yield f"! {len(seen.first.other_runs)} other run(s) write into this folder too; the newest one is shown"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _ramp(latest: Record, schedule: list[tuple[int, int]] | None) -> Iterator[str]:
    if latest.window is None:
        return
    window: Window = latest.window
    size, steps = window.effective_batch_size, window.accumulation_steps
    yield _row("batch", f"{size} samples per step, {steps} micro-batches of each rank")
    if schedule is not None and len(schedule) > 1:
        coming = next((f", {larger} from step {start} on" for start, larger in schedule if start > latest.step), "")
        yield _row("ramp", f"{schedule[0][1]} to {schedule[-1][1]} samples{coming}")
    if latest.noise is not None:
        noise = latest.noise
        ends = f" ({noise.low:.0f} to {noise.high:.0f})" if noise.low is not None and noise.high is not None else ""
        yield _row("noise scale", f"{noise.scale:.0f} samples{ends}")


def _memory(latest: Record) -> Iterator[str]:
    if latest.hbm is not None:
        yield from _hbm(latest.hbm)
    managed = latest.managed
    if managed is not None:
        kinds = ", ".join(f"{name} {spoken_size(size)}" for name, size in managed.kinds.items() if size)
        yield _row(
            "managed", _bar(managed.bytes, managed.limit_bytes) + f"{spoken_size(managed.bytes)}: {kinds or 'none yet'}"
        )
        for words, sides in (("prefers", managed.prefers), ("last sent to", managed.prefetched)):
            if sides:
                yield _row(
                    "", f"{words} " + ", ".join(f"{side} {spoken_size(size)}" for side, size in sorted(sides.items()))
                )
    own = latest.host_memory
    if own is not None:
        room = f", {spoken_size(own.available_bytes)} available" if own.available_bytes is not None else ""
        yield _row(
            "process", f"{spoken_size(own.resident_bytes)} resident, {spoken_size(own.shared_bytes)} of it shared{room}"
        )
    for name, dataset in latest.datasets.items():
        yield _row("in RAM", f"{name}: {dataset.files} files, {spoken_size(dataset.bytes)}")


def _hbm(hbm: Hbm) -> Iterator[str]:
    if hbm.used_bytes is not None:
        yield _row(
            "HBM", _bar(hbm.used_bytes, hbm.total_bytes)
            + f"{spoken_size(hbm.used_bytes)} of {spoken_size(hbm.total_bytes or 0)}, GPU {hbm.device} {hbm.name or ''}"
        )  # fmt: skip
    of_torch = {
        "in tensors": hbm.allocated_bytes,
        "reserved": hbm.reserved_bytes,
        "in tensors at most": hbm.peak_allocated_bytes,
    }
    told = [f"{spoken_size(size)} {words}" for words, size in of_torch.items() if size is not None]
    if told:
        yield _row("torch", ", ".join(told))


def _caches(caches: Caches | None) -> Iterator[str]:
    if caches is None:
        return
    place = "managed memory" if caches.managed else "plain RAM"
    filled = f"{caches.entries} entries, {spoken_size(caches.filled_bytes)} in {place}"
    yield _row("caches", _bar(caches.filled_bytes, caches.limit_bytes or caches.arena_bytes) + filled)
    waited = f"{caches.misses_in_training} of them in training, {caches.waited_seconds:.1f} s"
    yield _row("", f"{caches.hits} hits, {caches.misses} reads from disk ({waited})")
    if caches.preload is not None:
        ahead = caches.preload
        state = "finished" if ahead.finished else "at work"
        yield _row("read ahead", f"{ahead.entries} of {ahead.offered} entries, {spoken_size(ahead.bytes)}, {state}")


def _hints(latest: Record) -> Iterator[str]:
    for name, outcomes in latest.hints.items():
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
        yield _row("hints", f"{name}: {told}")
    if latest.copies is not None:
        yield _row("C2C", f"{latest.copies.count} copies to the GPU, {spoken_size(latest.copies.bytes)}")


def _times(records: tuple[Record, ...]) -> Iterator[str]:
    now = records[-1].seconds
    earlier = (one.seconds for one in reversed(records) if one.seconds.micro_batches < now.micro_batches)
    for label, before in (("time now", next(earlier, Seconds())), ("time, mean", Seconds())):
        found = per_micro_batch(now, before)
        if found:
            told = ", ".join(f"{name.removesuffix('_seconds')} {value:.3f} s" for name, value in found.items())
            yield _row(label, f"{told} per micro-batch")


def _others(seen: Telemetry) -> Iterator[str]:
    for rank, told in seen.ranks.items():
        if told is seen.first:
            continue
        latest = told.latest
        parts = [f"step {latest.step}"]
        if latest.hbm is not None and latest.hbm.used_bytes is not None:
            parts.append(f"HBM {spoken_size(latest.hbm.used_bytes)}")
        if latest.host_memory is not None:
            parts.append(f"{spoken_size(latest.host_memory.resident_bytes)} resident")
        if latest.caches is not None:
            parts.append(f"caches {spoken_size(latest.caches.filled_bytes)}")
        parts += [
            f"{name.removesuffix('_seconds')} {value:.3f} s"
            for name, value in per_micro_batch(latest.seconds, Seconds()).items()
        ]
        yield _row(f"rank {rank}", ", ".join(parts))


def _foot(seen: Telemetry) -> Iterator[str]:
    for rank, told in seen.ranks.items():
        for what, why in told.latest.problems.items():
            yield f"! rank {rank}: {what}: {why}"
    cost = seen.first.latest.cost
    if cost is not None:
        lost = f", {cost.lost} records lost" if cost.lost else ""
        yield ""
        yield f"telemetry itself: {cost.percent:.2f} % of the time ({cost.cpu_seconds:.2f} s of CPU){lost}"
