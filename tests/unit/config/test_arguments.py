"""How a config becomes command-line arguments and is found again, and how --config names a file (settings loaders)."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from simpletuner.gh200.config import arguments
from simpletuner.gh200.config.problems import SettingsError
from simpletuner.gh200.config.train_arguments import command_arguments, train_command_line
from simpletuner.gh200.errors import ConfigFileError, RejectedConfig
from simpletuner.gh200.preflight.startup import take_config_flag
from simpletuner.gh200.state import StateHooks


@pytest.fixture(autouse=True)
def _quiet_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(StateHooks, "_gh200_arguments", ([], {}))
    monkeypatch.setattr(StateHooks, "_gh200_config_file", (None, {}))


def flattened(mapping: Any) -> list[str]:
    """A fake of the upstream function: nested values are lost, the rest becomes flags."""
    words = [
        f"--{key.lstrip('-')}={value}"
        for key, value in mapping.items()
        if isinstance(value, (str, int, float)) and not isinstance(value, bool)
    ]
    return arguments.config_arguments(mapping, words)


def travelled(mapping: dict[str, Any]) -> dict[str, Any]:
    """The raw config in the process that made the arguments."""
    arguments.incoming_arguments(flattened(mapping))
    return StateHooks.get_raw_config()


def received(mapping: dict[str, Any]) -> dict[str, Any]:
    """The raw config in the process of a job."""
    words = flattened(mapping)
    StateHooks.set_arguments([], {})
    arguments.incoming_arguments(words)
    return StateHooks.get_raw_config()


def test_without_our_keys_every_argument_comes_back_as_it_is() -> None:
    mapping = {"model_family": "sdxl", "webhook_config": {"a": 1}, "data_backend_config": "x", "cache_config": None}
    words = ["--model_family=sdxl", "--lr", "1e-4"]
    assert arguments.config_arguments(mapping, words) is words
    assert arguments.incoming_arguments(words) is words
    assert arguments.incoming_arguments(None) is None
    arguments.take_config_flag()
    assert sys.argv == ["train.py"]
    argv = ["simpletuner", "train", "--env", "x", "a=b"]
    assert train_command_line(argv) is argv


@pytest.mark.parametrize("prefix", ["", "--"])
@pytest.mark.parametrize("way", [travelled, received])
def test_blocks_arrive_with_their_types(prefix: str, way: Any) -> None:
    blocks = {
        "gh200_optimizations": {"preflight": True, "enable_uvm_hints": None}, "cache_config": {},
        "use_gh200_trainer": False, "datasets": [{"id": "ü", "a": [1, 2.5, None, {"b": "c d"}]}],
    }  # fmt: skip
    raw = way({"model_family": "sdxl", **{prefix + key: value for key, value in blocks.items()}})
    assert raw == {"model_family": "sdxl", **blocks}


CONFIG = {
    "model_family": "sdxl", "train_batch_size": 4, "learning_rate": 1e-4, "gradient_checkpointing": True,
    "webhook_config": {"url": "{env:HOOK}", "levels": [1, 2]}, "validation_prompts": ["a", "b"], "empty": None,
}  # fmt: skip


@pytest.mark.parametrize("blocks", [{}, {"cache_config": {"cache_dir": "x"}}])
def test_raw_config_is_what_the_file_said(blocks: dict[str, Any]) -> None:
    raw = travelled({**CONFIG, **blocks})
    assert raw == {key: value for key, value in CONFIG.items() if value is not None} | blocks
    assert type(raw["train_batch_size"]) is int and raw["webhook_config"] == {"url": "{env:HOOK}", "levels": [1, 2]}


def test_raw_config_reaches_another_process() -> None:
    raw = received({**CONFIG, "cache_config": {"cache_dir": "x"}, "should_stop": print})
    assert raw["train_batch_size"] == "4" and raw["cache_config"] == {"cache_dir": "x"}
    parsed = Namespace(train_batch_size=4, learning_rate=1e-4, model_family="sdxl", cache_config="{}")
    assert arguments.typed_config(raw, parsed)["train_batch_size"] == 4
    arguments.remove_blocks(parsed, dict.fromkeys(vars(parsed), 1))
    assert not hasattr(parsed, "cache_config") and parsed.model_family == "sdxl"


def test_a_key_given_by_a_part_of_its_name_is_an_error() -> None:
    """SimpleTuner's parser accepts `--gh200_opt=...`, and nobody would find the value."""
    parsed = Namespace(gh200_optimizations='{"enable_uvm_hints": true}', cache_config=None)
    with pytest.raises(SettingsError, match="gh200_optimizations: was given by a part of its name"):
        arguments.remove_blocks(parsed, {"gh200_opt": "{}"})


def test_the_same_block_as_text_and_as_a_block_is_one() -> None:
    same = {"cache_config": {"cache_dir": "x"}, "--cache_config": '{"cache_dir": "x"}'}
    assert arguments.blocks_of(same) == {"cache_config": {"cache_dir": "x"}}


def test_raw_config_of_another_config_is_not_mixed_in() -> None:
    arguments.config_arguments({"model_family": "flux", "nested": {"a": 1}}, ["--model_family=flux"])
    arguments.incoming_arguments(["--model_family=sdxl", "--train_batch_size=9"])
    assert StateHooks.get_raw_config() == {"model_family": "sdxl", "train_batch_size": "9"}


def test_json_text_is_a_block_too() -> None:
    assert travelled({"cache_config": '{"cache_dir": "x"}'})["cache_config"] == {"cache_dir": "x"}


WRONG: dict[str, dict[str, Any]] = {
    "gh200_optimisations: unknown block": {"gh200_optimisations": {"a": 1}},
    "given twice": {"cache_config": {"cache_dir": "a"}, "--cache_config": {"cache_dir": "b"}},
    "cannot be written as JSON": {"datasets": [print]},
    "cache_config: must be a block": {"cache_config": "false"},
    "gh200_optimizations: must be a block": {"gh200_optimizations": True},
    "datasets: must be a list": {"datasets": {"id": "a"}},
    "gh200_optimizations.enable_uvm_hint: unknown key": {"gh200_optimizations": {"enable_uvm_hint": 1}},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_block_stops_before_it_becomes_arguments(message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        flattened(WRONG[message])


def test_values_of_toml_and_python_become_json() -> None:
    raw = travelled({"datasets": [{"id": "a", "when": date(2026, 1, 2), "dir": Path("x"), "more": (1, 2)}]})
    assert raw["datasets"] == [{"id": "a", "when": "2026-01-02", "dir": "x", "more": [1, 2]}]


def test_placeholders_are_resolved_before_quotes_can_break_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", 'a"b\\c{env:OTHER}')
    mapping = {"cache_config": {"cache_dir": "{env:WHERE}/x"}}
    assert "{env:" not in str(flattened(mapping))
    assert received(mapping)["cache_config"]["cache_dir"] == 'a"b\\c{env:OTHER}/x'


def test_long_blocks_travel_by_a_private_file() -> None:
    datasets = [{"id": str(index), "path": "p" * 1000} for index in range(10_000)]
    (word,) = flattened({"datasets": datasets})
    file = Path(word.partition("=@")[2])
    assert len(word) < 300 and file.stat().st_mode & 0o777 == 0o600
    assert flattened({"datasets": datasets}) == [word]
    rest = arguments.incoming_arguments([word])
    assert StateHooks.get_raw_config()["datasets"] == datasets
    assert rest == [word, f"--data_backend_config={arguments.INLINE_PLACEHOLDER}"]


def test_another_process_leaves_the_file_to_the_other_ranks(tmp_path: Path) -> None:
    file = tmp_path / "gh200-1-x.json"
    file.write_text('{"cache_dir": "a"}')
    arguments.incoming_arguments([f"--cache_config=@{file}"])
    assert file.exists() and StateHooks.get_raw_config()["cache_config"] == {"cache_dir": "a"}


def test_a_file_that_is_gone_ends_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.incoming_arguments(["--cache_config=@/no/such/file"])
    assert ended.value.code == 2 and "/no/such/file" in capfd.readouterr().err


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
    parsed = arguments.incoming_arguments(words)
    assert parsed is not None and len(parsed) == 2 and "--x=1" in parsed
    assert StateHooks.get_raw_config() == {"x": "1", "cache_config": {"a": "b c", "d": [1]}}


def test_broken_json_is_kept_whole_for_the_error() -> None:
    broken = '--cache_config={"a": b c'
    assert arguments.incoming_arguments(['--cache_config={"a":', "b", "c", "--x=1"]) == [broken, "--x=1"]
    assert StateHooks.get_raw_config()["cache_config"] == '{"a": b c'


def test_command_line_without_a_list_is_the_process_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--use_gh200_trainer", "--x", "1"])
    assert arguments.incoming_arguments(None) == ["--use_gh200_trainer=true", "--x", "1"]
    assert StateHooks.get_raw_config() == {"x": "1", "use_gh200_trainer": True}
    assert StateHooks.get_raw_config_origins()["use_gh200_trainer"] == "command line"


def test_our_flags_count_beside_a_config_file_that_upstream_prefers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", '--cache_config={"cache_dir": "flag"}', "--ignored=1"])
    raw = travelled({"cache_config": {"cache_dir": "file"}, "model_family": "sdxl"})
    assert raw == {"cache_config": {"cache_dir": "flag"}, "model_family": "sdxl"}
    assert StateHooks.get_raw_config_origins() == {"cache_config": "command line"}


def test_upstreams_short_form_of_its_own_dataset_file_is_left_alone() -> None:
    words = ["--data_backend", "file.json", "--cache_config={}"]
    assert arguments.incoming_arguments(words) == ["--data_backend_config=file.json", "--cache_config={}"]
    (block, file) = arguments.incoming_arguments(['--data_backend={"type": "in_memory"}']) or ()
    assert block.startswith("--data_backend={") and file.endswith(arguments.INLINE_PLACEHOLDER)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    config = {"--max_train_steps": 5, "model_family": "sdxl", "cache_config": {"cache_dir": "a"}, "use_ema": True}
    file = tmp_path / "my.json"
    file.write_text(json.dumps(config))
    typed = ["--max_train_steps", "7", "--use_ema=false", '--gh200_optimizations={"enable_uvm_hints": true}']
    assert arguments.command_line_config(["--config", str(file), *typed]) == (
        file,
        {"model_family": "sdxl", "cache_config": {"cache_dir": "a"}},
        typed,
    )
    assert arguments.command_line_values(["--config", str(file), *typed]) == {
        "model_family": "sdxl", "cache_config": {"cache_dir": "a"}, "max_train_steps": "7", "use_ema": "false",
        "gh200_optimizations": {"enable_uvm_hints": True},
    }  # fmt: skip


def test_another_loader_than_the_one_of_the_config_flag_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    StateHooks.set_config_file(tmp_path / "my.json", {})
    with pytest.raises(SystemExit):
        arguments.incoming_arguments(["--model_family=sdxl"])
    assert "not the one that would be trained" in capfd.readouterr().err


def test_a_misspelt_flat_key_is_named_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ModuleType("simpletuner.helpers.configuration.cmd_args")
    parser.get_default_config = lambda: {"train_batch_size": 4}  # type: ignore[attr-defined]
    for name in ("simpletuner.helpers", "simpletuner.helpers.configuration", parser.__name__):
        monkeypatch.setitem(sys.modules, name, parser)
    printed = "Could not parse:\nTraceback\nargparse.ArgumentError: unrecognized arguments: --train_batch_sise=2\n"
    error = arguments.rejected(ValueError(printed))
    assert isinstance(error, RejectedConfig) and isinstance(error, ValueError)
    assert error.why.endswith("--train_batch_sise=2") and 'Did you mean "train_batch_size"?' in error.fix


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
        arguments.command_line_config(["--config", str(file)])
    assert expected in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    "words", [["--config"], ["--config="], ["--config", "--x"], ["--config=a.json", "--config=b.json"]]
)
def test_a_config_flag_without_one_file_is_an_error(words: list[str]) -> None:
    with pytest.raises(ConfigFileError, match="--config"):
        arguments.command_line_config(words)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        target = path if path.suffix else path / "directory.json"
        if not path.suffix:
            target.mkdir()
        with pytest.raises(ConfigFileError, match="cannot be read"):
            arguments.command_line_config(["--config", str(target)])


def test_launchers_end_the_process(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for call, argv in ((take_config_flag, ["train.py"]), (command_arguments, ["simpletuner", "train"])):
        monkeypatch.setattr(sys, "argv", [*argv, "--config", "no/such.json"])
        with pytest.raises(SystemExit) as ended:
            call()
        assert ended.value.code == 2 and "no/such.json" in capfd.readouterr().err


def test_help_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", "no/such.json", "--help"])
    take_config_flag()


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
    datasets = [{**block, "id": "a"}]
    if "{env:" not in json.dumps(block):
        assert received({"datasets": datasets})["datasets"] == datasets
    words = [f"--datasets={json.dumps(datasets)}", "--x=1"]
    if cut and "  " not in words[0]:
        words = " ".join(words).split(" ")
    parsed = arguments.incoming_arguments(words)
    assert parsed is not None and parsed[1] == "--x=1"
    assert StateHooks.get_raw_config()["datasets"] == datasets
