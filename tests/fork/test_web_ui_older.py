"""The web UI of a release before 4.0.6, where no field of upstream's holds JSON: our blocks survive its saves too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gh200_lab.place import ROOT
from gh200_rebase import flow
from gh200_rebase.commands.common import assess_into, fetched
from gh200_rebase.errors import Refused
from gh200_rebase.project import Project
from gh200_rebase.upstream.fetch import Upstream
from tests.fork.web_lab import CONFIG, OURS, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
RELEASE = "4.0.1"
# Three names that diffusers and huggingface_hub have moved or dropped since this release. Its models, pipelines and
# publishing import them, and the server imports those; the code that saves a config uses none of them. Nothing of
# upstream's or ours is replaced.
_PROGRAM = """
import sys
import diffusers.loaders.lora_pipeline
import diffusers.models.controlnets.controlnet
import huggingface_hub
diffusers.loaders.lora_pipeline.USE_PEFT_BACKEND = True
sys.modules["diffusers.models.controlnet"] = diffusers.models.controlnets.controlnet
huggingface_hub.HfFolder = type("HfFolder", (), {"get_token": staticmethod(huggingface_hub.get_token)})
from simpletuner.cli import main
main()
"""
OLDER: dict[str, Any] = {
    "use_gh200_trainer": True,
    "initial_effective_batch_size": "4",
    "data_backend": {"type": "in_memory", "instance_data_dir": "images", "of_mine": {"deeper": [None]}},
}
NESTED = CONFIG | {"gh200_optimizations": CONFIG["gh200_optimizations"] | {"nobody_knows": {"kept": [1, {"x": None}]}}}


def release() -> Upstream:
    try:
        return fetched(Project(ROOT), f"pypi:{RELEASE}")
    except Refused as reason:
        pytest.skip(f"release {RELEASE} cannot be had: {reason.what}")


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a fork made from that release; beside the one all other tests use, which is not touched."""
    folder, project, upstream = tmp_path_factory.mktemp("older"), Project(ROOT), release()
    assessment = assess_into(project, upstream, {})
    assessment.require(accept_drift=False)
    flow.make(project, upstream, assessment, folder / "fork")
    with Server(folder / "web", folder / "fork", _PROGRAM) as server:
        yield server


def saved(server: Server, name: str, config: dict[str, Any], **changes: str) -> dict[str, Any]:
    """What is in the file after a new browser has opened it, changed something else, and saved."""
    seen = server.show(name, config)
    answer = server.save(server.form(seen, learning_rate="0.0003", **changes))
    assert answer.status_code == 200, answer.text
    after = server.read(name)
    assert after["learning_rate"] == pytest.approx(0.0003)
    return after


def test_web_ui_of_an_older_release_keeps_every_block(older: Server) -> None:
    after = saved(older, "keeps", NESTED)
    assert {key: after.get(key) for key in OURS} == {key: NESTED[key] for key in OURS}


def test_web_ui_of_an_older_release_keeps_older_spellings(older: Server) -> None:
    config = {key: value for key, value in CONFIG.items() if key not in OURS} | OLDER
    after = saved(older, "spelt", config)
    assert {key: after.get(key) for key in OLDER} == OLDER


def test_web_ui_of_an_older_release_changes_empties_and_refuses(older: Server) -> None:
    block = NESTED["gh200_optimizations"] | {"target_effective_batch_size": 8}
    after = saved(older, "changed", NESTED, gh200_optimizations=json.dumps(block), cache_config="")
    assert after["gh200_optimizations"] == block and "cache_config" not in after
    before = older.path("changed").read_bytes()
    answer = older.save(older.form(older.show("changed"), datasets="[1,"))
    assert answer.status_code == 422 and "line 1 column 4" in answer.json()["detail"]
    assert older.path("changed").read_bytes() == before


def test_web_ui_of_an_older_release_keeps_blocks_sent_in_part_and_shows_them(older: Server) -> None:
    older.show("part", NESTED)
    part = {"--learning_rate": "0.0009", "--model_family": "sdxl", "--output_dir": "output"}
    assert older.http.put("/api/configs/part", json={"name": "part", "config": part}).status_code == 200
    after = older.read("part")
    assert {key: after.get(key) for key in OURS} == {key: NESTED[key] for key in OURS}
    assert 'name="--gh200_optimizations"' in older.http.get("/web/trainer/tabs/gh200").text
    assert "part" in {item["name"] for item in older.http.get("/api/configs/").json()["configs"]}


def test_web_ui_of_an_older_release_drops_them_without_our_edits(older: Server, tmp_path: Path) -> None:
    """The release as it is, asked the same: were our edits out, the tests above would see this."""
    with Server(tmp_path / "web", release().root, _PROGRAM) as pristine:
        after = saved(pristine, "keeps", NESTED)
    assert not set(after) & {"cache_config", "gh200_optimizations"}
