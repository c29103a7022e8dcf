"""Upstream's web UI in the built fork: what a save keeps, rejects and says. One server for all of it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.web_lab import CONFIG, OURS, Server


def ours(config: dict[str, Any]) -> dict[str, Any]:
    return {key: config.get(key) for key in OURS}


def test_save_keeps_every_block(web_server: Server) -> None:
    seen = web_server.show("keeps", CONFIG)
    answer = web_server.save(web_server.form(seen, learning_rate="0.0003"))
    assert answer.status_code == 200 and "saved" in answer.text
    after = web_server.read("keeps")
    assert after["learning_rate"] == pytest.approx(0.0003)
    assert ours(after) == ours(CONFIG)


def test_save_keeps_blocks_of_a_form_that_does_not_have_them(web_server: Server) -> None:
    seen = web_server.show("partly", CONFIG)
    form = {key: text for key, text in web_server.form(seen).items() if key[2:] not in {*OURS, "gh200_revision"}}
    assert web_server.save(form).status_code == 200
    assert ours(web_server.read("partly")) == ours(CONFIG)


def test_save_keeps_older_spellings_and_what_is_misspelt(web_server: Server) -> None:
    older = {
        "use_gh200_trainer": True,
        "initial_effective_batch_size": "4",
        "data_backend": {"type": "in_memory", "instance_data_dir": "images"},
        "gh200_optimisations": {"mine": 1},
    }
    rest = {key: value for key, value in CONFIG.items() if key not in OURS}
    seen = web_server.show(
        "older", rest | {f"--{key}" if key == "data_backend" else key: v for key, v in older.items()}
    )
    assert web_server.save(web_server.form(seen, learning_rate="0.0002")).status_code == 200
    after = web_server.read("older")
    assert {key: after.get(key) for key in older} == older


def test_save_changes_one_value_and_no_other(web_server: Server) -> None:
    seen = web_server.show("one", CONFIG)
    block = CONFIG["gh200_optimizations"] | {"target_effective_batch_size": 8}
    assert web_server.save(web_server.form(seen, gh200_optimizations=json.dumps(block))).status_code == 200
    assert ours(web_server.read("one")) == ours(CONFIG) | {"gh200_optimizations": block}


def test_block_can_be_emptied(web_server: Server) -> None:
    seen = web_server.show("empty", CONFIG)
    assert web_server.save(web_server.form(seen, cache_config=" ")).status_code == 200
    after = web_server.read("empty")
    assert "cache_config" not in after and after["gh200_optimizations"] == CONFIG["gh200_optimizations"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"preflight": false,\n "x" 1}', "line 2 column 6"),
        ('{"x": NaN}', "NaN"),
        ('{"x": 1, "x": 2}', "twice"),
        ("[" * 100_000, "JSON"),
    ],
)
def test_broken_json_is_rejected_with_its_place(web_server: Server, text: str, reason: str) -> None:
    seen = web_server.show("broken", CONFIG)
    before = web_server.path("broken").read_bytes()
    answer = web_server.save(web_server.form(seen, gh200_optimizations=text, learning_rate="0.5"))
    assert answer.status_code == 422 and reason in answer.json()["detail"]
    assert "gh200_optimizations" in answer.json()["detail"]
    assert web_server.path("broken").read_bytes() == before


def test_config_changed_on_disk_is_not_lost(web_server: Server) -> None:
    seen = web_server.show("changed", CONFIG)
    block = CONFIG["gh200_optimizations"] | {"batch_rampup_steps": 99}
    web_server.write("changed", CONFIG | {"gh200_optimizations": block})
    on_disk = web_server.path("changed").read_bytes()
    form = web_server.form(seen, learning_rate="0.0005")
    answer = web_server.save(form)
    assert answer.status_code == 409 and "changed on disk" in answer.json()["detail"]
    assert "gh200_optimizations" in answer.json()["detail"]
    assert web_server.path("changed").read_bytes() == on_disk
    # Saved again after the rejection: both are there.
    assert web_server.save(form).status_code == 200
    assert web_server.read("changed")["learning_rate"] == pytest.approx(0.0005)
    kept = list(web_server.configs.glob("changed.json.backup-*"))
    assert [path.read_bytes() for path in kept] == [on_disk]


def test_two_browsers(web_server: Server) -> None:
    first, second = web_server.show("two", CONFIG), web_server.show("two")
    assert web_server.save(web_server.form(first, learning_rate="0.0006")).status_code == 200
    assert web_server.save(web_server.form(second, learning_rate="0.0007")).status_code == 409
    assert web_server.read("two")["learning_rate"] == pytest.approx(0.0006)
    # Another browser has opened another config: the first must not be saved into it.
    shown = web_server.show("two")
    web_server.show("other", CONFIG)
    before = web_server.path("other").read_bytes()
    answer = web_server.save(web_server.form(shown))
    assert answer.status_code == 409 and '"two"' in answer.json()["detail"] and '"other"' in answer.json()["detail"]
    assert web_server.path("other").read_bytes() == before


def test_saves_at_once_have_one_winner(web_server: Server) -> None:
    forms = [web_server.form(web_server.show("race", CONFIG), learning_rate=f"0.00{rate}") for rate in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        answers = [answer.status_code for answer in pool.map(web_server.save, forms)]
    assert sorted(answers) == [200, *[409] * 7]
    assert web_server.read("race")["learning_rate"] == pytest.approx(float(f"0.00{answers.index(200) + 1}"))


@pytest.mark.parametrize(
    "name", ["../outside", "..%2Foutside", "a/../../outside", "..", "x\0y", "<img src=x>", "Käfer 1"]
)
def test_hostile_config_name_leads_nowhere(web_server: Server, name: str) -> None:
    outside = [web_server.directory / file for file in ("outside.json", "config.json")]
    for path in outside:
        path.write_text('{"theirs": 1}')
    config = {"--learning_rate": "0.1", "--model_family": "sdxl", "cache_config": "{}"}
    for method, path, body in [
        ("PUT", f"/api/configs/{quote(name, safe='').replace('.', '%2e')}", {"name": name, "config": config}),
        ("POST", "/api/configs/", {"name": name, "config": config}),
        ("POST", f"/api/configs/{quote(name, safe='')}/activate", None),
    ]:
        answer = web_server.http.request(method, path, json=body)
        assert answer.status_code >= 400 and "<img" not in answer.text, (method, path)
    assert {path.read_text() for path in outside} == {'{"theirs": 1}'}
    assert web_server.http.get("/api/configs/active").json()["name"] != name


def test_config_in_a_directory_of_its_own(web_server: Server) -> None:
    directory = web_server.configs / "in-directory"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG))
    seen = web_server.show("in-directory")
    assert web_server.save(web_server.form(seen, learning_rate="0.0008")).status_code == 200
    after = json.loads((directory / "config.json").read_text())
    assert ours(after) == ours(CONFIG) and after["learning_rate"] == pytest.approx(0.0008)
    assert not web_server.path("in-directory").exists()


def test_thousands_of_datasets(web_server: Server) -> None:
    many = [{**CONFIG["datasets"][0], "id": f"images-{number}"} for number in range(5000)]
    seen = web_server.show("many", CONFIG | {"datasets": [*many, CONFIG["datasets"][1]]})
    changed = [{**entry, "repeats": 2} for entry in many]
    form = web_server.form(seen, learning_rate="0.0008", datasets=json.dumps(changed))
    # As the page sends a save: a form of parts, two of them of megabytes.
    answer = web_server.http.post("/api/training/config", files=[(key, (None, text)) for key, text in form.items()])
    assert answer.status_code == 200, answer.text
    assert web_server.read("many")["datasets"] == changed
    assert web_server.http.post("/api/training/validate", data=form).status_code == 200
    web_server.show("mine")


def test_unreadable_config_is_not_replaced(web_server: Server) -> None:
    seen = web_server.show("torn", CONFIG)
    web_server.path("torn").write_text('{"half": ')
    answer = web_server.save(web_server.form(seen))
    assert answer.status_code == 409 and "cannot be read" in answer.json()["detail"]
    assert web_server.path("torn").read_text() == '{"half": '
    web_server.write("torn", CONFIG)  # upstream's server shows no page at all while the active config is broken


def test_other_ways_to_save_keep_blocks(web_server: Server) -> None:
    # The page reads a config whole, changes a key and puts it back whole.
    config = json.loads(web_server.show("put", CONFIG))["config"] | {"--learning_rate": "0.0009"}
    assert web_server.http.put("/api/configs/put", json={"name": "put", "config": config}).status_code == 200
    assert ours(web_server.read("put")) == ours(CONFIG)
    before = web_server.path("put").read_bytes()
    rejected = web_server.http.put(
        "/api/configs/put", json={"name": "put", "config": config | {"cache_config": '{"vae_cache_type": '}}
    )
    assert rejected.status_code == 422 and "cache_config is not JSON" in rejected.json()["detail"]
    assert web_server.path("put").read_bytes() == before
    # Save As hands every value over as text.
    texts = {f"--{key}": value if isinstance(value, str) else json.dumps(value) for key, value in CONFIG.items()}
    made = web_server.http.post("/api/configs/", json={"name": "copy", "config": texts})
    assert made.status_code in (200, 201), made.text
    kept = {key.removeprefix("--"): value for key, value in web_server.read("copy").items()}
    assert ours(kept) == ours(CONFIG)


def test_lists_configs_with_inline_datasets(web_server: Server) -> None:
    web_server.show("inline", CONFIG)
    web_server.write("only_datasets", {"datasets": CONFIG["datasets"]})
    names = {item["name"] for item in web_server.http.get("/api/configs/").json()["configs"]}
    assert "inline" in names and "only_datasets" not in names
    offered = web_server.http.get("/api/configs/", params={"config_type": "dataloader"}).json()["configs"]
    assert "inline" not in {Path(item.get("path", item["name"])).stem for item in offered}


def test_validate_names_the_nearest_key(web_server: Server) -> None:
    seen = web_server.show("typo", CONFIG)
    block = json.dumps({"target_effective_batch_sise": 4, "<img src=x>": 1})
    answer = web_server.http.post("/api/training/validate", data=web_server.form(seen, gh200_optimizations=block))
    assert answer.status_code == 200
    assert "gh200_optimizations.target_effective_batch_sise" in answer.text
    assert 'Did you mean "target_effective_batch_size"?' in answer.text
    assert "<img" not in answer.text and "&lt;img" in answer.text


def test_start_answers_with_what_preflight_found(web_server: Server) -> None:
    seen = web_server.show("no-data", CONFIG)
    answer = web_server.http.post("/api/training/start", data=web_server.form(seen))
    assert "Cannot Start" in answer.text and "images" in answer.text and "does not exist" in answer.text


def test_fields_are_saved_into_their_blocks(web_server: Server) -> None:
    seen = web_server.show("flat", CONFIG)
    form = web_server.form(seen, gh200_target_effective_batch_size="8", gh200_vae_cache_type="disk")
    assert web_server.save(form).status_code == 200
    ramp = CONFIG["gh200_optimizations"] | {"target_effective_batch_size": 8}
    caches = CONFIG["cache_config"] | {"vae_cache_type": "disk"}
    assert ours(web_server.read("flat")) == ours(CONFIG) | {"gh200_optimizations": ramp, "cache_config": caches}


def test_both_spellings_with_different_values_are_rejected(web_server: Server) -> None:
    seen = web_server.show("spellings", CONFIG)
    block = json.dumps(CONFIG["gh200_optimizations"] | {"batch_rampup_steps": 9})
    form = web_server.form(seen, gh200_optimizations=block, gh200_batch_rampup_steps="10")
    answer = web_server.save(form)
    assert answer.status_code == 422
    assert {"gh200_batch_rampup_steps", "gh200_optimizations.batch_rampup_steps"} <= set(
        answer.json()["detail"].split()
    )


def test_a_flat_key_in_the_file_is_trained_and_shown(web_server: Server) -> None:
    web_server.show("flat-file", {**CONFIG, "gh200_batch_rampup_unit": "sideways"})
    seen = web_server.show("flat-file")
    answer = web_server.http.post("/api/training/validate", data=web_server.form(seen))
    assert "gh200_optimizations.batch_rampup_unit" in answer.text


def test_page_of_the_run(web_server: Server) -> None:
    web_server.show("run", CONFIG)
    assert "data-gh200-live" in web_server.http.get("/gh200").text
    shown = web_server.http.get("/gh200/live").text
    assert "No run yet" in shown and "from 1 to 4" in shown and f"{web_server.directory}/output" in shown
    assert "does not exist" in web_server.http.get("/gh200/fit").text
    assert web_server.http.get("/gh200/images/..%2fx.png").status_code == 404


def test_datasets_in_memory(web_server: Server) -> None:
    web_server.show("files", {key: value for key, value in CONFIG.items() if key != "datasets"})
    plan = [{"id": "p", "type": "in_memory", "dataset_type": "image", "instance_data_dir": "images",
             "cache_dir_vae": "c", "in_memory": {"compression": "zstd"}}]  # fmt: skip
    saved = web_server.http.post("/api/datasets/plan", json={"datasets": plan})
    assert saved.status_code in (200, 201), saved.text
    loaded = web_server.http.get("/api/datasets/plan").json()
    entry = next(item for item in loaded["datasets"] if item["id"] == "p")
    assert entry == {**plan[0], "type": "local"}, "the page drops the directory of what is not local"
    assert web_server.http.post("/api/datasets/plan", json={"datasets": loaded["datasets"]}).is_success
    files = [path for path in web_server.directory.rglob("*.json") if path.name.startswith("multidatabackend")]
    assert [json.loads(path.read_text())[0] for path in files] == plan
    assert not [item for item in loaded.get("validations", ()) if "blueprint" in item["message"]]
