"""Preflight against the real upstream: its parser's keys, its examples, its own buckets."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from gh200_lab.place import ROOT, environment
from simpletuner.gh200.config.blocks import loaded_config
from simpletuner.gh200.preflight.buckets import rules_of
from simpletuner.gh200.preflight.check import preflight
from simpletuner.gh200.preflight.keys import dataset_key_problems
from simpletuner.gh200.preflight.upstream_keys import package_of_upstream, place_of_record, upstream_record

EXAMPLES = tiny.FORK / "simpletuner" / "examples"
# What upstream itself would reject in its own examples: a comma too many, families its parser does not list.
REJECTED = {
    "hidream.peft-controlnet-lora",
    "bria.lycoris-lokr",
    "kandinsky5-image-6b-i2i.lycoris-lokr",
    "pixart.peft-controlnet-lora",
}


def test_knows_upstreams_keys_since_the_fork_was_built() -> None:
    package = package_of_upstream()
    assert package == tiny.FORK.resolve() / "simpletuner" and place_of_record(package).is_file()
    known, why = upstream_record(False, lambda text: None)
    assert known is not None, why
    assert (
        len(known.keys) > 300
        and "sdxl" in known.families
        and "torch-adamw" in (known.keys["optimizer"]["choices"] or ())
    )
    asked = ["git", "check-ignore", str(place_of_record(package)), "jobs/first/config.json"]
    assert len(subprocess.run(asked, cwd=tiny.FORK, capture_output=True).stdout.splitlines()) == 2


def test_accepts_every_key_of_upstreams_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny.FORK)
    wrong: dict[str, list[str]] = {}
    seen = 0
    for path in sorted(EXAMPLES.glob("*/config.json")):
        if path.parent.name in REJECTED:
            continue
        seen += 1
        # Directories and files of datasets that are not on this machine are problems; everything else must be accepted.
        found = [text for text in preflight(path, loaded_config(path)).problems if "does not exist" not in text]
        if found := [text for text in found if "No such file" not in text]:
            wrong[path.parent.name] = found
    assert not wrong and seen > 50


def test_takes_no_field_of_upstreams_datasets_for_a_typo() -> None:
    known, why = upstream_record(False, lambda text: None)
    assert known is not None, why
    sources = (tiny.FORK / "simpletuner/helpers/data_backend/config").glob("*.py")
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    fields = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert len(fields) > 50 and not list(dataset_key_problems([dict.fromkeys(fields, 1)], known))


@pytest.mark.slow(reason="compares 18,000 buckets in a cold process")
def test_buckets_and_crops_equal_upstreams(tmp_path: Path) -> None:
    draw = random.Random(17)
    sizes = [(draw.randint(48, 4000), draw.randint(48, 4000)) for _ in range(2000)]
    sizes += [(edge, edge) for edge in (64, 512, 1000, 1024)]
    entries = [
        {"resolution": 1.048576, "resolution_type": "area", "crop": False},
        {"resolution": 0.262144, "resolution_type": "area", "crop": False},
        {"resolution": 0.004096, "resolution_type": "area", "crop": False},
        {"resolution": 1024, "resolution_type": "pixel", "crop": False},
        {"resolution": 64, "resolution_type": "pixel", "crop": False},
        {"resolution": 1.0, "resolution_type": "area", "crop": True, "crop_style": "center", "crop_aspect": "square"},
        {"resolution": 1.0, "resolution_type": "area", "crop": True, "crop_style": "center", "crop_aspect": "closest", "crop_aspect_buckets": [0.67, 1.0, 1.5]},
        {"resolution": 768, "resolution_type": "pixel", "crop": True, "crop_style": "center", "crop_aspect": "closest", "crop_aspect_buckets": [0.5, 1.0, 1.78]},
        {"resolution": 1.0, "resolution_type": "area", "crop": True, "crop_style": "center", "crop_aspect": "preserve"},
    ]  # fmt: skip
    asked = json.dumps({"directory": str(tmp_path), "sizes": sizes, "rules": entries})
    script = ROOT / "tests/support/upstream_buckets.py"
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        input=asked,
        env=environment(tiny.FORK),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    for entry, truth in zip(entries, answers, strict=True):
        rules = rules_of(entry, {})
        assert rules is not None
        different = [(size, one[0]) for size, one in zip(sizes, truth, strict=True) if rules.bucket(size) != one[0]]
        assert not different, (entry, different[:5])
        if entry["crop"]:
            continue
        for size, (_, (wide, high, covering_wide, covering_high)) in zip(sizes, truth, strict=True):
            if max(size) > 4 * min(size):
                continue  # upstream gives all images of one rounded aspect the size of its first
            assert rules.target(size) == (wide, high), (entry, size)
            # Upstream rounds what it resizes to.
            lost = 1 - wide * high / (covering_wide * covering_high)
            assert rules.lost(size) == pytest.approx(lost, abs=2 / min(wide, high)), (entry, size)
