"""The lock, what counts as drift, and the pages generated from the real patches of this repository."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gh200_lab.place import ROOT
from gh200_rebase.errors import Rejected
from gh200_rebase.lock.drift import INFO, REVIEW, WARNING, compare, reviewed_moves
from gh200_rebase.pages import checklist, manifest
from gh200_rebase.patches import lockfile
from gh200_rebase.patches.lockfile import Entry, Lock
from gh200_rebase.project import Project
from gh200_rebase.proofs.overrides import overrides
from gh200_rebase.workspace import run_files

PLACE = Entry("1.0", "applied", 0, 1, "c", "a", "n", "s")


def history(*entries: Entry) -> Lock:
    return Lock({entry.since: "0" for entry in entries}, {"01/x": entries})


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"status": "skipped"}, REVIEW),
        ({"variant": 1}, REVIEW),
        ({"hits": 2}, REVIEW),
        ({"chain": "d"}, REVIEW),
        ({"anchor": "b"}, REVIEW),
        ({"body": "b"}, REVIEW),
        ({"neighbours": "m"}, WARNING),
        ({"scope": "t"}, INFO),
    ],
)
def test_each_recorded_fact_has_its_level(change: dict[str, object], level: str) -> None:
    difference = compare(PLACE, replace(PLACE, since="2.0", **change))
    assert difference is not None and difference[0] == level


def test_the_worst_difference_is_reported() -> None:
    difference = compare(PLACE, replace(PLACE, scope="t", neighbours="m", chain="d"))
    assert difference is not None and difference[0] == REVIEW


def test_an_edit_the_lock_does_not_know_is_to_review() -> None:
    assert compare(None, PLACE) == (REVIEW, "not in the lock yet")


def test_expected_is_the_entry_in_force_at_a_version() -> None:
    newer = replace(PLACE, since="4.7.0", chain="d")
    lock = history(PLACE, newer)
    assert lock.expected("01/x", "4.6.1") == PLACE
    assert lock.expected("01/x", "4.7.0") == newer
    assert lock.expected("01/x", "4.10.1") == newer
    assert lock.expected("01/x", "0.9") == PLACE
    assert lock.expected("01/y", "4.7.0") is None


def test_versions_are_compared_as_versions() -> None:
    assert Lock({"4.9.0": "0", "4.10.0": "0"}).newest() == "4.10.0"


def test_build_keeps_one_entry_per_change() -> None:
    seen = {version: ("0", {"01/x": replace(PLACE, since=version)}) for version in ("1.0", "2.0", "10.0")}
    seen["10.0"] = ("0", {"01/x": replace(PLACE, since="10.0", chain="d")})
    lock = lockfile.build(seen)
    assert [entry.since for entry in lock.edits["01/x"]] == ["1.0", "10.0"]
    assert reviewed_moves(lock, "10.0") == ("01/x: the blocks that enclose the anchor changed",)
    assert reviewed_moves(lock, "2.0") == ()


def test_lock_round_trip(tmp_path: Path) -> None:
    lock = history(PLACE, replace(PLACE, since="2.0", hits=2))
    lockfile.save(lock, tmp_path / "lock.json")
    assert lockfile.load(tmp_path / "lock.json") == lock
    first = (tmp_path / "lock.json").read_bytes()
    lockfile.save(lockfile.load(tmp_path / "lock.json"), tmp_path / "lock.json")
    assert (tmp_path / "lock.json").read_bytes() == first


@pytest.mark.parametrize("text", ["", "[]", '{"format": 99}', '{"format": 1, "releases": {"x": ""}, "edits": {}}'])
def test_a_lock_that_cannot_be_read_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(Rejected, match="cannot be read"):
        lockfile.load(tmp_path / "lock.json")


def test_manifest_is_in_step_with_the_patches() -> None:
    manifest.check(Project(ROOT))


def test_empty_checklist_is_the_one_the_tool_fills_in() -> None:
    assert (ROOT / run_files.CHECKLIST).read_text(encoding="utf-8") == checklist.render(None)


def test_edit_sites_and_overrides_are_exactly_so_many() -> None:
    """These counts only go down: a site or override more is paid for with another one."""
    project = Project(ROOT)
    sites, added, touched = manifest.totals(project.patches)
    assert (sites, added + touched, len(overrides(project.overlay))) == (25, 27, 33)
    assert f"## {sites} edit sites and 33 overrides" in manifest.pages(project)[ROOT / "docs/GH200_PATCH_MANIFEST.md"]


def test_every_edit_and_declared_function_is_in_the_lock_and_the_lock_has_no_other() -> None:
    project = Project(ROOT)
    edits = [edit for patch in project.patches for edit in patch.edits]
    entries = [*(form for edit in edits for form in edit.forms()), *(e for p in project.patches for e in p.expects)]
    functions = {f"{entry.file}#{scope}" for entry in entries for scope in entry.stands_for}
    assert set(project.lock.edits) == {edit.key for edit in edits} | functions


def test_the_lock_holds_hashes_only() -> None:
    for entries in Project(ROOT).lock.edits.values():
        for entry in entries:
            for value in (entry.chain, entry.anchor, entry.neighbours, entry.scope, entry.body):
                assert len(value) in (0, 16) and not value.strip("0123456789abcdef")
