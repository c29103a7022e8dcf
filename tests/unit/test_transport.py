"""How config blocks travel through upstream's flat command line, and how --config names a file (settings loaders)."""

from __future__ import annotations

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from simpletuner.gh200.errors import ConfigFileError
from simpletuner.gh200.settings import transport
from simpletuner.gh200.settings.train_command import train_command_line
from simpletuner.gh200.state import StateHooks

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _quiet_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])


def flattened(mapping: Any) -> list[str]:
    """A stand-in for the upstream function: nested values are lost, the rest becomes flags."""
    words = []
    for key, value in transport.outgoing_config(mapping).items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            words.append(f"--{key.lstrip('-')}={value}")
    return words


def travelled(mapping: dict[str, Any]) -> dict[str, Any]:
    rest = transport.incoming_arguments(flattened(mapping))
    assert rest is not None and not any("gh200" in word for word in rest)
    return StateHooks.get_raw_config()


def test_without_our_keys_every_argument_comes_back_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = {"model_family": "sdxl", "webhook_config": {"a": 1}, "data_backend_config": "x", "cache_config": None}
    words = ["--model_family=sdxl", "--data_backend", "file.json", "--lr", "1e-4"]
    assert transport.outgoing_config(mapping) is mapping
    assert transport.incoming_arguments(words) is words
    assert transport.incoming_arguments(None) is None
    assert transport.config_from_command_line(None) is None
    assert transport.config_from_command_line(mapping) is mapping
    assert transport.config_file_argument(["--max_train_steps=5"]) is None
    argv = ["simpletuner", "train", "--env", "x", "a=b"]
    assert train_command_line(argv) is argv


@pytest.mark.parametrize("prefix", ["", "--"])
def test_blocks_arrive_with_their_types(prefix: str) -> None:
    blocks = {"gh200_optimizations": {"a": [1, 2.5, None, "ü", True]}, "cache_config": {}, "use_gh200_trainer": False}
    raw = travelled({"model_family": "sdxl", **{prefix + key: value for key, value in blocks.items()}})
    assert raw == {"model_family": "sdxl", **blocks}


CONFIG = {
    "model_family": "sdxl", "train_batch_size": 4, "learning_rate": 1e-4, "gradient_checkpointing": True,
    "webhook_config": {"url": "{env:HOOK}", "levels": [1, 2]}, "validation_prompts": ["a", "b"], "empty": None,
}  # fmt: skip


@pytest.mark.parametrize("blocks", [{}, {"cache_config": {"cache_dir": "x"}}])
def test_warm_cache_raw_config_is_what_the_file_said(blocks: dict[str, Any]) -> None:
    raw = travelled({**CONFIG, **blocks})
    assert raw == {key: value for key, value in CONFIG.items() if value is not None} | blocks
    assert type(raw["train_batch_size"]) is int and raw["webhook_config"] == {"url": "{env:HOOK}", "levels": [1, 2]}


@pytest.mark.parametrize("beside", [{}, {"should_stop": print}], ids=["a file", "a job of upstream's server"])
def test_warm_cache_raw_config_reaches_another_process(beside: dict[str, Any]) -> None:
    words = flattened({**CONFIG, "cache_config": {"cache_dir": "x"}, **beside})
    StateHooks.remember_as_given({})
    transport.incoming_arguments(words)
    raw = StateHooks.get_raw_config()
    assert raw["train_batch_size"] == 4 and raw["validation_prompts"] == ["a", "b"] and transport.AS_GIVEN not in raw


def test_warm_cache_raw_config_of_another_config_is_not_mixed_in() -> None:
    transport.outgoing_config({"model_family": "flux", "train_batch_size": 9, "nested": {"a": 1}})
    transport.incoming_arguments(["--model_family=sdxl", "--train_batch_size=9"])
    assert StateHooks.get_raw_config() == {"model_family": "sdxl", "train_batch_size": "9"}


def test_json_text_is_a_block_too() -> None:
    assert travelled({"cache_config": '{"cache_dir": "x"}'})["cache_config"] == {"cache_dir": "x"}


def test_a_misspelt_block_is_carried_so_that_it_can_be_named() -> None:
    assert travelled({"gh200_optimisations": {"a": 1}})["gh200_optimisations"] == {"a": 1}


def test_one_key_in_two_spellings_is_an_error_text_not_a_silent_choice() -> None:
    raw = travelled({"cache_config": {"a": 1}, "--cache_config": {"a": 2}})
    assert "given twice" in raw["cache_config"]


def test_what_is_not_json_stays_visible() -> None:
    raw = travelled({"cache_config": {"when": date(2026, 1, 2), "dir": Path("x"), "more": (1, 2)}, "datasets": [print]})
    assert raw["cache_config"] == {"when": "2026-01-02", "dir": "x", "more": [1, 2]}
    assert "cannot be written as JSON" in raw["datasets"]


def test_placeholders_are_resolved_before_quotes_can_break_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", 'a"b\\c{env:OTHER}')
    packed = transport.outgoing_config({"cache_config": {"cache_dir": "{env:WHERE}/x"}})
    assert "{env:" not in str(packed)
    assert (
        travelled({"cache_config": {"cache_dir": "{env:WHERE}/x"}})["cache_config"]["cache_dir"]
        == 'a"b\\c{env:OTHER}/x'
    )


def test_long_blocks_travel_by_a_private_file_that_goes_away() -> None:
    datasets = [{"id": str(index), "path": "p" * 1000} for index in range(10_000)]
    (word,) = flattened({"datasets": datasets})
    file = Path(word.partition("=@")[2])
    assert len(word) < 300 and file.stat().st_mode & 0o777 == 0o600
    rest = transport.incoming_arguments([word])
    assert StateHooks.get_raw_config()["datasets"] == datasets
    assert rest == [f"--data_backend_config={transport.INLINE_PLACEHOLDER}"]
    assert not file.exists()


def test_another_process_leaves_the_file_to_the_other_ranks(tmp_path: Path) -> None:
    file = tmp_path / f"gh200-{os.getpid() + 1}-x.json"
    file.write_text('{"cache_config": {"a": 1}}')
    transport.incoming_arguments([f"--{transport.BUNDLE}=@{file}"])
    assert file.exists() and StateHooks.get_raw_config()["cache_config"] == {"a": 1}


@pytest.mark.parametrize("value", ["@/no/such/file", "nonsense", "[1]"])
def test_a_broken_bundle_ends_the_process(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        transport.incoming_arguments([f"--{transport.BUNDLE}={value}"])
    assert ended.value.code == 2 and value in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ['--cache_config={"a": "b c", "d": [1]}', "--x=1"],
        ["--cache_config", '{"a": "b c", "d": [1]}', "--x=1"],
        ["--x=1", """--cache_config='{"a": "b c", "d": [1]}'"""],
        ['--cache_config={"a":', '"b', 'c",', '"d":', "[1]}", "--x=1"],
        ["--x=1", '--cache_config=\'{"a":', '"b', 'c",', '"d":', "[1]}'"],
    ],
)
def test_blocks_on_the_command_line_and_in_cut_extra_arguments(words: list[str]) -> None:
    assert transport.incoming_arguments(words) == ["--x=1"]
    assert StateHooks.get_raw_config() == {"x": "1", "cache_config": {"a": "b c", "d": [1]}}


def test_broken_json_is_kept_whole_for_the_error() -> None:
    assert transport.incoming_arguments(['--cache_config={"a":', "b", "c", "--x=1"]) == ["--x=1"]
    assert StateHooks.get_raw_config()["cache_config"] == '{"a": b c'


def test_command_line_without_a_list_is_the_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--use_gh200_trainer", "--x", "1"])
    assert transport.incoming_arguments(None) == ["--x", "1"]
    assert StateHooks.get_raw_config() == {"x": "1", "use_gh200_trainer": True}
    assert StateHooks.get_raw_config_origins() == {"use_gh200_trainer": "command line"}


def test_our_flags_count_beside_a_config_file_that_upstream_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", '--cache_config={"cache_dir": "flag"}', "--ignored=1"])
    words = flattened({"cache_config": {"cache_dir": "file"}, "model_family": "sdxl"})
    assert transport.incoming_arguments(words) == ["--model_family=sdxl"]
    assert StateHooks.get_raw_config()["cache_config"] == {"cache_dir": "flag"}


def test_upstreams_short_form_of_its_own_dataset_file_is_left_alone() -> None:
    words = ["--data_backend", "file.json", "--cache_config={}"]
    assert transport.incoming_arguments(words) == ["--data_backend", "file.json"]
    words = ['--data_backend={"type": "in_memory"}']
    assert transport.incoming_arguments(words) == [f"--data_backend_config={transport.INLINE_PLACEHOLDER}"]


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    config = {"--max_train_steps": 5, "model_family": "sdxl", "cache_config": {"cache_dir": "a"}, "use_ema": True}
    file = tmp_path / "my.json"
    file.write_text(json.dumps(config))
    typed = ["--max_train_steps", "7", "--use_ema=false", '--gh200_optimizations={"enable_uvm_hints": true}']
    loaded = transport.command_line_config(["--config", str(file), *typed])
    assert loaded is not None
    assert transport.incoming_arguments(flattened(loaded)) == [
        "--model_family=sdxl",
        "--max_train_steps",
        "7",
        "--use_ema=false",
    ]
    assert StateHooks.get_raw_config()["cache_config"] == {"cache_dir": "a"}
    assert StateHooks.get_raw_config_origins() == {
        "cache_config": f"config file {file}",
        "gh200_optimizations": "command line",
    }


def test_a_file_without_our_keys_leaves_no_trace_of_us(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text('model_family = "sdxl"\n')
    loaded = transport.command_line_config([f"--config={file}"])
    assert transport.incoming_arguments(flattened(loaded)) == ["--model_family=sdxl"]
    assert StateHooks.get_raw_config() == {"model_family": "sdxl"}


BAD_FILES = {
    "empty.json": (b"  \n", "empty"),
    "binary.json": (bytes(range(256)), "not UTF-8"),
    "latin.toml": ('a = "\xe9"'.encode("latin-1"), "not UTF-8"),
    "cut.json": (b'{"a": ', "cannot be parsed"),
    "cut.toml": (b"a = [", "cannot be parsed"),
    "list.json": (b"[1, 2]", "not a block of keys"),
    "twice.json": (b'{"a": 1, "a": 2}', 'the key "a" is given twice'),
    "both.json": (b'{"a": 1, "--a": 2}', "are the same key"),
    "deep.json": (b"[" * 100_000, "cannot be parsed"),
    "kind.yaml": (b"a: 1", ".json or .toml"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    content, expected = BAD_FILES[name]
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigFileError) as caught:
        transport.command_line_config(["--config", str(file)])
    assert expected in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    "words", [["--config"], ["--config="], ["--config", "--x"], ["--config=a.json", "--config=b.json"]]
)
def test_a_config_flag_without_one_file_is_an_error(words: list[str]) -> None:
    with pytest.raises(ConfigFileError, match="--config"):
        transport.command_line_config(words)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        target = path if path.suffix else path / "folder.json"
        if not path.suffix:
            target.mkdir()
        with pytest.raises(ConfigFileError, match="cannot be read"):
            transport.command_line_config(["--config", str(target)])


def test_loaders_and_launcher_end_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "no/such.json"])
    for call in (
        lambda: transport.config_from_command_line(None),
        lambda: transport.config_file_argument(sys.argv[1:]),
    ):
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 2 and "no/such.json" in capfd.readouterr().err


def test_help_and_given_arguments_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "no/such.json", "--help"])
    assert transport.config_from_command_line(None) is None
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "no/such.json"])
    given_config = {"a": 1}
    assert transport.config_from_command_line(given_config) is given_config


def test_train_command_takes_the_flags_of_train_py() -> None:
    argv = [
        "simpletuner",
        "--ssl",
        "train",
        "--config",
        "my.json",
        "--env",
        "e",
        "--steps=5",
        "--flag",
        "--json",
        '{"a": "=b"}',
        "k=v",
    ]
    expected = [
        "simpletuner",
        "--ssl",
        "train",
        "--env",
        "e",
        "config=my.json",
        "steps=5",
        "flag",
        'json={"a": "=b"}',
        "k=v",
    ]
    assert train_command_line(argv) == expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@hypothesis_settings(max_examples=300, deadline=None)
@given(block=st.dictionaries(st.text(max_size=6), JSON_VALUES, max_size=4), cut=st.booleans())
def test_any_block_arrives_as_it_was_sent(block: dict[str, Any], cut: bool) -> None:
    if "{env:" not in json.dumps(block):
        assert travelled({"gh200_optimizations": block})["gh200_optimizations"] == block
    words = [f"--gh200_optimizations={json.dumps(block)}", "--x=1"]
    if cut and "  " not in words[0]:
        words = " ".join(words).split(" ")
    assert transport.incoming_arguments(words) == ["--x=1"]
    assert StateHooks.get_raw_config()["gh200_optimizations"] == block
