"""A record as the values trackers draw: GB (10^9 bytes), counts, and seconds per micro-batch since the record before."""

from __future__ import annotations

from collections import Counter

from ..trackers import PREFIX
from .record import Record, Seconds

GB = 1e9


def tracker_values(record: Record, before: Record | None) -> dict[str, float]:
    """Only what was measured: a curve has no zeros where there was nothing to see. Further ranks have curves of their own."""
    time = per_micro_batch(record.seconds, before.seconds if before else Seconds())
    found = _memory(record) | _caches(record) | time
    prefix = f"{PREFIX}rank{record.rank}/" if record.rank else PREFIX
    return {prefix + name: float(value) for name, value in found.items() if value is not None}


def _gb(number: int | None) -> float | None:
    return None if number is None else number / GB


def _memory(record: Record) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    if record.hbm is not None:
        hbm = record.hbm
        found |= {"hbm_used_gb": _gb(hbm.used_bytes), "hbm_free_gb": _gb(hbm.free_bytes)}
        found |= {"torch_allocated_gb": _gb(hbm.allocated_bytes), "torch_reserved_gb": _gb(hbm.reserved_bytes)}
    if record.managed is not None:
        found["managed_gb"] = _gb(record.managed.bytes)
        found |= {f"managed_prefers_{side}_gb": _gb(size) for side, size in record.managed.prefers.items()}
    if record.host_memory is not None:
        own = record.host_memory
        found |= {"resident_gb": _gb(own.resident_bytes), "shared_gb": _gb(own.shared_bytes)}
        found["available_gb"] = _gb(own.available_bytes)
    if record.datasets:
        found["datasets_gb"] = _gb(sum(dataset.bytes for dataset in record.datasets.values()))
    return found


def _caches(record: Record) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    caches = record.caches
    if caches is not None:
        found |= {"cache_filled_gb": _gb(caches.filled_bytes), "cache_arena_gb": _gb(caches.arena_bytes)}
        found |= {"cache_entries": caches.entries, "cache_hits": caches.hits, "cache_misses": caches.misses}
        found |= {"cache_misses_in_training": caches.misses_in_training, "cache_waited_seconds": caches.waited_seconds}
        found["cache_hit_rate"] = caches.hits / reads if (reads := caches.hits + caches.misses) else None
        if caches.preload is not None:
            found |= {"preload_entries": caches.preload.entries, "preload_offered": caches.preload.offered}
    outcomes = sum((Counter(ends) for ends in record.hints.values()), Counter[str]())
    found |= {f"hints_{outcome}": count for outcome, count in outcomes.items()}
    if record.copies is not None:
        found |= {"c2c_copies": record.copies.count, "c2c_gb": _gb(record.copies.bytes)}
    return found


def per_micro_batch(now: Seconds, before: Seconds) -> dict[str, float]:
    """Seconds of one micro-batch between two records; nothing where there was none."""
    count = now.micro_batches - before.micro_batches
    if count <= 0:
        return {}
    kinds = ("data", "compute", "other")
    return {f"{kind}_seconds": (getattr(now, kind) - getattr(before, kind)) / count for kind in kinds}
