"""What upstream's factory hands over and gets back for datasets of type in_memory."""

from __future__ import annotations

from typing import Any

import pytest

from simpletuner.gh200.datasets.sites import dataset_entries
from simpletuner.gh200.datasets.staged import staged
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.hooks import local_backend, rebuild_backend
from simpletuner.gh200.settings.schema import InMemory

pytestmark = pytest.mark.unit


def entry(name: str = "photos", **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "in_memory", "instance_data_dir": "/data", "repeats": 2, **more}


def test_an_in_memory_dataset_looks_local_to_upstream() -> None:
    given = [entry(in_memory={"compression": "lz4", "num_workers": 5}), {"id": "text", "type": "local"}]
    before = [dict(item) for item in given]
    changed = dataset_entries(given)
    assert changed[0] == {"id": "photos", "type": "local", "instance_data_dir": "/data", "repeats": 2}
    assert changed[1] is given[1] and given == before
    known = staged()
    assert known is not None and known.options["photos"] == InMemory(compression="lz4", num_workers=5)


def test_a_configuration_without_in_memory_datasets_passes_unchanged() -> None:
    dataset_entries([entry()])
    given = [{"id": "photos", "type": "local"}]
    assert dataset_entries(given) == given
    marker = object()

    class Config:
        id = "photos"

    assert local_backend(Config(), marker) is marker


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry(), entry()], 'the id "photos" is given to 2 datasets'),
        ([entry(), {"id": "photos", "type": "local"}], 'the id "photos" is given to 2 datasets'),
        ([entry(dataset_type="text_embeds")], "unified_memory"),
        ([entry(in_memory={"compresion": "lz4"})], "compression"),
        ([entry(in_memory={"compression": "rar"})], "compression"),
        ([entry(in_memory={"memory_limit_gb": -1})], "memory_limit_gb"),
    ],
)
def test_bad_entries_are_refused_by_name(entries: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(GH200Error) as caught:
        dataset_entries(entries)
    assert says in str(caught.value)


def test_a_representation_without_memory_gives_the_backend_back() -> None:
    marker = object()
    assert rebuild_backend({"backend_type": "local", "id": "x"}, marker) is marker
