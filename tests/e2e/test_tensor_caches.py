"""Unified-memory caches in the real fork: bit-identical training, files that plain upstream reads, bad latents handled as upstream does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from preloaded import Preloaded

from gh200_lab.place import environment
from gh200_lab.tiny.config import UNIFIED
from gh200_lab.tiny.run import Run, weights

ON = {"cache_config": UNIFIED}
STEPS = {"max_train_steps": 8, "train_batch_size": 2}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, forked: Preloaded) -> tiny.Lab:
    lab = tiny.Lab(tmp_path_factory.mktemp("unified"), forked)
    lab.add_dataset("squares", 6)
    return lab


def admitted(run: Run) -> int:
    """How many entries the run's own summary reports as cached."""
    summaries = [line for line in run.text.splitlines() if "GH200 memory summary" in line]
    assert len(summaries) == 1, run.text[-3000:]
    counts = summaries[0].partition("'counts': {")[2].partition("}")[0]
    return int(counts.partition("'admitted': ")[2].split(",")[0])


@pytest.mark.slow(reason="four trainings")
@pytest.mark.timeout(1800)
def test_training_is_bit_identical(lab: tiny.Lab) -> None:
    runs = {}
    for name, extra, cold in (("off", {}, True), ("on", ON, True), ("warm-off", {}, False), ("warm-on", ON, False)):
        runs[name] = lab.watched(name, cold=cold, **STEPS, **extra)
        assert runs[name].code == 0, runs[name].text[-3000:]
    assert len(runs["off"].trace) == 16
    assert runs["on"].trace == runs["off"].trace
    # These two read the files that the run with the caches on has written.
    assert runs["warm-on"].trace == runs["warm-off"].trace
    assert weights(runs["warm-on"].output) == weights(runs["warm-off"].output)
    assert admitted(runs["warm-on"]) == 12, "six latents and six captions"
    assert "GH200 memory summary" not in runs["off"].text
    assert "written_to" not in runs["on"].text + runs["warm-on"].text


COLLATE = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import torch
from gh200_lab.memory_run import begin_memory_run
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.helpers.data_backend.builders import create_backend_builder
from simpletuner.helpers.training import collate
from simpletuner.helpers.training.state_tracker import StateTracker

directory = Path(sys.argv[1])

class Latents:
    vae_cache_ondemand = False
    def __init__(self):
        config = SimpleNamespace(id="d", dataset_type="image", compress_cache=False, config={})
        self.cache_data_backend = create_backend_builder("local", None)._create_backend(config)
    def generate_vae_cache_filename(self, path):
        return path, path
    def retrieve_from_cache(self, path):
        return self.cache_data_backend.torch_load(path)

def outcome(unified, paths):
    begin_memory_run(CacheOptions(kinds=frozenset({"vae"}), hints=True) if unified else CacheOptions())
    cache = Latents()
    StateTracker.data_backends = {"d": {"vaecache": cache}}
    StateTracker.get_accelerator = classmethod(lambda cls: SimpleNamespace(device=torch.device("cpu")))
    StateTracker.get_args = classmethod(lambda cls: SimpleNamespace(model_family="sdxl"))
    results = []
    for _ in range(3):
        try:
            latents = collate.compute_latents(paths, "d", None)
            stacked = collate.check_latent_shapes(latents, paths, "d", [{} for _ in paths])
            results.append([float(stacked.double().sum()), list(stacked.shape), stacked.is_contiguous()])
        except Exception as error:
            results.append([type(error).__name__, str(error)])
    return results, sorted(path.name for path in directory.glob("*.pt"))

def fill(bad):
    generator = torch.Generator().manual_seed(1)
    for n in range(8):
        latent = torch.randn(4, 8, 8, generator=generator).bfloat16()
        if n == 5 and bad:
            latent[1, 2, 3] = bad
        torch.save(latent, directory / f"{n}.pt")
    return [str(directory / f"{n}.pt") for n in range(8)]

answer = {}
for name, bad in (("good", None), ("nan", float("nan")), ("inf", float("inf"))):
    answer[name] = [outcome(unified, fill(bad)) for unified in (False, True)]
Path(sys.argv[2]).write_text(json.dumps(answer))
"""


def test_collate_handles_good_and_bad_latents_as_upstream_does(tmp_path: Path, forked: Preloaded) -> None:
    directory, script, answer = tmp_path / "latents", tmp_path / "collate.py", tmp_path / "answer.json"
    directory.mkdir()
    script.write_text(COLLATE)
    done = subprocess.run(
        [sys.executable, *forked.forked(str(script), str(directory), str(answer))],
        env=environment(tiny.FORK, CUDA_VISIBLE_DEVICES=""),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (plain, unified) in json.loads(answer.read_text()).items():
        assert plain == unified, name
        results, files = unified
        # A latent with NaN or Inf costs its file, and the batch fails until it is encoded again.
        assert len(files) == (8 if name == "good" else 7)
        assert (results[0][0] == "ValueError") == (name != "good")
