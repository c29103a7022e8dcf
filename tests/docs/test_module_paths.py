"""The page of moved modules is current, and every path it names exists."""

from __future__ import annotations

from gh200_lab.pages import module_paths
from gh200_lab.place import ROOT


def test_the_page_of_module_paths_is_current() -> None:
    assert module_paths.main(["--check"]) == 0


def test_every_new_path_exists_and_every_old_one_is_gone() -> None:
    for old, new in module_paths.moved().items():
        if "/" not in old:
            assert not (ROOT / f"{old.replace('.', '/')}.py").exists(), old
            assert new is None or (ROOT / f"{new.replace('.', '/')}.py").is_file(), new
