"""Our part of the web UI without a server: blocks kept, saves guarded, templates changed by rule."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, HTTPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import DictLoader, Environment, TemplateNotFound
from starlette.datastructures import FormData

from simpletuner.gh200.config.keys import BLOCK_KEYS, is_ours
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.telemetry.files import append, path_of
from simpletuner.gh200.telemetry.record import Record, WindowMetrics
from simpletuner.gh200.web.blocks import BrokenBlock, given_in, is_training_config, kept_of, parsed, settled, written
from simpletuner.gh200.web.fields import register_fields
from simpletuner.gh200.web.live import live
from simpletuner.gh200.web.page import extend_page, rewritten
from simpletuner.gh200.web.saving import check_save
from simpletuner.gh200.web.server import ConfigFiles, DatasetPlan, _guard_saves

TEXT = st.text('ab "{}[]\\,:é\n-', max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(BLOCK_KEYS)), JSON.filter(lambda value: value is not None)))
def test_a_form_of_a_config_gives_the_config_back(config: dict[str, Any]) -> None:
    form = {key: json.dumps(value) for key, value in config.items()}
    assert settled(config, form) == (config, {})
    assert settled(config, {}) == (config, {})
    # Upstream has a key --data_backend of its own: the name of a file.
    texts = {f"--{key}": text for key, text in form.items() if is_ours(key, text)}
    assert written(texts) == ({key: json.loads(text) for key, text in texts.items()}, [])


def test_empty_removes_and_absent_keeps() -> None:
    on_disk = {"cache_config": {"a": 1}, "datasets": [1]}
    assert settled(on_disk, {"cache_config": " \n"})[0] == {"datasets": [1]}
    assert settled(on_disk, {"gh200_optimizations": '{"x": 1}'})[0] == {**on_disk, "gh200_optimizations": {"x": 1}}


@pytest.mark.parametrize("text", ['{"a": }', "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 1}', "[" * 50_000, "nonsense"])
def test_broken_text_is_reported_and_never_taken(text: str) -> None:
    values, broken = settled({"cache_config": {"a": 1}}, {"cache_config": text})
    assert values == {"cache_config": {"a": 1}} and list(broken) == ["cache_config"]
    with pytest.raises(BrokenBlock):
        parsed("cache_config", text)


def test_keeps_what_is_misspelt() -> None:
    config = {"--gh200_optimisations": {"a": 1}, "lora_rank": 4, "webhook_config": [{"a": 1}]}
    assert kept_of(config) == {"gh200_optimisations": {"a": 1}}


def test_what_an_open_tab_shows_is_what_a_form_says() -> None:
    form = FormData([("--cache_config", "1"), ("cache_config", "2"), ("--gh200_mine", "3"), ("--lora_rank", "4")])
    assert given_in(form, {"gh200_mine": {}}) == {"cache_config": "2", "gh200_mine": "3"}


def test_distinguishes_training_configs_from_files_of_datasets() -> None:
    assert is_training_config({"datasets": [], "--model_family": "sdxl"})
    assert is_training_config({"datasets": [], "gh200_optimizations": {}})
    assert is_training_config({"_metadata": {}, "datasets": [], "config": {"output_dir": "x"}})
    assert not is_training_config({"datasets": [], "_metadata": {}})
    assert not is_training_config([{"id": "x"}])


class Store:
    """A config store as upstream's, of one file."""

    config_type = "model"

    def __init__(self, path: Path) -> None:
        self.path, self.config_dir = path, path.parent

    def get_active_config(self) -> str:
        return "mine"

    def _get_config_path(self, name: str) -> Path:
        return self.path

    def load_config(self, name: str) -> tuple[dict[str, Any], None]:
        return json.loads(self.path.read_text()), None


def saving(store: Store, **form: str) -> None:
    check_save(FormData(form), SimpleNamespace(get_config_store=lambda: store))


def test_rejects_a_save_over_what_the_page_has_not_seen(tmp_path: Path) -> None:
    store = Store(tmp_path / "mine.json")
    store.path.write_text('{"learning_rate": 1}')
    seen = json.dumps({"name": "mine", "config": {"--learning_rate": 1.0}})
    saving(store, gh200_seen=seen)
    saving(store)  # a client without our script
    saving(store, gh200_seen="nonsense")
    store.path.write_text('{"learning_rate": 2}')
    with pytest.raises(HTTPException) as rejected:
        saving(store, gh200_seen=seen)
    assert rejected.value.status_code == 409 and "(learning_rate)" in rejected.value.detail
    state = rejected.value.headers["X-GH200-On-Disk"]
    for _ in range(2):
        saving(store, gh200_seen=seen, gh200_replaces=state)
    assert len(list(tmp_path.glob("mine.json.backup-*"))) == 2
    store.path.write_text('{"learning_rate": 3}')
    with pytest.raises(HTTPException):
        saving(store, gh200_seen=seen, gh200_replaces=state)


def test_rejects_a_save_into_another_config(tmp_path: Path) -> None:
    store = Store(tmp_path / "mine.json")
    with pytest.raises(HTTPException, match="hostile"):
        saving(store, gh200_seen=json.dumps({"name": "../hostile", "config": {}}))


def test_fields_are_arguments_of_json() -> None:
    class Field(SimpleNamespace):
        pass

    kinds = type("Type", (), {"TEXT_JSON": "text_json", "TEXT": "text"})
    pattern = Field(field_type=kinds(), importance=type("Importance", (), {"ADVANCED": 1})())
    registry = SimpleNamespace(_fields={"first": pattern})
    registry._add_field = lambda field: registry._fields.__setitem__(field.name, field)
    register_fields(registry)
    made = {name: field for name, field in registry._fields.items() if name != "first"}
    assert {name: field.field_type for name, field in made.items()} == {
        "$schema": "text", **dict.fromkeys(BLOCK_KEYS, "text_json"),
    }  # fmt: skip
    assert {name: field.arg_name for name, field in made.items()} == {
        "$schema": None, **{key: f"--{key}" for key in BLOCK_KEYS},
    }  # fmt: skip


def test_page_gets_one_script_more(caplog: pytest.LogCaptureFixture) -> None:
    source = "<head>{{ a }}</head> a.type === 'local'"
    changed = rewritten("base_htmx.html", source)
    assert changed.count("<script>") == 1 and changed.endswith("{{ a }}</head> a.type === 'local'")
    assert rewritten("other.html", "<head>") == "<head>"
    environment = Environment(loader=DictLoader({"base_htmx.html": source}))
    extend_page(environment)
    page = environment.get_template("base_htmx.html").render(a="&")
    with pytest.raises(TemplateNotFound):
        environment.get_template("missing.html")
    assert "gh200_seen" in page and "GH200_KEYS" not in page
    assert rewritten("base_htmx.html", "<HEAD>") == "<HEAD>" and "has no <head>" in caplog.text


class Files(Store):
    """The same, with the methods that write and list."""

    def save_config(self, name: str, config: Any, metadata: Any = None, overwrite: bool = False) -> Any:
        self._get_config_path(name).write_text(json.dumps(config))

    def save_trainer_config(self, name: str, config: Any, overwrite: bool = False) -> None:
        path = self._get_config_path(name)
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            json.dump(config, file)

    def _get_config_path(self, name: str) -> Path:
        return self.config_dir / f"{name}.json"

    def list_configs(self) -> list[dict[str, Any]]:
        return []


def test_a_save_that_fails_leaves_the_config_as_it_was(tmp_path: Path) -> None:
    real, link = tmp_path / "elsewhere" / "real.json", tmp_path / "configs" / "mine.json"
    for path in (real, link):
        path.parent.mkdir()
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    store = Files(link)
    ConfigFiles(store).install(store)
    with pytest.raises(TypeError):
        store.save_trainer_config("mine", {"a": 1, "b": object()}, overwrite=True)
    assert real.read_text() == "old"
    store.save_trainer_config("mine", {"a": "é"}, overwrite=True)
    assert json.loads(real.read_text()) == {"a": "é"} and link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    store.save_trainer_config("new", {"a": 1})
    store.save_config("text", {"cache_config": '{"a": 1}'})
    assert json.loads((tmp_path / "configs" / "text.json").read_text()) == {"cache_config": {"a": 1}}
    with pytest.raises(HTTPException, match="cache_config is not JSON"):
        store.save_config("broken", {"cache_config": '{"a": '})
    assert not (tmp_path / "configs" / "broken.json").exists()


def test_save_stays_in_the_directory_of_configs(tmp_path: Path) -> None:
    store = Files(tmp_path / "configs" / "config.json")
    ConfigFiles(store).install(store)
    for rejected in (store.save_config, store.save_trainer_config):
        with pytest.raises(HTTPException, match="out of the directory"):
            rejected("../x", {"a": 1})
    outside = Store(tmp_path / "configs" / ".." / "config.json")
    outside.config_dir = tmp_path / "configs"
    with pytest.raises(HTTPException, match="out of the directory"):
        saving(outside)


def test_an_upstream_without_the_route_that_saves_is_rejected() -> None:
    with pytest.raises(GH200Error, match="0 routes that save"):
        _guard_saves(SimpleNamespace(router=APIRouter(), get_current_user=print))


def test_names_in_a_rejection_are_text(tmp_path: Path) -> None:
    store = Store(tmp_path / "mine.json")
    store.path.write_text('{"<img src=x>": 2}')
    with pytest.raises(HTTPException, match="&lt;img src=x&gt;"):
        saving(store, gh200_seen=json.dumps({"name": "mine", "config": {}}))


def test_in_memory_datasets_are_local_to_the_page() -> None:
    entry = {"id": "p", "type": "in_memory", "instance_data_dir": "images", "in_memory": {"compression": "lz4"}}
    bare, other = {"id": "b", "type": "in_memory"}, {"id": "o", "type": "aws"}
    saved: list[Any] = []
    plan = SimpleNamespace(load=lambda: ([entry, bare, other], "disk", None), save=saved.extend)
    DatasetPlan().install(plan)
    shown, _, _ = plan.load()
    assert shown == [{**entry, "type": "local"}, {"id": "b", "type": "local", "in_memory": {}}, other]
    plan.save([*shown, {"id": "l", "type": "local"}])
    assert saved == [entry, {**bare, "in_memory": {}}, other, {"id": "l", "type": "local"}]


def test_live_has_the_run_and_the_ramp(tmp_path: Path) -> None:
    config = {
        "output_dir": str(tmp_path),
        "train_batch_size": 1,
        "gh200_optimizations": {
            "initial_effective_batch_size": 1,
            "target_effective_batch_size": 4,
            "batch_rampup_steps": 8,
        },
        "data_backend_config": None,
    }
    before = live(config, {})
    assert before["planned"][0] == (0, 1) and before["planned"][-1][1] == 4 and "no telemetry" in before["nothing"]
    record = Record(
        kind="interval", run="r", rank=0, ranks=1, host="h", pid=1, began=1.0, time=2.0, interval=10, step=3,
        window=WindowMetrics(accumulation_steps=2, effective_batch_size=2, schedule=[(0, 1), (3, 2)]),
    )  # fmt: skip
    append(path_of(tmp_path, 0), record.line())
    run = live(config, {})
    assert run["schedule"] == [(0, 1), (3, 2)] and run["ranks"]["0"]["step"] == 3
    assert live({}, {})["nothing"] and live({}, {})["planned"] is None
    json.dumps(run)
