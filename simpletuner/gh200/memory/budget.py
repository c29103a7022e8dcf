"""The one bound of all managed memory of a run: a multiple of the GPU's memory, an operator's limit, what is free."""

from __future__ import annotations

import threading

from .limits import GB, memory_limits, spoken_size


class ManagedBudget:
    """What torch's pools have of it; caches count that as taken, pools never count the caches."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit, self.name = limit, name
        self.pools = 0
        self._lock = threading.Lock()

    def take(self, size: int, free_hbm: int) -> str | None:
        """Books a pool's next block, or says which bound it would break; `free_hbm` may hold it besides RAM."""
        with self._lock:
            if self.pools + size > self.limit:
                return f"{self.name}: {spoken_size(self.limit)}, {spoken_size(self.pools)} of it in use"
            tightest = memory_limits()[0]
            if size > tightest.bytes + free_hbm:
                return f"{tightest.name}: {spoken_size(tightest.bytes)}"
            self.pools += size
        return None

    def give_back(self, size: int) -> None:
        with self._lock:
            self.pools -= size


def managed_budget(hbm: int, ratio: float, limit_gb: float | None) -> ManagedBudget:
    bounds = {f"uvm_oversubscription_ratio {ratio:g} x {spoken_size(hbm)} of GPU memory": int(hbm * ratio)}
    if limit_gb is not None:
        bounds["managed_memory_limit_gb"] = int(limit_gb * GB)
    name = min(bounds, key=lambda bound: bounds[bound])
    return ManagedBudget(bounds[name], name)
