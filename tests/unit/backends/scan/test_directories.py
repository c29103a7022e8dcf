"""Datasets below a relative directory: those with subdirectories get the absolute path, all others stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200 import runtime
from simpletuner.gh200.backends.scan.directories import absolute_directories
from simpletuner.gh200.config.cache_options import CacheOptions
from simpletuner.gh200.config.sources import read_settings


@pytest.mark.parametrize("on", [True, False, None])
def test_only_nested_datasets_below_a_relative_directory_get_the_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: bool | None
) -> None:
    (tmp_path / "nested" / "more").mkdir(parents=True)
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "one.png").touch()
    monkeypatch.chdir(tmp_path)
    absolute = str(tmp_path / "nested")
    given: list[Any] = [
        {"id": "a", "instance_data_dir": "nested", "repeats": 1},
        *({"id": "b", "instance_data_dir": place} for place in ("flat", "none", absolute, "", None, ["nested"])),
        {"id": "text", "dataset_type": "text_embeds"},
        "no entry",
    ]
    if on is not None:
        runtime.begin(read_settings({"gh200_optimizations": {"fast_start": on}}, {}), CacheOptions())
    try:
        found = absolute_directories(given)
    finally:
        runtime.end()
    assert found[1:] == given[1:]
    assert found[0] == given[0] | ({"instance_data_dir": absolute} if on else {})
    assert given[0]["instance_data_dir"] == "nested"
