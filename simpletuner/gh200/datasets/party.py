"""Who asks for an arena: the run a process belongs to, and what it wants."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..memory.numa import cpu_node

_FIRST_RANK_SECONDS = 15.0


@dataclass(frozen=True)
class Run:
    """What the ranks of one run have in common; a process without siblings is a run of its own."""

    identity: tuple[str, ...]
    is_first: bool = True
    alone: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Run:
        run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
        port = environment.get("MASTER_PORT", "")
        if (run_id == "none" and not port) or environment.get("LOCAL_WORLD_SIZE") == "1":
            return cls((str(os.getpid()), os.urandom(4).hex()), alone=True)
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        first = environment.get("LOCAL_RANK", "0") == "0"
        # Two runs with one exported port are two all the same: their ranks have different parents.
        parts = (run_id, environment.get("MASTER_ADDR", ""), port, restart, str(os.getppid()))
        return cls(parts, first)

    @property
    def leave_to_first(self) -> float:
        """How long to leave the staging to the first rank, the only one whose log upstream shows."""
        # The first rank may be bound to another node, and never come to the meeting point of this one.
        return 0.0 if self.is_first or cpu_node() is not None else _FIRST_RANK_SECONDS


@dataclass(frozen=True)
class Party:
    """Who asks: for messages, and to know whose failure is one's own."""

    dataset: str
    run: Run
    options: str = ""
    patience: float = 120.0
    kept_until: float | None = None
