"""A checkpoint that v1 wrote resumes: step, window, schedule, order of the batches, names of files, and losses."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from preloaded import Preloaded

from gh200_lab.tiny.run import Run
from tests.golden import v1
from tests.golden.records import Records
from tests.golden.test_golden_trainings import bits, course, names
from tests.golden.workplace import Workplace

pytestmark = [pytest.mark.fork, pytest.mark.timeout(900)]
LARGEST = 5_000_000


@pytest.fixture(scope="module", autouse=True)
def recorded(place: Workplace, one_process: Preloaded, golden: Records) -> None:
    """With `--record`, and only where there is none, the checkpoint is written by a preempted run of this fork."""
    warm = place.train("v1-warm-up", launcher=one_process, datasets=True, max_train_steps=1)
    assert warm.code == 0, warm.text[-3000:]
    if golden.writing and not v1.HERE.exists():
        run = place.train(
            "v1", launcher=one_process, datasets=True, orders={"signals": [v1.SIGNAL]}, **v1.RAMP_STEPS | v1.PREEMPTED
        )
        assert run.code == 85, run.text[-3000:]
        v1.keep(run.output, place.directory)


def resume(name: str, place: Workplace, launcher: Preloaded) -> Run:
    laid_out = place.directory / "runs" / name
    shutil.rmtree(laid_out, ignore_errors=True)
    v1.lay_out(laid_out, place.directory)
    run = place.train(name, launcher=launcher, datasets=True, resume=name, **v1.RAMP_STEPS | v1.PREEMPTED)
    assert run.code == 0, run.text[-3000:]
    return run


def test_v1_checkpoint_resumes(place: Workplace, one_process: Preloaded, golden: Records) -> None:
    run = resume("from-v1", place, one_process)
    golden.check("v1", "course", course(run))
    golden.check("v1", "steps", [[step["step"], step["gradient_accumulation_steps"]] for step in run.steps])
    golden.check("v1", "files", names(run))
    if not golden.check_bits("bits", "from v1", bits(run), str(place.directory)):
        assert bits(resume("from-v1-again", place, one_process)) == bits(run)


def test_v1_checkpoint_is_small_and_whole() -> None:
    sizes = [path.stat().st_size for path in v1.HERE.rglob("*") if path.is_file()]
    assert 0 < sum(sizes) < LARGEST
    marker: dict[str, Any] = json.loads((v1.HERE / "gh200_left.json").read_text())
    checkpoint = v1.HERE / marker["checkpoint"]
    assert (checkpoint / "gh200_ramp.json").is_file() and (v1.HERE / "gh200_telemetry.rank0.jsonl").is_file()
