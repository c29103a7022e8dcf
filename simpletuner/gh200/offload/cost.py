"""What placing memory beyond HBM costs per optimizer step: bytes over the link by cause, and the seconds they take."""

from __future__ import annotations

from dataclasses import dataclass

# Published for GH200 (arXiv 2407.07850), bytes per second.
TO_DEVICE, TO_HOST = 375e9, 297e9
# AdamW's `foreach` reads its state 2.5 times and writes it 1.5 times.
FOREACH_READS, FOREACH_WRITES = 2.5, 1.5


@dataclass(frozen=True)
class Link:
    """Bytes per second between CPU memory and the GPU; `source` says who measured them."""

    to_device: float = TO_DEVICE
    to_host: float = TO_HOST
    source: str = "published for GH200"


@dataclass(frozen=True)
class Traffic:
    """Bytes per optimizer step. Copies of both directions overlap; kernels wait for remote accesses and migrations."""

    copied_in: float = 0
    copied_out: float = 0
    remote_in: float = 0
    remote_out: float = 0
    migrated: float = 0  # in, and as many out

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def _values(self) -> tuple[float, ...]:
        return self.copied_in, self.copied_out, self.remote_in, self.remote_out, self.migrated

    @property
    def bytes(self) -> float:
        """Both directions together."""
        return sum(self._values()) + self.migrated

    def seconds(self, link: Link) -> float:
        """At the link's speed; a migration costs more, by what the driver takes to handle its faults."""
        copies = max(self.copied_in / link.to_device, self.copied_out / link.to_host)
        waits = (self.remote_in + self.migrated) / link.to_device + (self.remote_out + self.migrated) / link.to_host
        return copies + waits


def streamed(size: float) -> Traffic:
    """Copied to the GPU once and back once."""
    return Traffic(copied_in=size, copied_out=size)


def remote_state(size: float) -> Traffic:
    """Optimizer state that kernels read and write where it is, as AdamW's `foreach` does."""
    return Traffic(remote_in=FOREACH_READS * size, remote_out=FOREACH_WRITES * size)


def offloaded_gradients(size: float, window: int, clipped: bool) -> Traffic:
    """Each micro-batch of an accumulation window copies its gradients out or adds to them; clipping reads them twice."""
    later, clips = window - 1, int(clipped)
    return Traffic(
        copied_in=size,
        copied_out=size,
        remote_in=(later + 2 * clips) * size,
        remote_out=(later + clips) * size,
    )
