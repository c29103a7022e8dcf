"""What features say about themselves, as parts of a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..memory.limits import memory_limits
from ..memory.process import process_memory
from ..runtime import MANAGED_MEMORY, STAGED, UNIFIED_MEMORY
from .record import CacheMetrics, CopyMetrics, DatasetMetrics, HostMetrics, ManagedMetrics

Reports = Mapping[str, dict[str, Any]]
_CACHES = "caches"
# Of the caches' own report, what has no name of its own in the record.
_BESIDES = ("counts", "adaptive_prefetch", "bytes_resident")


def parts(reports: Reports) -> dict[str, Any]:
    """The parts of a record that come from reports."""
    unified, pools = reports.get(UNIFIED_MEMORY, {}), reports.get(MANAGED_MEMORY, {})
    caches = unified.get(_CACHES) or {}
    return {
        "datasets": {
            title.removeprefix(STAGED): DatasetMetrics(bytes=values["bytes in RAM"], files=values["files"])
            for title, values in reports.items()
            if title.startswith(STAGED)
        },
        "hints": unified.get("hints", {}),
        "managed": _managed(caches, pools),
        "more": _more(reports, caches),
        "caches": _caches(caches) if "entries" in caches else None,
        "copies": _copies(unified.get("copies", {}), caches),
    }


def _copies(moved: Mapping[str, int], caches: Mapping[str, Any]) -> CopyMetrics | None:
    """Pages that were moved, and batches that went in one copy."""
    count = moved.get("moves", 0) + caches.get("batches_in_one_copy", 0)
    return (
        CopyMetrics(count=count, bytes=moved.get("moved_bytes", 0) + caches.get("bytes_copied", 0)) if count else None
    )


def _caches(values: Mapping[str, Any]) -> CacheMetrics:
    return CacheMetrics(
        **values,
        misses=values["disk_reads"],
        misses_in_training=values["disk_reads_in_training"],
        filled_bytes=values["packed_bytes"],
    )


def _managed(caches: Mapping[str, Any], pools: Mapping[str, Any]) -> ManagedMetrics | None:
    kinds = {name: kind["bytes"] for name, kind in pools.get("kinds", {}).items()}
    if caches.get("managed"):
        kinds["caches"] = caches["arena_bytes"]
    if not kinds:
        return None
    sides: dict[str, Counter[str]] = {"prefers": Counter(), "prefetched": Counter()}
    for report in (caches, pools):
        for question, found in (report.get("places") or {}).items():
            sides[question].update({side.removesuffix("_bytes"): size for side, size in found.items()})
    limit = pools.get("limit_bytes", caches.get("limit_bytes"))
    return ManagedMetrics(bytes=sum(kinds.values()), kinds=kinds, limit_bytes=limit, **sides)


def _more(reports: Reports, caches: Mapping[str, Any]) -> dict[str, Any]:
    known = {UNIFIED_MEMORY, MANAGED_MEMORY}
    more = {title: values for title, values in reports.items() if title not in known and not title.startswith(STAGED)}
    rest = {name: caches[name] for name in _BESIDES if name in caches}
    return more | ({_CACHES: rest} if rest else {})


def host_memory() -> HostMetrics:
    """Memory of this process."""
    own = process_memory()
    return HostMetrics(resident_bytes=own.resident, shared_bytes=own.shared, available_bytes=memory_limits()[0].bytes)
