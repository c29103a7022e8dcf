"""One record: a line of OUTPUT_DIR/gh200_telemetry.rankN.jsonl. Absent means not measured here, never zero."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = 1
Kind = Literal["start", "interval", "first", "last", "end"]


class MetricsPart(BaseModel):
    """Frozen; what a newer release adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class WindowMetrics(MetricsPart):
    """The accumulation window."""

    accumulation_steps: int = Field(description="micro-batches of one rank in an optimizer step")
    effective_batch_size: int | None = Field(
        description="samples in an optimizer step, over all ranks; absent where datasets have different train_batch_size"
    )
    schedule: list[tuple[int, int]] | None = Field(
        None, description="the ramp as it is now: [optimizer step, effective batch size from it on]"
    )


class NoiseMetrics(MetricsPart):
    """The gradient noise scale, where it is measured."""

    scale: float = Field(description="samples")
    low: float | None = Field(None, description="samples; lower end of its interval")
    high: float | None = Field(None, description="samples; upper end")


class Seconds(MetricsPart):
    """Where the time of the training loop went, since training began; by the CPU's clock, nobody waits for the GPU."""

    micro_batches: int = Field(0, description="counted since training began")
    data: float = Field(0.0, description="seconds until the next batch was there and prepared")
    compute: float = Field(
        0.0, description="seconds from there to the end of its micro-batch, an evaluation's loss included"
    )
    other: float = Field(0.0, description="seconds of the rest: validation, checkpoints between epochs, other ranks")


class HbmMetrics(MetricsPart):
    """The memory of this rank's GPU."""

    device: int = Field(description="as this process numbers it")
    name: str | None = Field(None, description="of the GPU")
    used_bytes: int | None = Field(None, description="bytes of all processes, by CUDA")
    free_bytes: int | None = Field(None, description="bytes, by the same")
    total_bytes: int | None = Field(None, description="bytes, by the same")
    cuda_free_bytes: int | None = Field(None, description="the same as `free_bytes`; older releases had that from NVML")
    allocated_bytes: int | None = Field(
        None,
        description="bytes of living tensors, by torch: this process, after an optimizer step since the record before",
    )
    reserved_bytes: int | None = Field(None, description="bytes torch has taken from the GPU")
    peak_allocated_bytes: int | None = Field(None, description="bytes, the most there were")


class ManagedMetrics(MetricsPart):
    """Managed memory of caches and torch's pools, and its place as far as the driver reports it."""

    bytes: int = Field(0, description="bytes of all managed blocks of this process")
    kinds: dict[str, int] = Field({}, description="bytes by what they are for")
    prefers: dict[str, int] = Field({}, description="bytes by the side their advice names: gpu, cpu, neither")
    prefetched: dict[str, int] = Field(
        {}, description="bytes of whole blocks by where they were last sent: gpu, cpu, neither (in parts, or never)"
    )
    limit_bytes: int | None = Field(None, description="bytes caches and pools may have together")


class HostMetrics(MetricsPart):
    """This process in the CPU's memory."""

    resident_bytes: int = Field(description="bytes in RAM, all kinds")
    shared_bytes: int = Field(description="bytes of them in memory shared with other processes (datasets in RAM)")
    available_bytes: int | None = Field(None, description="bytes the tightest limit leaves, headroom taken off")


class DatasetMetrics(MetricsPart):
    """A dataset in RAM."""

    bytes: int = Field(description="bytes in RAM, one copy per machine")
    files: int = Field(description="files in RAM")


class PreloadMetrics(MetricsPart):
    """Cache entries read ahead."""

    entries: int = Field(description="entries read so far")
    offered: int = Field(description="entries found on disk so far")
    bytes: int = Field(description="bytes read so far")
    finished: bool = Field(description="whether nothing is left to read")


class CacheMetrics(MetricsPart):
    """The unified-memory caches of this rank."""

    entries: int = Field(description="entries in memory")
    hits: int = Field(description="reads served from memory")
    misses: int = Field(description="reads that went to disk")
    misses_in_training: int = Field(description="those of them a step waited for")
    waited_seconds: float = Field(description="seconds those reads took, of all threads together")
    filled_bytes: int = Field(description="bytes of entries, padding included")
    arena_bytes: int = Field(description="bytes of the blocks they lie in")
    limit_bytes: int | None = Field(None, description="bytes they may have")
    managed: bool = Field(description="whether they are in managed memory; else plain RAM")
    preload: PreloadMetrics | None = None


class CopyMetrics(MetricsPart):
    """Over NVLink-C2C: what was moved to the GPU ahead of the kernels that read it."""

    count: int = Field(description="calls")
    bytes: int = Field(description="bytes, whole pages")


class Cost(MetricsPart):
    """What telemetry itself took."""

    cpu_seconds: float = Field(description="CPU seconds of its thread")
    wall_seconds: float = Field(description="seconds since it began")
    percent: float = Field(description="the first of the second")
    lost: int = Field(0, description="records that could not be written")


class Record(MetricsPart):
    """Everything one rank knows at one moment; counters run from the start of the run."""

    format: int = Field(FORMAT, description="of the record; a larger one has keys this release does not know")
    kind: Kind = Field(description="start, interval, first and last optimizer step, end of the run")
    run: str = Field(description="one run of one process; a resumed run has another one")
    rank: int = Field(description="of this process")
    ranks: int = Field(description="of the run")
    host: str = Field(description="name of the machine")
    pid: int = Field(description="of this process")
    began: float = Field(description="seconds since 1970: when the run began")
    time: float = Field(description="seconds since 1970: when this was measured")
    interval: float = Field(description="seconds to the next record, at least")
    step: int = Field(description="optimizer steps done, those before a resume too")
    total_steps: int | None = Field(None, description="optimizer steps of the whole run")
    epoch: int | None = Field(None, description="as upstream counts it")
    loss: float | None = Field(None, description="of the last optimizer step")
    seconds: Seconds = Seconds()
    window: WindowMetrics | None = None
    noise: NoiseMetrics | None = None
    hbm: HbmMetrics | None = None
    managed: ManagedMetrics | None = None
    host_memory: HostMetrics | None = None
    datasets: dict[str, DatasetMetrics] = Field({}, description="datasets in RAM, by id")
    caches: CacheMetrics | None = None
    hints: dict[str, dict[str, int]] = Field({}, description="memory hints: how often each ended how")
    copies: CopyMetrics | None = None
    more: dict[str, Any] = Field({}, description="what features measured besides, by title")
    cost: Cost | None = None
    problems: dict[str, str] = Field({}, description="what could not be read or written, and why")

    def line(self) -> bytes:
        """One line of the file."""
        return self.model_dump_json(exclude_none=True).encode() + b"\n"
