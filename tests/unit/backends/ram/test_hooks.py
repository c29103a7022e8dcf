"""What upstream's factory hands over and gets back for datasets of type in_memory."""

from __future__ import annotations

from typing import Any

import pytest

from simpletuner.gh200.backends.builders import local_dataset
from simpletuner.gh200.backends.ram.hooks import local_entries
from simpletuner.gh200.backends.ram.registry import staged
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.schema import InMemory
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.errors import GH200Error


def entry(name: str = "photos", **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "in_memory", "instance_data_dir": "/data", "repeats": 2, **more}


def test_an_in_memory_dataset_looks_local_to_upstream() -> None:
    given = [entry(in_memory={"compression": "lz4", "num_workers": 5}), {"id": "text", "type": "local"}]
    before = [dict(item) for item in given]
    changed = local_entries(given)
    assert changed[0] == {"id": "photos", "type": "local", "instance_data_dir": "/data", "repeats": 2}
    assert changed[1] is given[1] and given == before
    known = staged()
    assert known is not None and known.options["photos"] == InMemory(compression="lz4", num_workers=5)


def test_a_configuration_without_in_memory_datasets_passes_unchanged() -> None:
    local_entries([entry()])
    given = [{"id": "photos", "type": "local"}]
    assert local_entries(given) == given
    marker = object()

    class Config:
        id = "photos"

    assert local_dataset(Config(), marker) is marker


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry(), entry()], 'the id "photos" is given to 2 datasets'),
        ([entry(), {"id": "photos", "type": "local"}], 'the id "photos" is given to 2 datasets'),
        ([entry(dataset_type="text_embeds")], "unified_memory"),
        ([entry(in_memory={"compresion": "lz4"})], "compression"),
        ([entry(in_memory={"compression": "rar"})], "compression"),
        ([entry(in_memory={"memory_limit_gb": -1})], "memory_limit_gb"),
        (
            [entry(in_memory={"memory_limit_gb": 1e300})],
            "memory_limit_gb: must be a number, above 0, at most 1000000000",
        ),
    ],
)
def test_bad_entries_are_rejected_by_name(entries: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(GH200Error) as caught:
        local_entries(entries)
    assert says in str(caught.value)


@pytest.mark.parametrize("more", [{"in_memory": {"memory_limit_gb": 1e300}}, {"dataset_type": "text_embeds"}])
@pytest.mark.parametrize("inline", [False, True])
def test_a_dataset_that_cannot_be_staged_is_one_problem_before_any_work(more: dict[str, Any], inline: bool) -> None:
    """Whether it is in the training config or in a dataset file."""
    entries = [entry(**more)]
    with pytest.raises(SettingsError, match="GH200 settings: 1 problem") as caught:
        read_settings({"datasets": entries} if inline else {}, {}, {}, None if inline else entries)
    (problem,) = caught.value.problems
    assert problem.path.startswith("datasets[0]." if inline else "data_backend_config[0].")
