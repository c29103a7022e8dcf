"""`python -m simpletuner.gh200.watch`: the page in a terminal, the answer for scripts, and what it says where nothing is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from terminal import in_terminal

from gh200_lab.place import ROOT
from simpletuner.gh200.telemetry.files import append, path_of
from simpletuner.gh200.telemetry.page import page
from simpletuner.gh200.telemetry.reader import read_directory
from simpletuner.gh200.telemetry.record import (
    CacheMetrics,
    CopyMetrics,
    Cost,
    DatasetMetrics,
    HbmMetrics,
    HostMetrics,
    ManagedMetrics,
    NoiseMetrics,
    PreloadMetrics,
    Record,
    Seconds,
    WindowMetrics,
)

GB = 10**9
WATCH = """
import sys
from gh200_lab.checkout import see_this_checkout
see_this_checkout()
sys.argv[1:] = {arguments!r}
from simpletuner.gh200.cli.watch import main
code = main()
assert "torch" not in sys.modules
sys.exit(code)
"""


def record(rank: int = 0, ranks: int = 2, **changes: Any) -> Record:
    now = time.time()
    facts: dict[str, Any] = {
        "kind": "interval", "run": f"run{rank}", "rank": rank, "ranks": ranks, "host": "here", "pid": 7, "began": now - 700,
        "time": now, "interval": 10.0, "step": 12, "total_steps": 24, "epoch": 1, "loss": 0.25,
        "seconds": Seconds(micro_batches=20, data=2.0, compute=38.0, other=1.0),
        "window": WindowMetrics(accumulation_steps=2, effective_batch_size=16, schedule=[(0, 4), (8, 16), (20, 32)]),
        "noise": NoiseMetrics(scale=40.0, low=30.0, high=55.0),
        "hbm": HbmMetrics(device=rank, name="GH200", used_bytes=60 * GB, free_bytes=36 * GB, total_bytes=96 * GB, allocated_bytes=50 * GB),
        "managed": ManagedMetrics(bytes=9 * GB, kinds={"caches": 9 * GB}, prefers={"cpu": 6 * GB, "gpu": 3 * GB}, limit_bytes=90 * GB),
        "host_memory": HostMetrics(resident_bytes=5 * GB, shared_bytes=2 * GB, available_bytes=300 * GB),
        "datasets": {"photos": DatasetMetrics(bytes=2 * GB, files=1000)},
        "caches": CacheMetrics(
            entries=500, hits=900, misses=500, misses_in_training=3, waited_seconds=1.5, filled_bytes=8 * GB,
            arena_bytes=9 * GB, managed=True, preload=PreloadMetrics(entries=497, offered=500, bytes=8 * GB, finished=False),
        ),
        "hints": {"cache_prefetch": {"applied": 20, "resident": 900}},
        "copies": CopyMetrics(count=20, bytes=GB),
        "cost": Cost(cpu_seconds=0.4, wall_seconds=700, percent=0.06),
    }  # fmt: skip
    return Record(**facts | changes)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    directory = tmp_path / "output"
    directory.mkdir()
    for rank in range(2):
        append(path_of(directory, rank), record(rank).line())
    return directory


def shown(directory: Path, columns: int = 110) -> str:
    return "\n".join(page(read_directory(directory), columns))


def watch(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    code = WATCH.format(arguments=list(arguments))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, env=environment)


def test_watch_page_has_the_measurements_of_every_rank(output: Path) -> None:
    text = shown(output, 160)
    for words in (
        "running", "step 12 of 24", "loss 0.2500", "16 samples per step", "4 to 32 samples, 32 from step 20 on", "40 samples (30 to 55)",
        "used_gb 60", "allocated_gb 50", "prefers_cpu_gb 6, prefers_gpu_gb 3", "entries 500, hits 900, misses 500",
        "misses_in_training 3, waited_seconds 1.5", "entries 497, offered 500", "applied 20, resident 900", "copies 20",
        "seconds 1.9", "rank 1", "0.06 %",
    ):  # fmt: skip
        assert words in text, (words, text)
    assert text.count("used_gb 60") == 2


def test_watch_page_fits_narrow_terminals_and_bare_records(output: Path) -> None:
    assert max(map(len, page(read_directory(output), 40))) <= 40
    bare = dict.fromkeys(("window", "noise", "hbm", "managed", "host_memory", "caches", "copies", "cost", "loss"))
    append(path_of(output, 0), record(seconds=Seconds(), hints={}, datasets={}, **bare).line())
    assert "step 12 of 24" in shown(output)


def test_watch_says_which_rank_is_missing_which_run_died_and_who_else_writes(output: Path) -> None:
    path_of(output, 1).unlink()
    assert "no file here of rank 1 of 2" in shown(output)
    late = {"time": time.time() - 400, "began": time.time() - 800}
    path_of(output, 0).write_bytes(record(problems={"NVML": "not found"}, **late).line())
    assert "silent for 6 min" in shown(output) and "killed, or it hangs" in shown(output)
    assert "rank 0: NVML: not found" in shown(output)
    append(path_of(output, 0), record(run="another").line())
    append(path_of(output, 0), record(**late | {"time": time.time() + 1}).line())
    assert "1 other run(s) write into this directory too" in shown(output)


def test_watch_once_as_json_for_scripts_without_torch(output: Path) -> None:
    done = watch("--once", "--json", str(output))
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    assert (
        state["state"] == "running"
        and set(state["ranks"]) == {"0", "1"}
        and state["schedule"] == [[0, 4], [8, 16], [20, 32]]
    )
    assert state["ranks"]["1"]["hbm"]["used_bytes"] == 60 * GB
    plain = watch("--once", str(output))
    assert plain.returncode == 0 and "step 12 of 24" in plain.stdout and "\x1b" not in plain.stdout


@pytest.mark.parametrize("where", ["empty", "missing"])
def test_watch_where_nothing_is_names_the_fix(where: str, tmp_path: Path) -> None:
    done = watch({"empty": str(tmp_path), "missing": str(tmp_path / "no")}[where])
    assert done.returncode == 2 and "fix: " in done.stderr and str(tmp_path) in done.stderr and not done.stdout


def test_watch_rejects_arguments_that_make_no_sense(output: Path) -> None:
    done = watch("--json", str(output))
    assert done.returncode == 2 and "--json needs --once" in done.stderr


def test_watch_refreshes_in_a_terminal_and_ends_well(output: Path) -> None:
    code = WATCH.format(arguments=[str(output)])
    # A shell makes its background jobs, and these tests may be one, deaf to Ctrl-C.
    heard = "import _thread, signal, threading\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    stopped = f"{heard}\nthreading.Timer(2, _thread.interrupt_main).start()\n{code}"
    seen = in_terminal([sys.executable, "-c", stopped], 80, ROOT, os.environ | {"PYTHONPATH": str(ROOT)})
    assert seen.code == 0 and any("step 12 of 24" in line for line in seen.lines), seen.lines
