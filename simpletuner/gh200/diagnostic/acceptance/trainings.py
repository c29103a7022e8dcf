"""What a training of an acceptance run is asked for and what it left; who runs it is handed in from outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Order:
    """One short training: `everything` of the fork on, or managed memory, or neither; `leave_bytes` of HBM are left
    free by plain device memory that is taken first; `state_bytes` is what its weights, gradients and Adam must exceed.
    """

    name: str
    everything: bool = False
    managed: bool = False
    leave_bytes: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True)
class Trained:
    """How it went. `losses` are per micro-batch and exact, `updates` and `weights` digests of what was trained;
    `torch_bytes` is the peak of torch's own allocations, `driver_bytes` what else the process came to hold of HBM.
    """

    name: str
    code: int
    seconds: float
    losses: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    weights: dict[str, str] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    torch_bytes: int = 0
    driver_bytes: int = 0
    left_bytes: int | None = None
    out_of_memory: bool = False
    complaint: str = ""

    @property
    def bits(self) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, str]]:
        """What must be equal in two bit-identical trainings."""
        return self.losses, self.updates, self.weights


class Trainer(Protocol):
    """Raises TimeoutError where a training does not end within its limit; leaves nothing behind once it is closed."""

    def missing(self) -> str:
        """Why nothing can be trained here; empty when it can."""

    def train(self, order: Order, limit: float) -> Trained:
        """Runs one training within `limit` seconds."""

    def close(self) -> None:
        """Removes what the trainings wrote."""
