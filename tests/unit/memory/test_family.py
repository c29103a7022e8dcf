"""What a machine is, from recorded attributes of each family; the sources are named in tests/support/families.json."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from simpletuner.gh200.memory.driver import DeviceAttribute
from simpletuner.gh200.memory.family import CDMM, ONE_POOL, platform_of

REPO = Path(__file__).resolve().parents[3]
FAMILIES: dict[str, Any] = json.loads((REPO / "tests/support/families.json").read_text())
FAMILIES.pop("")
PRODUCTS = ("GH200", "GB200", "GB300", "GB10", "Thor")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_found_by_its_attributes(name: str) -> None:
    recorded = FAMILIES[name]
    assert set(recorded["attributes"]) <= {attribute.name.lower() for attribute in DeviceAttribute}
    found = platform_of(recorded["attributes"])
    assert (found.family, found.memory_mode, found.hbm_node) == (
        recorded["family"],
        recorded["memory_mode"],
        recorded["hbm_node"],
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gh200_numa", ""), ("gh200_cdmm", CDMM), ("gb10", ONE_POOL), ("thor", ONE_POOL), ("h100_hmm", "")],
)
def test_where_pages_gain_nothing_by_moving_there_is_a_reason(name: str, reason: str) -> None:
    assert platform_of(FAMILIES[name]["attributes"]).stays_on_the_cpu == reason


def test_a_driver_that_does_not_know_an_attribute_has_no_such_memory() -> None:
    assert platform_of({"pageable_memory_access_uses_host_page_tables": 1}).memory_mode == "CDMM"
    assert platform_of({}).family == "discrete"


def compared_names(path: Path) -> list[str]:
    """Comparisons with the name of a product."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            values = [part.value for part in (node.left, *node.comparators) if isinstance(part, ast.Constant)]
            found += [f"{path}:{node.lineno}" for value in values if value in PRODUCTS]
    return found


def test_no_decision_is_by_the_name_of_a_product() -> None:
    assert [line for path in (REPO / "simpletuner").rglob("*.py") for line in compared_names(path)] == []
