"""The whole preflight of one config: every check, none of which stops the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..config.problems import SettingsError
from ..config.sources import read_batch_sizes
from ..memory.limits import memory_limits
from .config import Config, dataset_entries, gb, read_config, staging_problems
from .estimates import add_disk, add_length, add_memory
from .impossible import checkpoint_problems, range_problems
from .keys import combination_problems, dataset_key_problems, key_problems
from .memory_estimate import estimate_of, gpu_memory, length_of, with_offload
from .model import find, model_of, source_problems, vae_of
from .report import Report, many, some
from .samples import Samples, samples_of
from .settings_check import judge_config, judge_ramp
from .upstream_keys import Upstream, upstream_record, with_examples
from .window_check import WindowBound, largest_window, pruned, window_problems


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
    """`config` is what a run gets (`config.blocks.loaded_config`); without `keys` upstream has parsed it already."""
    report, config = Report(str(path)), with_examples(config)
    upstream, why = upstream_record(read and keys, say)
    if upstream is None and keys:
        report.add("not_checked", f"upstream's keys: {why}")
    elif upstream is not None and keys:
        problems, notes = key_problems(config, upstream)
        report.problem([*problems, *combination_problems(config, upstream)])
        report.notes += notes
    facts = read_config(path, config, processes, environ)
    report.problem([*facts.problems, *facts.missing, *([facts.ramp_problem] if facts.ramp_problem else [])])
    report.notes += [*facts.notes, *facts.ramp_notes]
    entries, _ = dataset_entries(config)
    if upstream is not None:
        report.problem(dataset_key_problems(entries, upstream))
    out_of_range = list(range_problems(config, entries))
    report.problem([*out_of_range, *checkpoint_problems(config)])
    _sources(report, config, upstream, environ)
    staged, available = _staging(report, facts)
    memory, memory_of_gpu = estimate_of(config, upstream, environ), gpu() if gpu else gpu_memory(environ)
    settings, _ = judge_config(config, environ)
    if settings is not None:
        settings = with_offload(settings, config, memory, memory_of_gpu)
        report.facts["settings"] = settings.given()
        report.show("settings", "\n".join(settings.given()))
    ramp, _ = judge_ramp(settings, config, processes)
    try:
        sizes = read_batch_sizes(config)
    except SettingsError as error:
        named = {text.partition(":")[0] for text in report.problems}
        report.problem(problem for problem in error.problems if problem.path not in named)
        return report
    if out_of_range:
        return report  # nothing can be derived from such numbers
    window = largest_window(ramp, (sizes.train_batch_size, sizes.gradient_accumulation_steps), processes)
    found = [item for index, entry in enumerate(entries) if (item := samples_of(entry, index, config)) is not None]
    _buckets(report, found, window, config)
    if facts.ramp:
        report.show("ramp", facts.ramp)
    length = length_of(config, ramp, window, sum(item.per_epoch for item in found))
    add_length(report, config, length, window, found)
    managed = settings.optimizations.managed_memory if settings else "off"
    add_memory(report, config, memory, memory_of_gpu, managed, available)
    latents = sum(item.latent_bytes for item in facts.datasets)
    report.show("RAM", f"datasets {gb(staged)}, latents about {gb(latents)} where cached; {gb(available)} can be used")
    add_disk(report, config, memory, latents, length.steps)
    return report


def _sources(report: Report, config: Mapping[str, Any], upstream: Upstream | None, environ: Mapping[str, str]) -> None:
    for kind, text in source_problems(config, upstream, environ):
        report.add(kind, text)
    model, vae = model_of(config, upstream), vae_of(config, upstream)
    if model:
        report.show("model", str(find(model, environ)))
    if vae and vae != model:
        report.show("VAE", str(find(vae, environ)))


def _staging(report: Report, facts: Config) -> tuple[int, int]:
    """Bytes that will be staged, and that can be used."""
    staged = [item for item in facts.datasets if item.in_memory]
    available = min(limit.bytes for limit in memory_limits())
    wrong, partial = staging_problems(staged, available)
    (report.warnings if partial else report.problems).extend(wrong)
    report.problem(item.codec_problem for item in facts.datasets if item.codec_problem)
    fitting = [item for item in staged if item.on_limit != "disk" or item.estimated_bytes <= available // 2]
    need = sum(item.estimated_bytes for item in fitting)
    report.facts["ram"] = {"datasets": need, "room": available}
    if staged:
        disk = [item.id for item in staged if item not in fitting]
        beside = f"; too large, from disk: {', '.join(disk)}" if disk else ""
        report.show("in RAM", f"{', '.join(item.id for item in fitting) or 'no dataset'}{beside}")
    return need, available


def _buckets(report: Report, found: list[Samples], window: WindowBound, config: Mapping[str, Any]) -> None:
    report.facts["datasets"] = [asdict(item) | {"per_epoch": item.per_epoch} for item in found]
    report.facts["largest_window"] = asdict(window)
    for item in found:
        images, buckets = many(sum(item.buckets.values()), "image"), many(len(item.buckets), "bucket")
        report.show(f"data {item.id}", f"{images} in {buckets}, {many(item.per_epoch, 'sample')} an epoch")
        if item.unchecked:
            report.not_checked.append(f'buckets of dataset "{item.id}": {item.unchecked}')
            continue
        report.problem(window_problems(item, window, config))
        if item.left_out:
            named = some(f"{name} {why}" for name, why in item.left_out.items())
            report.warnings.append(f'dataset "{item.id}": {len(item.left_out)} images cannot be used: {named}')
        if item.namesakes:
            report.warnings.append(
                f'dataset "{item.id}": upstream keeps one latent for images whose names differ in the suffix only, so '
                f"one stands for the others: {some(item.namesakes)}; rename them"
            )
        gone = pruned(item, window, config)
        if gone:
            report.warnings.append(
                f'dataset "{item.id}": upstream drops {sum(gone.values())} images in {len(gone)} buckets that do not '
                f"fill a batch of {item.batch_size or window.batch_size} ({some(gone)}); set disable_bucket_pruning, or repeats"
            )
        if not item.buckets:
            report.problem([f'dataset "{item.id}" has no image that can be used'])
    if not found and not report.problems:
        report.not_checked.append("buckets: no dataset of images in a local directory")
