"""The numbers of docs/SUPERCHIPS.md are what its formulas give."""

from __future__ import annotations

import re

from gh200_lab.place import ROOT

PAGE = (ROOT / "docs" / "SUPERCHIPS.md").read_text(encoding="utf-8")


def test_the_memory_table_is_its_formula() -> None:
    ranks = [1, 2, 4, 8, 16]
    rows = re.findall(r"^\| ([\d.]+) billion[^|]*\|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for billions, cells in rows:
        shown = [float(cell.strip().removesuffix(" GB")) for cell in cells.split("|")]
        assert shown == [round(16 * float(billions) / count, 1) for count in ranks]


def test_the_numbers_of_the_data_path_are_their_formulas() -> None:
    sent = 6 * 12 * 255 / 256
    latent, text = 16 * 128 * 128 * 2 / 1e6, 512 * 4096 * 2 / 1e6
    numbers = [
        f"{sent:.1f} GB",
        f"{sent / 25:.1f} s",
        f"{latent:.1f} MB",
        f"{text:.1f} MB",
        f"{8 * (latent + text):.1f} MB",
    ]
    assert [number for number in numbers if number not in PAGE] == []
    assert 64e12 / 100e9 == 640
