"""Lost anchors are found again: six refactorings of the invented upstream, repaired by the command itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from rebase_lab import FAKE, Lab, make_lab

TRAINER = "simpletuner/helpers/training/trainer.py"
ROUND = """            pair = self.fetch(number)  # one pair per round
            if pair is None:
                break
            if number % self.settings["every"] == 0:
                self.seen.append(pair)
"""
LOOP = f"""        number = 0
        while number < self.settings["rounds"]:
{ROUND}            number += 1
"""
METHOD = """
    def _round(self, number):
        pair = self.fetch(number)  # one pair per round
        if pair is None:
            return False
        if number % self.settings["every"] == 0:
            self.seen.append(pair)
        return True
"""
GATE = """            if number % self.settings["every"] == 0:
                self.seen.append(pair)
"""


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def method_extracted(text: str) -> dict[str, str]:
    call = "            if not self._round(number):\n                break\n"
    return {TRAINER: replaced(text, (ROUND, call)) + METHOD}


def inner_loop_extracted(text: str) -> dict[str, str]:
    return {
        TRAINER: replaced(text, (LOOP, "        number = self._rounds()\n"))
        + f"\n    def _rounds(self):\n{LOOP}        return number\n"
    }


def call_wrapped(text: str) -> dict[str, str]:
    return {TRAINER: replaced(text, ("pair = self.fetch(number)", 'pair = log_time(self.fetch(number), "pair")'))}


def file_renamed(text: str) -> dict[str, str]:
    shim = "from simpletuner.helpers.training.rounds import Loop\n"
    return {TRAINER: shim, "simpletuner/helpers/training/rounds.py": text}


def variable_renamed(text: str) -> dict[str, str]:
    return {TRAINER: text.replace("pair", "couple").replace("one couple", "one pair")}


def block_moved(text: str) -> dict[str, str]:
    moved = GATE.replace("            if", "        if", 1).replace("                self", "            self", 1)
    into = "    def fetch(self, number):\n"
    return {
        TRAINER: replaced(
            text, (GATE, ""), (into, f"{into}        pair = number\n{moved.replace('self.seen', 'pair')}")
        )
    }


def changed_upstream(directory: Path, change: object) -> Path:
    shutil.copytree(FAKE / "v1", directory)
    text = (directory / TRAINER).read_text()
    for name, data in change(text).items():  # type: ignore[operator]
        (directory / name).write_text(data)
    return directory


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return make_lab(tmp_path)


REFACTORINGS = {
    method_extracted: {"01/begin": {"scope": "Loop._round"}, "01/gate": {"scope": "Loop._round"}},
    inner_loop_extracted: {"01/begin": {"scope": "Loop._rounds"}, "01/gate": {"scope": "Loop._rounds"}},
    call_wrapped: {"01/begin": {"anchor": "pair = log_time(self.fetch(...), ...)"}},
    file_renamed: {
        key: {"file": "simpletuner/helpers/training/rounds.py"} for key in ("01/base", "01/begin", "01/gate")
    },
    variable_renamed: {
        "01/begin": {"anchor": "couple = self.fetch(...)", "code": "self.gh200_begin(couple, number=number)"}
    },
    block_moved: {"01/gate": {"scope": "Loop.fetch"}},
}


@pytest.mark.parametrize("change", REFACTORINGS, ids=lambda change: change.__name__)
def test_propose_finds_the_place_and_writes_the_variant(lab: Lab, tmp_path: Path, change: object) -> None:
    upstream = f"path:{changed_upstream(tmp_path / 'changed', change)}"
    arguments = ("--upstream", upstream, "--verified", lab.upstream("v1"))
    output = lab.run("check", *arguments, "--propose", "--json", str(tmp_path / "said.json"), code=2)
    first = {key: ranked[0] for key, ranked in json.loads((tmp_path / "said.json").read_text())["proposals"].items()}
    assert {key: one["variant"] for key, one in first.items()} == REFACTORINGS[change]  # type: ignore[index]
    assert all(one["proved"] for one in first.values()), output
    assert "with them: 0 failures, 0 misplaced" in output and "last verified: trainer.py:" in output
    # What was written is a patch like any other: it builds, and older releases keep their form.
    lab.run("--skip-tests", "--accept-drift", "--upstream", upstream)
    assert lab.git("grep", "-c", "gh200_begin", "HEAD", "--", "simpletuner/helpers/training/")
    lab.run("check", "--upstream", lab.upstream("v1"))


def test_propose_leaves_every_other_byte_of_the_patch_file(lab: Lab, tmp_path: Path) -> None:
    path = lab.root / "patches" / "01-loop.toml"
    before = path.read_text()
    upstream = f"path:{changed_upstream(tmp_path / 'changed', call_wrapped)}"
    lab.run("check", "--upstream", upstream, "--verified", lab.upstream("v1"), "--propose", code=2)
    after = path.read_text()
    kept = [line for line in after.splitlines() if line]
    added = [line for line in before.splitlines() if line]
    for line in added:
        kept.remove(line)
    assert kept == ["[[edit.variant]]", 'anchor = "pair = log_time(self.fetch(...), ...)"']


def test_propose_says_when_nothing_is_alike(lab: Lab, tmp_path: Path) -> None:
    def gone(text: str) -> dict[str, str]:
        return {TRAINER: replaced(text, (ROUND, "            pass\n"))}

    patches = {path: path.read_bytes() for path in (lab.root / "patches").glob("*.toml")}
    upstream = f"path:{changed_upstream(tmp_path / 'changed', gone)}"
    output = lab.run("check", "--upstream", upstream, "--verified", lab.upstream("v1"), "--propose", code=1)
    assert "nothing in this upstream looks like it" in output
    assert patches == {path: path.read_bytes() for path in patches}


def test_explain_of_a_failed_edit_proposes_and_writes_nothing(lab: Lab, tmp_path: Path) -> None:
    patches = {path: path.read_bytes() for path in (lab.root / "patches").glob("*.toml")}
    upstream = f"path:{changed_upstream(tmp_path / 'changed', method_extracted)}"
    output = lab.run("explain", "01", "--upstream", upstream, "--verified", lab.upstream("v1"), code=1)
    assert 'scope = "Loop._round"' in output and "last verified: trainer.py:" in output
    assert patches == {path: path.read_bytes() for path in patches}
    # Without the last verified release: by names and shapes alone.
    alone = lab.run("explain", "01", "--upstream", upstream, code=1, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert "note: without the last verified release" in alone and 'scope = "Loop._round"' in alone
