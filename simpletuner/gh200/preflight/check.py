"""The whole preflight of one config: every check, none of which stops the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..memory.limits import memory_limits
from ..ramp.schedule import GH200GradientRamp
from ..settings.problems import Problem, SettingsError
from ..settings.sources import read_batch_sizes
from .config import Config, dataset_entries, gb, read_config, staging_problems
from .judging import judge_config, judge_ramp
from .keys import combination_problems, dataset_key_problems, key_problems
from .model import find, model_of, source_problems, vae_of, weights_of
from .report import Report, many, some
from .samples import Samples, samples_of
from .size import Memory, checkpoints_of, free_disk, gpu_memory, length_of, memory_of, shortage_of
from .upstream import Upstream, upstream_record, with_examples
from .windows import Window, largest_window, pruned, window_problems


def preflight(
    path: Path,
    config: Mapping[str, Any],
    processes: int = 1,
    environ: Mapping[str, str] = os.environ,
    *,
    keys: bool = True,
    read: bool = True,
    gpu: Callable[[], int] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """`config` is what a run gets (`settings.blocks.loaded_config`); without `keys` upstream has parsed it already."""
    report, config = Report(str(path)), with_examples(config)
    upstream, why = upstream_record(read and keys, say)
    if upstream is None and keys:
        report.not_checked.append(f"upstream's keys: {why}")
    elif upstream is not None and keys:
        problems, notes = key_problems(config, upstream)
        report.problem([*problems, *combination_problems(config, upstream)])
        report.notes += notes
    facts = read_config(path, config, processes, environ)
    report.problem([*facts.problems, *facts.missing, *([facts.ramp_problem] if facts.ramp_problem else [])])
    report.notes += [*facts.notes, *facts.ramp_notes]
    entries = dataset_entries(config)
    if upstream is not None:
        report.problem(dataset_key_problems(entries, upstream))
    _sources(report, config, upstream, environ)
    _staging(report, facts)
    settings, _ = judge_config(config, environ)
    ramp, _ = judge_ramp(settings, config, processes)
    try:
        sizes = read_batch_sizes(config)
    except SettingsError as error:
        named = {text.partition(":")[0] for text in report.problems}
        report.problem(problem for problem in error.problems if problem.path not in named)
        return report
    window = largest_window(ramp, (sizes.train_batch_size, sizes.gradient_accumulation_steps), processes)
    found = [item for index, entry in enumerate(entries) if (item := samples_of(entry, index, config)) is not None]
    _buckets(report, found, window, config)
    if settings is None or not settings.fast_start:
        report.warnings += [_skipped(item) for item in found if item.nested]
    _size(report, config, ramp, window, found, upstream)
    _fits(report, config, gpu() if gpu else gpu_memory(environ))
    _told(report, facts, config, upstream, environ)
    return report


def _sources(report: Report, config: Mapping[str, Any], upstream: Upstream | None, environ: Mapping[str, str]) -> None:
    for kind, text in source_problems(config, upstream, environ):
        if kind == "problem":
            report.problem([text])
        else:
            (report.warnings if kind == "warning" else report.notes).append(str(text))


def _staging(report: Report, facts: Config) -> None:
    staged = [item for item in facts.datasets if item.in_memory]
    room = min(limit.bytes for limit in memory_limits())
    wrong, partial = staging_problems(staged, room)
    (report.warnings if partial else report.problems).extend(wrong)
    report.problem(item.codec_problem for item in facts.datasets if item.codec_problem)
    need = sum(item.estimated_bytes for item in staged)
    report.facts["ram"] = {"datasets": need, "room": room}


def _skipped(item: Samples) -> str:
    return (
        f'dataset "{item.id}": upstream will never encode {item.nested} pictures in folders below instance_data_dir, because that '
        "path is relative; write the whole path, or turn gh200_optimizations.fast_start on"
    )


def _buckets(report: Report, found: list[Samples], window: Window, config: Mapping[str, Any]) -> None:
    report.facts["datasets"] = [asdict(item) | {"per_epoch": item.per_epoch} for item in found]
    report.facts["largest_window"] = asdict(window)
    for item in found:
        if item.unchecked:
            report.not_checked.append(f'buckets of dataset "{item.id}": {item.unchecked}')
            continue
        report.problem(window_problems(item, window, config))
        if item.left_out:
            named = some(f"{name} {why}" for name, why in item.left_out.items())
            report.warnings.append(f'dataset "{item.id}": {len(item.left_out)} pictures cannot be used: {named}')
        if item.changed:
            report.warnings.append(
                f'dataset "{item.id}": {", ".join(item.changed)} differs from that of an earlier start, and upstream goes on '
                "with the earlier one; give the dataset another id and another cache_dir_vae"
            )
        if item.namesakes:
            report.warnings.append(
                f'dataset "{item.id}": upstream keeps one latent for pictures whose names differ in the suffix only, so '
                f"one stands for the others: {some(item.namesakes)}; rename them"
            )
        gone = pruned(item, window, config)
        if gone:
            report.warnings.append(
                f'dataset "{item.id}": upstream drops {sum(gone.values())} pictures in {len(gone)} buckets that do not '
                f"fill a batch of {item.batch_size or window.batch_size} ({some(gone)}); set disable_bucket_pruning, or repeats"
            )
        if not item.buckets:
            report.problem([f'dataset "{item.id}" has no picture that can be used'])
    if not found and not report.problems:
        report.not_checked.append("buckets: no dataset of pictures in a local folder")


def _size(
    report: Report, config: Mapping[str, Any], ramp: GH200GradientRamp | None, window: Window,
    found: list[Samples], upstream: Upstream | None,
) -> None:  # fmt: skip
    length = length_of(config, ramp, window, sum(item.per_epoch for item in found))
    report.facts["length"] = asdict(length)
    family = (upstream.families if upstream else {}).get(str(config.get("model_family", "")).lower(), {})
    weights = weights_of(Path(model_of(config, upstream) or "").expanduser(), str(family.get("subfolder") or "unet"))
    if weights is None:
        report.not_checked.append("memory of the model: its weights are not in a local folder")
        return
    memory, count = memory_of(weights, config), checkpoints_of(config, length.steps)
    free = free_disk(str(config.get("output_dir") or "."))
    report.facts["memory"] = asdict(memory)
    report.facts["checkpoints"] = {"count": count, "bytes": count * memory.checkpoint, "free": free}
    if free is not None and count * memory.checkpoint > free:
        report.problem(
            [
                f"output_dir: {count} checkpoints take about {gb(count * memory.checkpoint)}, the disk has {gb(free)} free; "
                "lower checkpoints_total_limit, or use another disk"
            ]
        )


def _fits(report: Report, config: Mapping[str, Any], gpu: int) -> None:
    report.facts["gpu_memory"] = gpu
    if "memory" not in report.facts:
        return
    kind, text = shortage_of(Memory(**report.facts["memory"]), config, gpu)
    if kind == "problem":
        report.problem([Problem("memory of the GPU", text)])
    elif kind:
        report.warnings.append(f"memory of the GPU: {text}")


def _told(
    report: Report, facts: Config, config: Mapping[str, Any], upstream: Upstream | None, environ: Mapping[str, str]
) -> None:
    """A few lines for people."""
    told: dict[str, str] = {}
    model, vae = model_of(config, upstream), vae_of(config, upstream)
    if model:
        told["model"] = find(model, environ).told
    if vae and vae != model:
        told["VAE"] = find(vae, environ).told
    for item in report.facts["datasets"]:
        pictures, buckets = many(sum(item["buckets"].values()), "picture"), many(len(item["buckets"]), "bucket")
        told[f"data {item['id']}"] = f"{pictures} in {buckets}, {many(item['per_epoch'], 'sample')} an epoch"
    if facts.ramp:
        told["ramp"] = facts.ramp
    length = report.facts["length"]
    if length["steps"]:
        epochs = f", {length['epochs']:.1f} epochs" if length["epochs"] else ""
        told["length"] = f"{length['steps']} steps, {length['samples']} samples{epochs}"
    if "memory" in report.facts:
        part, gpu = report.facts["memory"], report.facts["gpu_memory"]
        told["memory"] = (
            f"weights {gb(part['weights'])}, gradients {gb(part['gradients'])}, optimizer {gb(part['optimizer'])}, "
            f"activations not known; {f'the GPU has {gb(gpu)}' if gpu else 'no GPU here'}"
        )
    latents = sum(item.latent_bytes for item in facts.datasets)
    if latents:
        told["disk"] = f"latents about {gb(latents)}" + (
            f", {report.facts['checkpoints']['count']} checkpoints about {gb(report.facts['checkpoints']['bytes'])}"
            if "checkpoints" in report.facts
            else ""
        )
    report.facts["told"] = told


def stop_if_it_cannot_work(report: Report) -> None:
    if report.problems:
        raise report.error()
