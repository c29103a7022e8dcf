"""The settings: every source read into one object, every mistake named, nothing dropped."""

from __future__ import annotations

import dataclasses
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gh200_lab.pages import settings as settings_docs
from simpletuner.gh200 import runtime as runtime
from simpletuner.gh200.config import keys
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.schema import ENVIRONMENT, CacheConfig, InMemory, Optimizations, Settings, TrainingConfig
from simpletuner.gh200.config.sources import read_settings
from simpletuner.gh200.memory.driver import DriverUnavailable
from simpletuner.gh200.preflight import output_lock
from simpletuner.gh200.runtime import end
from simpletuner.gh200.state import StateHooks
from simpletuner.gh200.trainer import TrainerHooks

DOCUMENTED: dict[str, Any] = {
    "cache_config": {
        "vae_cache_type": "unified_memory",
        "text_cache_type": "unified_memory",
        "cache_dir": "cache/gh200",
        "persistent_cache": True,
    },
    "gh200_optimizations": {
        "enable_uvm_hints": True,
        "enable_batch_size_rampup": True,
        "initial_effective_batch_size": 4,
        "target_effective_batch_size": 32,
        "batch_rampup_steps": 400,
    },
}


@pytest.fixture(autouse=True)
def _clean_state() -> Any:
    yield
    StateHooks.set_raw_config(None)
    StateHooks.set_gh200_runtime_config(None)


def problems(raw: dict[str, Any], environ: dict[str, str] | None = None, **more: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read_settings(raw, environ or {}, **more)
    return [str(problem) for problem in caught.value.problems]


def test_documented_config_is_read_as_written() -> None:
    found = read_settings(DOCUMENTED, {})
    assert found.caches.model_dump(exclude_unset=True) == DOCUMENTED["cache_config"]
    assert found.optimizations.model_dump(exclude_unset=True) == DOCUMENTED["gh200_optimizations"]
    assert found.uses_unified_memory("vae") and found.uses_unified_memory("text")


def test_keys_that_are_upstreams_too_stay_upstreams() -> None:
    assert not read_settings({"cache_dir": "cache", "prefetch": "true"}, {}).asked


def test_nothing_given_means_nothing_asked() -> None:
    found = read_settings({"model_family": "sdxl", "train_batch_size": "4"}, {"PATH": "/bin"})
    assert not found.asked
    assert found.caches == CacheConfig() and found.optimizations == Optimizations()


def test_result_cannot_be_changed() -> None:
    found = read_settings(DOCUMENTED, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.notes = ()  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        found.caches.cache_dir = "other"
    with pytest.raises(TypeError):
        found.origins["x"] = "y"  # type: ignore[index]


@pytest.mark.parametrize(
    ("raw", "environ", "hints", "origin"),
    [
        (
            {"gh200_optimizations": {"enable_uvm_hints": False}},
            {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "1"},
            False,
            "training config",
        ),
        (
            {"cache_config": {"vae_cache_type": "unified_memory"}},
            {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "0"},
            True,
            "cache_config.vae_cache_type",
        ),
        (
            {},
            {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": "1"},
            True,
            "environment variable SIMPLETUNER_GH200_ENABLE_UVM_HINTS",
        ),
        ({}, {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": ""}, False, "default"),
        ({"use_gh200_trainer": True}, {}, True, 'training config, older spelling "use_gh200_trainer"'),
    ],
)
def test_precedence_of_the_hint_switch(raw: dict[str, Any], environ: dict[str, str], hints: bool, origin: str) -> None:
    found = read_settings(raw, environ)
    assert found.optimizations.enable_uvm_hints is hints
    assert found.origins["gh200_optimizations.enable_uvm_hints"] == origin


def test_hints_off_use_upstreams_caches_with_a_note() -> None:
    raw = {"cache_config": {"vae_cache_type": "unified_memory"}, "gh200_optimizations": {"enable_uvm_hints": False}}
    found = read_settings(raw, {})
    assert not found.uses_unified_memory("vae")
    assert any("cache_config.vae_cache_type has no effect" in note for note in found.notes)


def test_environment_fills_what_the_config_leaves_out() -> None:
    environ = {"GH200_UVM_OVERSUBSCRIPTION_RATIO": "2.5", "GH200_UVM_ACCESS_PATTERN": "balanced"}
    found = read_settings({"gh200_optimizations": {"uvm_access_pattern": "cpu_first"}}, environ)
    assert found.optimizations.uvm_oversubscription_ratio == 2.5
    assert found.optimizations.uvm_access_pattern == "cpu_first"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            {"gh200_optimizations": {"enable_uvm_hint": True}},
            ["gh200_optimizations.enable_uvm_hint: unknown key", '"enable_uvm_hints"'],
        ),
        (
            {"cache_config": {"vae_cache_type": "ram"}},
            ["cache_config.vae_cache_type", '"disk", "unified_memory"', '"ram"'],
        ),
        ({"cache_config": {"vae_cache_type": "unified-memory"}}, ['Did you mean "unified_memory"?']),
        ({"cache_config": {"memory_limit_gb": -1}}, ["cache_config.memory_limit_gb", "above 0", "-1"]),
        ({"cache_config": {"memory_limit_gb": float("nan")}}, ["cache_config.memory_limit_gb", "above 0"]),
        ({"cache_config": {"memory_limit_gb": True}}, ["cache_config.memory_limit_gb", "a number"]),
        (
            {"gh200_optimizations": {"target_effective_batch_size": 0}},
            ["target_effective_batch_size", "at least 1", "got 0"],
        ),
        (
            {"gh200_optimizations": {"initial_effective_batch_size": 4.5}},
            ["initial_effective_batch_size", "a whole number"],
        ),
        ({"gh200_optimizations": {"initial_effective_batch_size": "many"}}, ["initial_effective_batch_size", '"many"']),
        ({"gh200_optimizations": {"batch_rampup_increment": 4}}, ["batch_rampup_increment", "batch_rampup_table"]),
        ({"gh200_optimizations": [1]}, ["gh200_optimizations: must be a block of keys", "[1]"]),
        ({"gh200_optimizations": "not json"}, ["gh200_optimizations: must be a block of keys", '"not json"']),
        (
            {"gh200_optimizations": {"--enable_uvm_hints": True, "enable_uvm_hints": False}},
            ["enable_uvm_hints: given twice"],
        ),
        (
            {"gh200_optimisations": {"enable_uvm_hints": True}},
            ["gh200_optimisations: unknown block", '"gh200_optimizations"'],
        ),
        ({"target_effective_batch_size": 8}, ['target_effective_batch_size: belongs inside the block "gh200_opt']),
        ({"vae_cache_type": "disk"}, ['vae_cache_type: belongs inside the block "cache_config"']),
        ({"use_gh200_trainer": "perhaps"}, ["use_gh200_trainer: must be true or false", '"perhaps"']),
        (
            {"initial_effective_batch_size": -4},
            ["initial_effective_batch_size: must be a whole number, at least 1", "-4"],
        ),
        (
            {"initial_effective_batch_size": 4, "gh200_optimizations": {"initial_effective_batch_size": 8}},
            ["initial_effective_batch_size: 4 here, but gh200_optimizations.initial_effective_batch_size says 8"],
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_the_way_out(raw: dict[str, Any], expected: list[str]) -> None:
    text = "\n".join(problems(raw))
    assert [part for part in expected if part not in text] == []


def test_an_environment_mistake_names_the_variable() -> None:
    (problem,) = problems({}, {"GH200_UVM_ACCESS_PATTERN": "gpu"})
    assert problem.startswith("environment variable GH200_UVM_ACCESS_PATTERN: ") and '"gpu_first"' in problem


def test_a_misspelt_variable_is_noted() -> None:
    found = read_settings({}, {"GH200_UVM_ACCES_PATTERN": "gpu_first"})
    assert found.asked and '"GH200_UVM_ACCESS_PATTERN"' in found.notes[0]


def test_all_mistakes_are_shown_at_once_and_readably() -> None:
    raw = {"gh200_optimizations": {"a": 1, "b": 2}, "cache_config": {"cache_dir": ""}, "datasets": []}
    with pytest.raises(SettingsError) as caught:
        read_settings(raw, {"GH200_UVM_OVERSUBSCRIPTION_RATIO": "0"})
    assert len(caught.value.problems) == 5
    lines = str(caught.value).splitlines()
    assert "5 problems" in lines[0] and "fix:" in lines[-1]


@pytest.mark.parametrize("value", ["4", 4.0, "4.0", 4])
def test_numbers_written_as_text_are_accepted_where_nothing_is_lost(value: object) -> None:
    found = read_settings({"gh200_optimizations": {"initial_effective_batch_size": value}}, {})
    assert found.optimizations.initial_effective_batch_size == 4
    assert found.optimizations.enable_batch_size_rampup


def test_a_downward_ramp_is_accepted_and_noted() -> None:
    raw = {"gh200_optimizations": {"initial_effective_batch_size": 32, "target_effective_batch_size": 4}}
    found = read_settings(raw, {})
    assert any("goes down" in note for note in found.notes)
    assert any("400 micro-batches" in note for note in found.notes)


def test_oldest_recipe() -> None:
    raw = {
        "use_gh200_trainer": True,
        "initial_effective_batch_size": 4,
        "data_backend": {"type": "in_memory", "instance_data_dir": "/data/cats"},
    }
    found = read_settings(raw, {})
    assert found.optimizations.enable_batch_size_rampup and found.optimizations.enable_uvm_hints
    assert dict(found.in_memory) == {"cats": InMemory()}
    assert json.loads(found.inline_datasets or "") == [{"id": "cats", **raw["data_backend"]}]
    assert sum("older spelling" in note for note in found.notes) == 3


OFF = [False, 0, "false", "False", "0", "no", "n", "off", "f", "F"]
ON = [True, 1, "true", "True", "1", "yes", "y", "on", "t", "T"]


@pytest.mark.parametrize("word", OFF)
def test_older_switch_off_turns_the_ramp_off_too(word: object) -> None:
    found = read_settings({"use_gh200_trainer": word, "initial_effective_batch_size": 4}, {})
    assert not found.optimizations.enable_batch_size_rampup and not found.optimizations.enable_uvm_hints


@pytest.mark.parametrize(("word", "means"), [*((word, False) for word in OFF), *((word, True) for word in ON)])
def test_a_word_means_the_same_wherever_it_is_written(word: object, means: bool) -> None:
    unified = {"cache_config": {"vae_cache_type": "unified_memory"}}
    block = {"gh200_optimizations": {"enable_uvm_hints": word}}
    in_block = read_settings(unified | block, {})
    older = read_settings({"use_gh200_trainer": word}, {})
    variable = read_settings({}, {"SIMPLETUNER_GH200_ENABLE_UVM_HINTS": str(word)})
    assert {found.optimizations.enable_uvm_hints for found in (in_block, older, variable)} == {means}
    assert any("has no effect" in note for note in in_block.notes) is not means
    # The same said twice in other words is no contradiction.
    assert read_settings({"use_gh200_trainer": means} | block, {}).optimizations.enable_uvm_hints is means
    with pytest.raises(SettingsError, match="remove one"):
        read_settings({"use_gh200_trainer": not means} | block, {})


def test_a_size_said_twice_in_other_words_is_no_contradiction() -> None:
    raw = {"initial_effective_batch_size": "4", "gh200_optimizations": {"initial_effective_batch_size": 4}}
    assert read_settings(raw, {}).optimizations.initial_effective_batch_size == 4


def test_inline_datasets_and_their_blocks() -> None:
    block = {
        "compression": "lz4",
        "num_workers": 64,
        "memory_limit_gb": 200,
        "on_limit": "partial",
        "release_after_cache": True,
    }
    datasets = [
        {"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": block, "crop": True},
        {"id": "b", "dataset_type": "text_embeds"},
    ]
    found = read_settings({"datasets": datasets}, {})
    assert found.in_memory["a"].model_dump(include=set(block)) == block
    assert json.loads(found.inline_datasets or "") == datasets


@pytest.mark.parametrize(
    ("datasets", "expected"),
    [
        ([], "datasets: must be a list"),
        ({"id": "a"}, "datasets: must be a list"),
        ([5], "datasets[0]: must be a block of keys"),
        ([{"type": "local"}], "datasets[0].id: must be text"),
        ([{"id": "a"}, {"id": "a"}], 'datasets[1].id: "a" is the id of datasets[0]'),
        ([{"id": "a", "type": "in-memory"}], 'Did you mean "in_memory"?'),
        ([{"id": "a", "type": "local", "in_memory": {}}], "datasets[0].in_memory: only has a meaning"),
        ([{"id": "a", "type": "in_memory"}], "datasets[0].instance_data_dir: missing"),
        (
            [{"id": "a", "type": "in_memory", "instance_data_dir": "x", "compression": "lz4"}],
            "datasets[0].compression: belongs",
        ),
        (
            [{"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memroy": {}}],
            "datasets[0].in_memroy: unknown block",
        ),
        ([{"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": {"compression": "lzma"}}], '"zstd"'),
        (
            [{"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": []}],
            "datasets[0].in_memory: must be a block",
        ),
        ([{"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": {"num_workers": 0}}], "at least 1"),
    ],
)
def test_dataset_mistakes(datasets: object, expected: str) -> None:
    assert expected in "\n".join(problems({"datasets": datasets}))


def test_upstreams_own_memory_type_is_left_alone() -> None:
    assert not read_settings({"datasets": [{"id": "a", "type": "memory"}]}, {}).in_memory


def test_inline_and_file_together_say_which_to_remove() -> None:
    (problem,) = problems({"datasets": [{"id": "a"}], "data_backend_config": "x.json"})
    assert "remove one" in problem and "data_backend_config" in problem and "datasets" in problem


def test_blocks_in_the_dataset_file_are_checked_too() -> None:
    entries: list[object] = [
        {"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": {"compresion": "lz4"}}
    ]
    (problem,) = problems({}, dataset_file=entries)
    assert problem.startswith("data_backend_config[0].in_memory.compresion: unknown key") and '"compression"' in problem


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def _blocks(model: Any) -> st.SearchStrategy[Any]:
    known = st.dictionaries(st.sampled_from(sorted(model.model_fields)), JSON_VALUES, max_size=4)
    return (
        JSON_VALUES
        | known
        | st.builds(lambda a, b: a | b, known, st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=2))
    )


DATASETS = JSON_VALUES | st.lists(
    st.fixed_dictionaries(
        {"id": st.text(max_size=3), "type": st.sampled_from(["in_memory", "local"])},
        optional={"in_memory": _blocks(InMemory), "instance_data_dir": st.just("x")},
    ),
    max_size=3,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cache_config": _blocks(CacheConfig),
        "gh200_optimizations": _blocks(Optimizations),
        "datasets": DATASETS,
        "data_backend": JSON_VALUES,
        "use_gh200_trainer": JSON_VALUES,
        "initial_effective_batch_size": JSON_VALUES,
        "data_backend_config": st.none() | st.text(max_size=4),
    },
)
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(sorted(ENVIRONMENT)), st.text(max_size=6).filter(lambda text: "\0" not in text)
)


@hypothesis_settings(max_examples=400, deadline=None)
@given(raw=CONFIGS, environ=ENVIRONMENTS)
def test_any_mapping_gives_settings_or_an_error_that_names_a_key(raw: dict[str, Any], environ: dict[str, str]) -> None:
    try:
        found = read_settings(raw, environ)
    except SettingsError as error:
        places = {*keys.BLOCK_KEYS, keys.DATASETS_FILE_KEY, *(f"environment variable {name}" for name in environ)}
        assert error.problems
        for problem in error.problems:
            assert any(problem.path == place or problem.path.startswith((f"{place}.", f"{place}[")) for place in places)
        return
    _nothing_was_dropped(raw, found)


def _nothing_was_dropped(raw: dict[str, Any], found: Settings) -> None:
    for name, model in (("cache_config", found.caches), ("gh200_optimizations", found.optimizations)):
        for key, value in (raw.get(name) or {}).items():
            plain = keys.plain_key(key)
            if value is not None:
                assert plain in model.model_fields_set and found.origins[f"{name}.{plain}"] == "training config"
    if raw.get("datasets") is not None:
        assert json.loads(found.inline_datasets or "null") == json.loads(json.dumps(raw["datasets"]))


def _trainer(tmp_path: Any) -> Any:
    trainer = TrainerHooks()
    trainer.config = SimpleNamespace(output_dir=str(tmp_path / "out"), data_backend_config=None)
    return trainer


def test_runtime_config_has_what_is_on_and_why_not(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    absent = DriverUnavailable("there is no CUDA driver")
    monkeypatch.setattr("simpletuner.gh200.runtime.load_driver", lambda: absent)
    StateHooks.set_raw_config(
        {"gh200_optimizations": {"enable_uvm_hints": True}}, {"gh200_optimizations": "config file x.json"}
    )
    with caplog.at_level(logging.INFO):
        _trainer(tmp_path)._configure_gh200_runtime()
    reported = StateHooks.get_gh200_runtime_config()
    assert reported["values"]["gh200_optimizations.enable_uvm_hints"] == {"value": True, "origin": "config file x.json"}
    assert reported["unavailable"] == {runtime.HINTS: "there is no CUDA driver"}
    current = runtime.current()
    assert current is not None
    current.report_on(runtime.HINTS, "gpu_first")
    reported = StateHooks.get_gh200_runtime_config()
    assert reported["on"][runtime.HINTS] == "gpu_first" and not reported["unavailable"]
    (record,) = [record for record in caplog.records if record.name == "gh200.settings"]
    assert "enable_uvm_hints = True  (config file x.json)" in record.getMessage()
    json.dumps(reported)


def test_trainer_does_nothing_without_a_setting(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    end()
    caplog.clear()
    trainer = _trainer(tmp_path)
    trainer.config.data_backend_config = object()
    before = dict(vars(trainer.config))
    StateHooks.set_raw_config({"model_family": "sdxl"})
    trainer._configure_gh200_runtime(True)
    trainer._start_gh200_features()
    trainer._apply_dynamic_gradient_accumulation()
    assert vars(trainer.config) == before and not caplog.records and not list(tmp_path.iterdir())
    assert StateHooks.get_gh200_runtime_config() == {} and trainer.gh200_ramp_scheduler is None


def test_trainer_raises_our_error_or_ends_the_process(tmp_path: Any, capfd: pytest.CaptureFixture[str]) -> None:
    StateHooks.set_raw_config({"gh200_optimizations": {"enable_uvm_hint": True}})
    with pytest.raises(SettingsError):
        _trainer(tmp_path)._configure_gh200_runtime()
    with pytest.raises(SystemExit) as ended:
        _trainer(tmp_path)._configure_gh200_runtime(exit_on_error=True)
    assert ended.value.code == 2
    assert 'Did you mean "enable_uvm_hints"?' in capfd.readouterr().err
    assert not list(tmp_path.iterdir()) and StateHooks.get_gh200_runtime_config() == {}


def test_ten_megabytes_of_inline_datasets_reach_upstreams_file(tmp_path: Any) -> None:
    datasets = [{"id": f"d{index}", "type": "local", "instance_data_dir": "x" * 1000} for index in range(10_000)]
    # Preflight would say that none of these directories is there.
    StateHooks.set_raw_config({"datasets": datasets, "gh200_optimizations": {"preflight": False}})
    trainer = _trainer(tmp_path)
    trainer._configure_gh200_runtime()
    with open(trainer.config.data_backend_config, encoding="utf-8") as file:
        assert json.load(file) == datasets
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"gh200_datasets.json", output_lock.NAME}


def test_documents_are_in_step_with_the_models() -> None:
    assert settings_docs.main(["--check"]) == 0, settings_docs.COMMAND


def test_stale_documents_are_noticed(tmp_path: Any) -> None:
    assert settings_docs.main(["--write", "--into", str(tmp_path)]) == 0
    (tmp_path / settings_docs.PAGE_FILE).write_text("old")
    assert settings_docs.main(["--check", "--into", str(tmp_path)]) == 1


def test_key_names_agree_and_every_field_is_described() -> None:
    assert set(TrainingConfig.model_fields) == keys.BLOCK_KEYS
    for model in (*settings_docs.SECTIONS.values(), TrainingConfig):
        assert all(field.description for field in model.model_fields.values())


def test_removed_keys_of_a_dataset_have_no_effect_and_are_named() -> None:
    block = {"compression": "lz4", "partial_order": "smallest", "patience_seconds": 5}
    entry = {"id": "a", "type": "in_memory", "instance_data_dir": "x", "in_memory": block}
    settings = read_settings({"datasets": [entry]}, {})
    assert settings.in_memory["a"].compression == "lz4"
    assert [key for key in ("partial_order", "patience_seconds") if any(key in note for note in settings.notes)] == [
        "partial_order",
        "patience_seconds",
    ]
