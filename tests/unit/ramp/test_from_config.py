"""The ramp's arithmetic counts real samples: the datasets' own train_batch_size, or a rejection where they differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200.config.dataset_file import batch_sizes, micro_batch_size
from simpletuner.gh200.config.schema import Optimizations
from simpletuner.gh200.ramp.from_config import ramp_from
from simpletuner.gh200.ramp.schedule import RampError

ASKED = Optimizations(enable_batch_size_rampup=True, initial_effective_batch_size=4, target_effective_batch_size=32)


def config(*sizes: int | None, **more: Any) -> dict[str, Any]:
    entries = [
        {"id": f"d{number}"} | ({} if size is None else {"train_batch_size": size}) for number, size in enumerate(sizes)
    ]
    caches = [
        {"id": "t", "dataset_type": "text_embeds"},
        {"id": "c", "dataset_type": "conditioning", "train_batch_size": 9},
    ]
    return {"train_batch_size": 2, "gradient_accumulation_steps": 1, "datasets": [*entries, *caches], **more}


@pytest.mark.parametrize(("sizes", "expected"), [((None, None), 2), ((4, 4), 4), ((2, None), 2)])
def test_one_batch_size_of_all_datasets_is_the_ramps(sizes: tuple[int | None, ...], expected: int) -> None:
    ramp = ramp_from(ASKED, config(*sizes), processes=1)
    assert ramp.train_batch_size == expected == micro_batch_size(config(*sizes), 2)
    assert ramp.effective_batch_size(10**6) == 32


def test_different_batch_sizes_are_rejected_by_name() -> None:
    with pytest.raises(RampError) as rejected:
        ramp_from(ASKED, config(4, None), processes=1)
    assert "d0 has 4" in rejected.value.where and "d1 has 2" in rejected.value.where
    assert "train_batch_size" in rejected.value.fix and micro_batch_size(config(4, None), 2) is None


def test_a_disabled_dataset_and_a_dataset_file_count_as_simpletuner_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "datasets.json"
    file.write_text(json.dumps([{"id": "a", "train_batch_size": 8}, {"id": "b", "disabled": True}]))
    assert batch_sizes({"data_backend_config": str(file)}, 2) == {"a": 8}
    assert micro_batch_size({"data_backend_config": str(tmp_path / "none.json")}, 2) == 2
