"""The GH200 settings: one pydantic model per config block, and the frozen object the rest of the fork reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .profile import CHOSEN

CacheType = Literal["disk", "unified_memory"]
AccessPattern = Literal["gpu_first", "cpu_first", "balanced"]
PlacementName = Literal["auto", "managed", "pinned", "hbm"]
CodecName = Literal["lz4", "zlib", "snappy", "zstd"]
MOST_WORKERS = 72


def _as_upstream_reads(value: object) -> int:
    """Every config becomes a command line, so upstream takes `2` and `"2"`, but neither `2.0` nor `true`."""
    return int(str(value))


def _no_bool(value: object) -> object:
    # pydantic would read true as the number 1.
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


OneOrMore = Annotated[int, Field(ge=1), BeforeValidator(_no_bool)]
ZeroOrMore = Annotated[int, Field(ge=0), BeforeValidator(_no_bool)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_no_bool)]
# Counted in bytes later: a number too large for that is a mistake.
Gigabytes = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False), BeforeValidator(_no_bool)]
UpstreamCount = Annotated[int, Field(ge=1), BeforeValidator(_as_upstream_reads)]
NotEmpty = Annotated[str, Field(min_length=1)]


class ConfigBlock(BaseModel):
    """A config block: unknown keys are errors, null is the same as an absent key."""

    # So many keys come first as the basic ones; all others are advanced.
    basic: ClassVar[int]
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class CacheConfig(ConfigBlock):
    """Where VAE latents and text embeddings are kept between steps."""

    basic = 4
    vae_cache_type: CacheType = Field(
        "disk", description="Where VAE latents are read from: upstream's files, or tensors cached in unified memory."
    )
    text_cache_type: CacheType = Field("disk", description="The same choice for text embeddings.")
    cache_dir: NotEmpty | None = Field(
        None,
        description="Parent directory of the caches whose own directory (`cache_dir_vae`, `cache_dir_text`) is not set. "
        "Those win where both are given.",
    )
    persistent_cache: bool = Field(
        True,
        description="Write new entries through to upstream's cache files. False keeps them in a directory of this run, "
        "removed at its end.",
    )
    memory_limit_gb: Gigabytes | None = Field(
        None,
        description="Most memory the unified-memory caches may take together, in GB (10^9 bytes). Absent: bounded by"
        " the oversubscription ratio and free RAM.",
    )
    placement: PlacementName = Field(
        "auto",
        description="Where cached latents live: views of managed memory, plain RAM with one pinned copy a batch, or copies "
        "in the GPU's own memory as far as training leaves them free. auto: the fastest by a measurement of two seconds "
        "at each start. Batches are bit-identical each way.",
    )
    prefetch: bool = Field(
        True,
        description="Move the next batch's entries towards the GPU while the current one trains. Steps back where "
        "upstream's own device prefetch is on.",
    )
    preload: bool = Field(
        True,
        description="Read the entries of unified-memory caches ahead, from the start of the run, in threads no step waits "
        "for.",
    )
    adaptive_prefetch: bool = Field(
        False,
        description="Let `prefetch` pause for a while when most batches were not on the GPU in time, and try again.",
    )


class Optimizations(ConfigBlock):
    """Memory hints and the gradient accumulation ramp."""

    basic = 9
    profile: Literal["off", "auto"] = Field(
        "off",
        description="auto chooses the keys that are not given: both caches in unified memory, datasets in RAM where they fit, "
        "telemetry, preflight, `checkpoint_on_signal`, and `managed_memory` where the estimate exceeds the GPU's memory; never "
        "a ramp. The log shows each choice with its reason at start.",
    )
    enable_uvm_hints: bool = Field(
        False,
        description="Switches the memory hints. Given here, it decides against the environment and the cache types; "
        "with false the caches are upstream's own again. "
        'Absent: on when a cache type is "unified_memory", otherwise what `SIMPLETUNER_GH200_ENABLE_UVM_HINTS` says.',
    )
    enable_batch_size_rampup: bool = Field(
        False,
        description="Ramp the effective batch size by changing the accumulation steps. Absent: on when one of the "
        "two effective sizes or a table is given.",
    )
    initial_effective_batch_size: OneOrMore | None = Field(
        None,
        description="Effective batch size at the first update. Raised to one micro-batch over all processes if it is"
        " smaller than that. Absent: one micro-batch.",
    )
    target_effective_batch_size: OneOrMore | None = Field(
        None,
        description="Effective batch size after the ramp. It may be smaller than the initial one (a downward ramp). "
        "Absent: what `train_batch_size`, the number of processes and `gradient_accumulation_steps` give.",
    )
    batch_rampup_steps: ZeroOrMore = Field(
        400,
        description="Length of the ramp in its unit; 0 starts at the target. A measured ramp grows at most once in it.",
    )
    managed_memory: Literal["off", "auto", "state", "all"] = Field(
        "off",
        description="Train beyond the GPU's own memory on stock PyTorch: auto puts there what a plan finds too large for the"
        " GPU and streams the optimizer's state, state the targets below, all every allocation of the process."
        " Bit-identical in each case.",
    )
    checkpoint_on_signal: bool = Field(
        False,
        description="SIGTERM or SIGUSR1 to any rank: finish the window, write a checkpoint, leave with exit code 85 and "
        "`gh200_left.json` in the output directory. A second signal ends at once. False: signals are upstream's.",
    )
    telemetry_interval: Seconds = Field(
        10,
        description="Seconds between two records of memory, caches, hints and time in "
        "`OUTPUT_DIR/gh200_telemetry.rankN.jsonl`, and in the trackers as `gh200/...`; 0 writes and reads nothing. Acts when "
        "the config has a key of the fork's; the environment alone does not count.",
    )
    uvm_access_pattern: AccessPattern = Field(
        "gpu_first", description="Where unified memory prefers to live. Absent: `GH200_UVM_ACCESS_PATTERN`."
    )
    uvm_oversubscription_ratio: AboveZero = Field(
        5.0,
        description="How far managed memory may grow, as a multiple of the GPU's own memory. Absent: "
        "`GH200_UVM_OVERSUBSCRIPTION_RATIO`.",
    )
    managed_memory_targets: list[Literal["optimizer", "ema", "gradients", "weights"]] = Field(
        ["optimizer", "ema", "gradients", "weights"],
        min_length=1,
        description="What managed_memory state covers. Optimizer state and EMA prefer the CPU's memory and are mapped for"
        " the GPU, weights and gradients prefer the GPU.",
    )
    managed_memory_limit_gb: Gigabytes | None = Field(
        None,
        description="Most managed memory torch may take, in GB (10^9 bytes); beyond it torch is out of memory. Absent:"
        " `uvm_oversubscription_ratio` times the GPU's memory. Free memory and cgroups bound it too.",
    )
    batch_rampup_unit: Literal["micro_batches", "samples", "steps"] = Field(
        "micro_batches",
        description="What the ramp is counted in. Counted in samples it also goes on when a run is resumed with another"
        " number of processes.",
    )
    batch_rampup_table: list[tuple[ZeroOrMore, OneOrMore]] | None = Field(
        None,
        min_length=2,
        description="Rows of [start, effective batch size], the first at 0, starts counted in the unit; instead of "
        "sizes, length and shape.",
    )
    batch_rampup_shape: Literal["quadratic", "linear", "staircase", "measured"] = Field(
        "quadratic",
        description="How the effective batch size grows over the ramp; measured: from two micro-batches on, when the "
        "gradient noise scale says that it pays.",
    )
    batch_rampup_lr_scaling: Literal["target", "initial", "follow", "linear", "sqrt"] = Field(
        "target",
        description="With upstream's `lr_scale`, the batch size the learning rate is scaled by: the target, the "
        "initial size, or each window's own; no effect without it. `linear` and `sqrt` need no `lr_scale`: each window's"
        " rate is multiplied by window / target, or its root.",
    )
    batch_rampup_beta2: Literal["fixed", "samples"] = Field(
        "fixed",
        description="With `samples` the optimizer's beta2 forgets by samples and not by steps: each window's is beta2 ** "
        "(window / first window).",
    )
    measure_gradient_noise_scale: bool = Field(
        False,
        description="Measure the gradient noise scale of every window with two micro-batches or ranks, for trackers and "
        "run log. Absent: on when the ramp is measured.",
    )
    preflight: bool = Field(
        True,
        description="Check the whole config (keys, model, buckets, memory, disk) before anything is loaded, and stop a "
        "run that cannot work. False starts without it.",
    )
    accept_changed_ramp: bool = Field(
        False,
        description="Resume a run whose ramp settings differ from the ones its checkpoint was made with. False "
        "rejects such a resume.",
    )
    fast_start: bool | None = Field(
        None,
        description="The scan of a dataset: image headers are read by worker processes and no file is lost. False is "
        "upstream's own scan. Acts when the config has a key of the fork's; the environment alone does not count.",
    )


class InMemory(ConfigBlock):
    """How one dataset of type `in_memory` is staged in RAM."""

    basic = 3
    compression: CodecName | None = Field(
        None, description="Codec for files that are not compressed already. Absent: files are staged as they are."
    )
    num_workers: OneOrMore | None = Field(
        None, description="Threads that read files while staging. Absent: min(72, CPU count)."
    )
    memory_limit_gb: Gigabytes | None = Field(
        None,
        description="Most RAM this dataset may take, in GB (10^9 bytes). Absent: free memory and the cgroup limit "
        "decide.",
    )
    on_limit: Literal["error", "partial", "disk"] = Field(
        "error",
        description="When the dataset is larger than the limit: stop, stage what fits and read the rest from disk, or read "
        "all from disk; disk also leaves half of the free memory to others.",
    )
    release_after_cache: bool = Field(
        False, description="Free the RAM once the VAE cache is built and nothing reads the source files any more."
    )

    @property
    def workers(self) -> int:
        """Threads that read files while staging."""
        return self.num_workers or min(MOST_WORKERS, len(os.sched_getaffinity(0)))


class BatchSizes(ConfigBlock):
    """Upstream's own keys that decide what a micro-batch is; the defaults are upstream's."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    train_batch_size: UpstreamCount = 4
    gradient_accumulation_steps: UpstreamCount = 1


class DatasetEntry(BaseModel):
    """One dataset, as in upstream's data backend file; keys not named here are upstream's and pass unchanged."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: NotEmpty = Field(description="Name of the dataset, unique in the list.")
    type: str = Field(
        "local", description='Upstream\'s backend types, or "in_memory" for a local directory staged in RAM.'
    )
    in_memory: InMemory | None = Field(None, description='Options of a dataset of type "in_memory".')


class TrainingConfig(BaseModel):
    """The keys the fork adds to a SimpleTuner training config; all other keys are upstream's."""

    model_config = ConfigDict(extra="allow")

    cache_config: CacheConfig = Field(CacheConfig(), description="VAE and text embedding caches.")
    gh200_optimizations: Optimizations | Literal["auto"] = Field(
        Optimizations(),
        description='Memory hints and the gradient accumulation ramp; "auto" is a block with `profile` auto.',
    )
    datasets: list[DatasetEntry] | None = Field(
        None, min_length=1, description="Datasets inline, instead of the file named by `data_backend_config`."
    )
    use_gh200_trainer: bool | None = Field(
        None,
        deprecated=True,
        description="Older spelling of `gh200_optimizations.enable_uvm_hints`; false also turns the ramp off.",
    )
    initial_effective_batch_size: OneOrMore | None = Field(
        None, deprecated=True, description="Older spelling of `gh200_optimizations.initial_effective_batch_size`."
    )
    data_backend: dict[str, Any] | None = Field(
        None,
        deprecated=True,
        description='Older spelling of one entry of `datasets`; its type must be "in_memory", its id is derived when'
        " absent.",
    )


ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "enable_uvm_hints",
        "GH200_UVM_OVERSUBSCRIPTION_RATIO": "uvm_oversubscription_ratio",
        "GH200_UVM_ACCESS_PATTERN": "uvm_access_pattern",
    }
)


@dataclass(frozen=True)
class Settings:
    """What was asked for, complete and checked; `origins` says for each key path where its value came from."""

    caches: CacheConfig
    optimizations: Optimizations
    in_memory: Mapping[str, InMemory]
    inline_datasets: str | None
    origins: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def asked(self) -> bool:
        """Whether any GH200 setting was given at all."""
        return bool(self.in_memory or self.inline_datasets or self.notes) or any(
            origin != "default" for origin in self.origins.values()
        )

    @property
    def in_config(self) -> bool:
        """Whether a setting was given in the config; what the environment says is not meant for one run."""
        return bool(self.in_memory or self.inline_datasets) or any(
            origin != "default" and not origin.startswith("environment ") for origin in self.origins.values()
        )

    def given(self) -> list[str]:
        """Every setting that is no default, with its origin; basic keys first."""
        rows: list[tuple[bool, str]] = []
        for name, block in (("gh200_optimizations", self.optimizations), ("cache_config", self.caches)):
            for number, key in enumerate(type(block).model_fields):
                if (origin := self.origins[f"{name}.{key}"]) != "default":
                    rows.append((number >= block.basic, f"{name}.{key} = {getattr(block, key)!r}  ({origin})"))
        return [text for _, text in sorted(rows, key=lambda row: row[0])]

    def is_chosen(self, key: str) -> bool:
        """Whether the profile chose the value of a key of `gh200_optimizations`."""
        return self.origins.get(f"gh200_optimizations.{key}", "").startswith(CHOSEN)

    @property
    def fast_start(self) -> bool:
        """Whether the fork's own scan of datasets is used."""
        return self.in_config and self.optimizations.fast_start is not False

    @property
    def telemetry_interval(self) -> float:
        """Seconds; 0 where nothing is to be recorded."""
        return self.optimizations.telemetry_interval if self.in_config else 0.0

    def uses_unified_memory(self, cache: Literal["vae", "text"]) -> bool:
        """Whether a cache keeps its tensors in unified memory."""
        return self.optimizations.enable_uvm_hints and getattr(self.caches, f"{cache}_cache_type") == "unified_memory"
