"""Our part of the web UI without a server: blocks kept, saves guarded, templates changed by rule."""

from __future__ import annotations

import json
import re
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, HTTPException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.datastructures import FormData, Headers

from simpletuner.gh200.config.keys import BLOCK_KEYS, flat_place, is_ours
from simpletuner.gh200.errors import GH200Error
from simpletuner.gh200.telemetry.files import append, path_of
from simpletuner.gh200.telemetry.record import Record, WindowMetrics
from simpletuner.gh200.web import live
from simpletuner.gh200.web.datasets import DatasetPlan
from simpletuner.gh200.web.fields import BLOCKS, keys, register_fields
from simpletuner.gh200.web.forms import (
    BrokenBlock,
    field_values,
    fields_in,
    is_training_config,
    kept_of,
    parsed,
    problem_of_field,
    settled,
    texts_in,
    written,
)
from simpletuner.gh200.web.origin import foreign_site, is_loopback
from simpletuner.gh200.web.saving import Revisions, check_save
from simpletuner.gh200.web.server import ConfigFiles, _guard_saves

TEXT = st.text('ab "{}[]\\,:é\n-', max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def _as_a_page_has_it(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return ["" if value is None else value if isinstance(value, str) else json.dumps(value)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(BLOCK_KEYS)), JSON.filter(lambda value: value is not None)))
def test_a_form_of_a_config_gives_the_config_back(config: dict[str, Any]) -> None:
    form = {key: json.dumps(value) for key, value in config.items()}
    assert settled(config, form, {}) == (config, {})
    assert settled(config, {}, {}) == (config, {})
    fields = {name: _as_a_page_has_it(value) for name, value in field_values(config).items()}
    assert settled(config, form, fields) == (config, {})
    # Upstream has a key --data_backend of its own: the name of a file.
    texts = {f"--{key}": text for key, text in form.items() if is_ours(key, text)}
    assert written(texts) == ({key: json.loads(text) for key, text in texts.items()}, [])


def test_empty_removes_and_absent_keeps() -> None:
    on_disk = {"cache_config": {"a": 1}, "datasets": [1]}
    assert settled(on_disk, {"cache_config": " \n"}, {})[0] == {"datasets": [1]}
    assert settled(on_disk, {"gh200_optimizations": '{"x": 1}'}, {})[0] == {
        **on_disk, "gh200_optimizations": {"x": 1},
    }  # fmt: skip


@pytest.mark.parametrize("text", ['{"a": }', "{'a': 1}", '{"a": NaN}', '{"a": 1, "a": 1}', "[" * 50_000, "nonsense"])
def test_broken_text_is_reported_and_never_taken(text: str) -> None:
    values, broken = settled({"cache_config": {"a": 1}}, {"cache_config": text}, {})
    assert values == {"cache_config": {"a": 1}} and list(broken) == ["cache_config"]
    with pytest.raises(BrokenBlock):
        parsed("cache_config", text)


def test_keeps_what_is_misspelt() -> None:
    config = {"--gh200_optimisations": {"a": 1}, "lora_rank": 4, "webhook_config": [{"a": 1}]}
    assert kept_of(config) == {"gh200_optimisations": {"a": 1}}


def test_what_an_open_tab_shows_is_what_a_form_says() -> None:
    form = FormData([("--cache_config", "1"), ("cache_config", "2"), ("--gh200_mine", "3"), ("--lora_rank", "4")])
    assert texts_in(form, {"gh200_mine": {}}) == {"cache_config": "2", "gh200_mine": "3"}
    removed = texts_in(form, {"gh200_optimizations": {}, "cache_config": {}, "gh200_mien": {}}, complete=True)
    assert removed == {"cache_config": "2", "gh200_optimizations": ""}


def test_a_field_changes_one_key_of_its_block() -> None:
    on_disk = {"cache_config": {"vae_cache_type": "disk", "mine": 1}, "datasets": []}
    form = FormData(
        [
            ("gh200_vae_cache_type", "unified_memory"),
            ("--gh200_text_cache_type", "disk"),
            ("gh200_target_effective_batch_size", "8"),
            ("gh200_batch_rampup_steps", "400"),
            ("gh200_enable_uvm_hints", "automatic"),
            ("gh200_preflight", "true"),
            ("gh200_managed_memory_targets", "optimizer"),
            ("gh200_managed_memory_targets", "ema"),
            ("gh200_memory_limit_gb", ""),
        ]
    )
    values, broken = settled(on_disk, {}, fields_in(form))
    assert not broken
    assert values == {
        "cache_config": {"vae_cache_type": "unified_memory", "mine": 1},
        "datasets": [],
        "gh200_optimizations": {
            "target_effective_batch_size": 8,
            "managed_memory_targets": ["optimizer", "ema"],
        },
    }


def test_an_emptied_field_removes_its_key_and_an_empty_block() -> None:
    on_disk = {"cache_config": {"memory_limit_gb": 4}}
    assert settled(on_disk, {}, {"gh200_memory_limit_gb": [""]}) == ({}, {})


def test_a_field_wins_over_an_unchanged_block_and_contradicts_a_changed_one() -> None:
    on_disk = {"gh200_optimizations": {"batch_rampup_steps": 5}}
    field = {"gh200_batch_rampup_steps": ["6"]}
    same = {"gh200_optimizations": '{"batch_rampup_steps": 5}'}
    assert settled(on_disk, same, field)[0] == {"gh200_optimizations": {"batch_rampup_steps": 6}}
    changed = {"gh200_optimizations": '{"batch_rampup_steps": 7}'}
    untouched = {"gh200_batch_rampup_steps": ["5"]}
    assert settled(on_disk, changed, untouched)[0] == {"gh200_optimizations": {"batch_rampup_steps": 7}}
    error = settled(on_disk, changed, field)[1]["gh200_batch_rampup_steps"]
    assert "6" in error.what and "gh200_optimizations.batch_rampup_steps is 7" in error.what and error.fix
    assert settled(on_disk, {"gh200_optimizations": ""}, untouched)[0] == {}, "removed in the JSON of the page"


def test_given_sizes_show_the_ramp_as_on() -> None:
    assert field_values({})["gh200_enable_batch_size_rampup"] is False
    shown = field_values({"--gh200_optimizations": {"target_effective_batch_size": 4}})
    assert shown["gh200_enable_batch_size_rampup"] is True


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("gh200_target_effective_batch_size", "0", "at least 1"),
        ("gh200_target_effective_batch_size", "many", "a whole number"),
        ("gh200_batch_rampup_table", "[[0, 1], [1", "not JSON"),
        ("gh200_uvm_access_pattern", "sideways", "gpu_first"),
    ],
)
def test_a_wrong_value_of_a_field_is_named(name: str, text: str, part: str) -> None:
    assert part in (problem_of_field(name, text) or "")


@pytest.mark.parametrize(("name", "text"), [("gh200_memory_limit_gb", ""), ("gh200_fast_start", "automatic")])
def test_an_empty_field_is_right(name: str, text: str) -> None:
    assert problem_of_field(name, text) is None


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


def saving(store: Store, revisions: Revisions | None = None, **form: str) -> None:
    check_save(FormData(form), store, (revisions or Revisions()).of(form))


def test_rejects_a_save_over_what_the_page_has_not_seen(tmp_path: Path) -> None:
    store, revisions = Store(tmp_path / "mine.json"), Revisions()
    store.path.write_text('{"learning_rate": 1}')
    seen = revisions.give({"name": "mine", "config": {"--learning_rate": 1.0}})["config"]["gh200_revision"]
    other = revisions.give({"name": "mine", "config": {"--learning_rate": 1.0}})["config"]["gh200_revision"]
    saving(store, revisions, gh200_revision=seen)
    saving(store, revisions)  # a client that is no page
    saving(store, revisions, gh200_revision="nonsense")
    store.path.write_text('{"learning_rate": 2}')
    with pytest.raises(HTTPException) as rejected:
        saving(store, revisions, **{"--gh200_revision": seen})
    assert rejected.value.status_code == 409 and "(learning_rate)" in rejected.value.detail
    for _ in range(2):
        saving(store, revisions, gh200_revision=seen)
    assert len(list(tmp_path.glob("mine.json.backup-*"))) == 2
    with pytest.raises(HTTPException):
        saving(store, revisions, gh200_revision=other)
    store.path.write_text('{"learning_rate": 3}')
    with pytest.raises(HTTPException):
        saving(store, revisions, gh200_revision=seen)


def test_rejects_a_save_into_another_config(tmp_path: Path) -> None:
    revisions = Revisions()
    seen = revisions.give({"name": "../hostile", "config": {}})["config"]["gh200_revision"]
    with pytest.raises(HTTPException, match="hostile"):
        saving(Store(tmp_path / "mine.json"), revisions, gh200_revision=seen)


def test_revisions_are_bounded() -> None:
    revisions = Revisions()
    numbers = [revisions.give({"name": "a", "config": {}})["config"]["gh200_revision"] for _ in range(300)]
    assert revisions.of({"gh200_revision": numbers[0]}) is None and revisions.of({"gh200_revision": numbers[-1]})


class Registry:
    """SimpleTuner's registry of fields, as far as it is used; the classes of its fields are made here."""

    def __init__(self) -> None:
        module = ModuleType("fake_fields")
        for name in ("ConfigField", "ValidationRule", "FieldDependency"):
            setattr(module, name, type(name, (SimpleNamespace,), {"__module__": "fake_fields"}))
        module.ConfigField.__init__ = lambda self, *given, **named: self.__dict__.update(  # type: ignore[attr-defined]
            zip(("name", "arg_name", "ui_label", "field_type"), given, strict=False), **named
        )
        module.ValidationRule.__init__ = lambda self, *given: self.__dict__.update(given=given)  # type: ignore[attr-defined]
        module.FieldDependency.__init__ = lambda self, field, **named: self.__dict__.update(field=field, **named)  # type: ignore[attr-defined]
        words = ("text", "number", "select", "checkbox", "text_json", "multi_select")
        module.FieldType = Enum("FieldType", {word.upper(): word for word in words})  # type: ignore[attr-defined]
        module.ImportanceLevel = Enum("ImportanceLevel", "IMPORTANT ADVANCED")  # type: ignore[attr-defined]
        module.ValidationRuleType = Enum("ValidationRuleType", "MIN MAX")  # type: ignore[attr-defined]
        sys.modules["fake_fields"] = module
        self._fields: dict[str, Any] = {"first": module.ConfigField("first")}

    def _add_field(self, field: Any) -> None:
        self._fields[field.name] = field


def test_every_key_is_a_field() -> None:
    registry = Registry()
    register_fields(registry)
    made = {name: field for name, field in registry._fields.items() if name != "first"}
    names = {f"gh200_{key}" for model in BLOCKS.values() for key in model.model_fields}
    assert made.keys() == names | BLOCK_KEYS | {"$schema"}
    assert {name: made[name].arg_name for name in BLOCK_KEYS} == {key: f"--{key}" for key in BLOCK_KEYS}
    assert {made[name].arg_name for name in names} == {None}
    for name in names:
        field = made[name]
        assert re.fullmatch(r"[A-Z(]\S*( [A-Z(]\S*| on)*", field.ui_label), field.ui_label
        assert len(field.help_text) <= 120 and field.tooltip and "\n" not in field.help_text
        assert (field.tab, field.section) in {("hardware", "gh200_memory"), ("training", "batch_ramp")}
        assert field.subsection == (None if keys()[name].basic else "advanced")
    ramp = [made[name] for name in names if "rampup_" in name or "effective" in name]
    for field in ramp:
        assert [rule.field for rule in field.dependencies] == ["gh200_enable_batch_size_rampup"], field.name
    assert made["gh200_target_effective_batch_size"].validation_rules[0].given[1] == 1


def test_flat_names_say_which_block_they_are_of() -> None:
    assert {name: flat_place(name, 1) for name in keys()} == {
        name: (key.block, key.name) for name, key in keys().items()
    }


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"origin": "http://here:1"}, False),
        ({"origin": "http://here:2"}, True),
        ({"origin": "https://there"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
    ],
)
def test_requests_that_name_another_site(headers: dict[str, str], foreign: bool) -> None:
    assert (foreign_site(Headers({"host": "here:1", **headers})) is not None) is foreign


def test_a_site_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_ORIGINS", "https://there, *")
    assert foreign_site(Headers({"host": "here", "origin": "https://there"})) is None
    assert foreign_site(Headers({"host": "here", "origin": "https://elsewhere"}))


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "here", "")))


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
    revisions = Revisions()
    seen = revisions.give({"name": "mine", "config": {}})["config"]["gh200_revision"]
    with pytest.raises(HTTPException, match="&lt;img src=x&gt;"):
        saving(store, revisions, gh200_revision=seen)


def test_in_memory_datasets_are_local_to_the_page(tmp_path: Path) -> None:
    store = Store(tmp_path / "mine.json")
    store.path.write_text("{}")
    entry = {"id": "p", "type": "in_memory", "instance_data_dir": "images", "in_memory": {"compression": "lz4"}}
    bare, other = {"id": "b", "type": "in_memory"}, {"id": "o", "type": "aws"}
    saved: list[Any] = []
    plan = SimpleNamespace(load=lambda: ([entry, bare, other], "disk", None), save=saved.extend)
    DatasetPlan(lambda: store).install(plan)
    shown, _, _ = plan.load()
    assert shown == [{**entry, "type": "local"}, {"id": "b", "type": "local", "in_memory": {}}, other]
    plan.save([*shown, {"id": "l", "type": "local"}])
    assert saved == [entry, {**bare, "in_memory": {}}, other, {"id": "l", "type": "local"}]


def test_inline_datasets_are_those_of_the_page(tmp_path: Path) -> None:
    store = Files(tmp_path / "mine.json")
    entry = {"id": "p", "type": "in_memory", "instance_data_dir": "images"}
    store._get_config_path("mine").write_text(json.dumps({"datasets": [entry], "lora_rank": 4}))
    plan = SimpleNamespace(load=lambda: ([], "default", None), save=pytest.fail)
    DatasetPlan(lambda: store).install(plan)
    assert plan.load()[0] == [{**entry, "type": "local", "in_memory": {}}]
    plan.save([{**entry, "type": "local", "in_memory": {"compression": "lz4"}}])
    assert json.loads(store.path.read_text()) == {
        "lora_rank": 4,
        "datasets": [{**entry, "in_memory": {"compression": "lz4"}}],
    }


def test_report_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_resolved", lambda root, directory: Path(directory) if directory else None)
    config = {
        "output_dir": str(tmp_path),
        "train_batch_size": 1,
        "gh200_optimizations": {"initial_effective_batch_size": 1, "target_effective_batch_size": 4, "batch_rampup_steps": 8},
    }  # fmt: skip
    before = live.run_report(None, config, "")
    assert (
        before["state"] == "No run yet" and "from 1 to 4" in before["ramp"].text and "no telemetry" in before["nothing"]
    )
    job = SimpleNamespace(
        job_id="j", status="running", started_at="2026-01-01T00:00:00+00:00", created_at=None, completed_at=None,
        error_message=None, metadata={"runtime_config": {"--output_dir": str(tmp_path)}},
    )  # fmt: skip
    assert live.run_report(job, config, "")["state"] == "Starting"
    record = Record(
        kind="interval", run="r", rank=0, ranks=1, host="h", pid=1, began=1.0, time=2.0, interval=10, step=3,
        window=WindowMetrics(accumulation_steps=2, effective_batch_size=2, schedule=[(0, 1), (3, 2)]),
    )  # fmt: skip
    append(path_of(tmp_path, 0), record.line())
    assert live.run_report(job, config, "")["state"] == "Starting", "these records are of a run before"
    assert live.run_report(None, config, "")["state"] == "Stopped without a last record"
    job.started_at = "1970-01-01T00:00:00+00:00"
    seen = live.run_report(job, {}, "")
    assert seen["state"] == "Training" and seen["ramp"].step == 3 and seen["telemetry"].ranks[0].latest.step == 3
    job.status, job.completed_at = "cancelled", "1970-01-01T00:00:05+00:00"
    ended = live.run_report(job, config, "")
    assert ended["state"] == "Stopped by you" and ended["until"].timestamp() == 5
    assert live.run_report(job, {"output_dir": str(tmp_path / "other")}, "")["state"] == "No run yet"
