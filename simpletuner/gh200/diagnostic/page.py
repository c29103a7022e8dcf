"""The page for people: facts, checks, a summary line; colour and a table on a terminal, plain text when piped."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from .checks.table import Finding
from .facts import Facts
from .gpu import Gpu
from .host import Host
from .software import Software
from .status import FAIL, PASS, SKIP, STATUSES, WARN, gb
from .torch_build import Torch

# Of checks, and of the claims of an acceptance run.
COLOURS = {PASS: "32", WARN: "33", FAIL: "31", SKIP: "2"}
COLOURS |= {"shown": "32", "refuted": "31", "not tested": "2", "not applicable": "2"}
PLAIN_WIDTH = 120
NARROWEST = 60
LABEL = 16
SHOWN = 80


def _host_rows(host: Host) -> Iterator[tuple[str, str]]:
    yield "machine", f"{host.architecture}, kernel {host.kernel}, {host.cpus} CPUs, {host.page_bytes // 1024} KB pages"
    shm = f"/dev/shm {gb(host.shm_free_bytes)} of {gb(host.shm_total_bytes)} free"
    available = f"{gb(host.cpu_available_bytes)} available; a run may take {gb(host.room_bytes)}"
    yield "memory", f"{gb(host.cpu_memory_bytes)}, {available}; {shm}"
    for group in host.groups:
        yield "cgroup", f"{group.name}: {gb(group.used_bytes)} used of {gb(group.limit_bytes)}"
    nodes = [f"{node.number} ({node.cpus or 'no'} CPUs, {gb(node.total_bytes)})" for node in host.nodes]
    yield "NUMA nodes", ", ".join(nodes) or "the kernel does not say"
    huge, balancing = host.transparent_hugepages or "unknown", host.numa_balancing or "unknown"
    cleared = host.init_on_alloc or "not set"
    yield "kernel settings", f"THP {huge}, numa_balancing {balancing}, init_on_alloc {cleared}"


def _gpu_rows(facts: Facts) -> Iterator[tuple[str, str]]:
    gpus = facts.gpus
    versions = f"{gpus.driver_version or 'unknown'}, CUDA {gpus.cuda_version or 'unknown'}"
    yield (
        "GPU driver",
        f"{versions}; {gpus.family}, memory mode {facts.memory_mode}" if gpus.devices else "no GPU was found",
    )
    for gpu in gpus.devices:
        yield f"GPU {gpu.index}", _gpu(gpu)
    if gpus.kernel_driver:
        yield "kernel driver", gpus.kernel_driver
    for source, problem in gpus.problems.items():
        yield f"no {source}", problem


def _software_rows(software: Software) -> Iterator[tuple[str, str]]:
    yield "Python", f"{'.'.join(map(str, software.python))} ({software.executable})"
    yield "torch", _torch(software.torch)
    yield "beyond HBM", software.beyond_hbm.text
    here = [f"{name} {version}" for name, version in software.packages.items() if version and name != "torch"]
    yield "packages", ", ".join(here) or "none of the fork's"
    release = software.upstream_release or "(no fork built)"
    yield "fork", f"revision {software.fork_revision or 'unknown'}, upstream SimpleTuner {release}"
    for name, value in software.environment.items():
        yield "environment", f"{name}={value}"


def _memory(gpu: Gpu) -> str:
    if gpu.platform.one_pool:
        return f"{gb(gpu.memory_bytes)} shared with the CPU"
    return f"HBM {gb(gpu.memory_used_bytes)} used of {gb(gpu.memory_bytes)}"


def _gpu(gpu: Gpu) -> str:
    capability = ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else "unknown"
    parts = [gpu.name, f"capability {capability}", _memory(gpu)]
    parts += [f"addressing {gpu.addressing_mode}"] if gpu.addressing_mode else []
    parts += [f"NUMA node {gpu.numa_node}"] if gpu.numa_node is not None else []
    parts += [f"CPU node {gpu.attributes['host_numa_id']}"] if "host_numa_id" in gpu.attributes else []
    parts += [f"C2C {gpu.c2c_links_active}/{gpu.c2c_links}"] if gpu.c2c_links is not None else []
    return ", ".join(parts)


def _torch(torch: Torch | None) -> str:
    if torch is None:
        return "not installed in this interpreter"
    if torch.error:
        return f"cannot be imported: {torch.error}"
    return f"{torch.version}, CUDA {torch.cuda or 'none'}, sees {torch.device_count} GPUs"


class Page:
    """Titles, and rows of a label and wrapped text; a label is coloured by the status it begins with."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        terminal = stream.isatty()
        self._colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._width = max(NARROWEST, shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns) if terminal else PLAIN_WIDTH

    def title(self, text: str, space: str = "\n") -> None:
        """Print a heading."""
        print(space + self._painted(text, "1"), file=self._stream)

    def row(self, label: str, text: str, status: str = "") -> None:
        """Print a label and its wrapped text."""
        lines = textwrap.wrap(text, max(20, self._width - len(label)), break_on_hyphens=False) or [""]
        shown = label.replace(status, self._painted(status, COLOURS[status]), 1) if status else label
        print(shown + lines[0], file=self._stream)
        for line in lines[1:]:
            print(" " * len(label) + line, file=self._stream)

    def end(self) -> None:
        """Print an empty line."""
        print(file=self._stream)

    def _painted(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text


def show_facts(page: Page, facts: Facts) -> None:
    """Print all facts."""
    page.title("Facts", space="")
    for label, text in (*_host_rows(facts.host), *_gpu_rows(facts), *_software_rows(facts.software)):
        page.row(f"  {label:<{LABEL}}", text)


def show_findings(page: Page, findings: tuple[Finding, ...]) -> None:
    """Print all checks and their fixes."""
    page.title("Checks")
    widest = max(len(finding.id) for finding in findings)
    for finding in findings:
        label = f"  {finding.status:<4}  {finding.id:<{widest}}  "
        page.row(label, finding.message, finding.status)
        if finding.fix:
            page.row(" " * len(label), f"fix: {finding.fix}")
    page.end()


def summary(findings: tuple[Finding, ...]) -> str:
    """The last line: counts and the first failure."""
    counts = Counter(finding.status for finding in findings)
    failed = [finding for finding in findings if finding.status == FAIL]
    shown = ", ".join(f"{counts[status]} {status}" for status in STATUSES)
    first = f"; first failure: {failed[0].id}: {textwrap.shorten(failed[0].message, SHOWN)}" if failed else ""
    return f"GH200 diagnostic: {shown}{first}"


class Progress:
    """One line per kind of work, on standard error."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def __call__(self, work: str) -> None:
        """Print the name of the work that begins."""
        if not self._quiet:
            print(f"  {work} ...", file=sys.stderr, flush=True)
