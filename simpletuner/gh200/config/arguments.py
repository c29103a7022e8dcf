"""A training config as command-line arguments, which is what every loader of SimpleTuner makes of it, and back."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
import tempfile
import traceback
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigFileError, RejectedConfig, stop
from ..state import StateHooks
from .blocks import blocks_of, joined, loaded_values, others_of
from .config_file import config_path, read_config_file, split_config_flag
from .keys import BLOCK_KEYS, DATASETS_FILE_KEY, INLINE_KEYS, decoded, is_our_name, is_ours, looks_like_json, plain_key
from .problems import Problem, SettingsError, nearest
from .sources import read_config_settings

# One argument may have 131,072 bytes on Linux; what is longer travels by file.
LONGEST_ARGUMENT = 100_000
INLINE_PLACEHOLDER = "(datasets inside the training config)"


def config_arguments(mapping: Mapping[str, object], words: list[str]) -> list[str]:
    """The arguments SimpleTuner made of a config, with our blocks checked first and each in one argument.

    Also records the config: the arguments keep neither its types nor its nesting.
    """
    blocks = blocks_of(mapping)
    config = {key: value for key, value in others_of(mapping).items() if value is not None and not callable(value)}
    config |= blocks
    if blocks:
        read_config_settings(config, os.environ)
        words = [word for word in words if _flag_name(word) not in blocks and not _is_flat(_flag_name(word))]
        words += [f"--{name}={_sendable(value)}" for name, value in blocks.items()]
    StateHooks.set_arguments(words, config)
    return words


def _flag_name(word: str) -> str:
    return plain_key(word.partition("=")[0]) if word.startswith("--") else ""


def _is_flat(name: str) -> bool:
    return is_our_name(name) and name not in BLOCK_KEYS


def _sendable(value: object) -> str:
    text = json.dumps(value)
    # Left as it is, SimpleTuner would resolve this pattern inside the JSON text, where a quote breaks it.
    text = text.replace("{env:", "\\u007benv:")
    return text if len(text) <= LONGEST_ARGUMENT else _by_file(text)


def _by_file(text: str) -> str:
    name = f"gh200-{os.getpid()}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    path = Path(tempfile.gettempdir()) / name
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(text)
    # Every rank of a child process reads it, so only the process that wrote it may remove it.
    atexit.register(path.unlink, missing_ok=True)
    return f"@{path}"


def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    """The arguments for SimpleTuner's parser; the config they stand for becomes the run's raw config."""
    given = list(sys.argv[1:] if input_args is None else input_args)
    words = whole_words(given)
    config = StateHooks.config_of_arguments(words)
    origins = {}
    if config is None:
        config = _values(words)
        origins = dict.fromkeys(config, "command line" if input_args is None else "training config")
    if input_args is not None:
        # SimpleTuner ignores its command line beside a config file; a GH200 flag typed there is never ignored.
        values = _values(whole_words(sys.argv[1:]))
        flat = {name: value for name, value in values.items() if _is_flat(name)}
        typed = blocks_of({name: value for name, value in values.items() if name not in flat}) | flat
        config, origins = config | typed, origins | dict.fromkeys(typed, "command line")
    _follow_config_flag(input_args, origins)
    config = joined(config)
    words = [word for word in words if not _is_flat(_flag_name(word))]
    StateHooks.set_raw_config(config, origins)
    if any(config.get(key) is not None for key in INLINE_KEYS) and not config.get(DATASETS_FILE_KEY):
        words.append(f"--{DATASETS_FILE_KEY}={INLINE_PLACEHOLDER}")
    return input_args if words == given else words


def _follow_config_flag(input_args: list[str] | None, origins: dict[str, str]) -> None:
    path, file_origins = StateHooks.get_config_file()
    if path is None:
        return
    if input_args is not None:
        what = "The file given with --config is not the one that would be trained."
        why = "config/config.env or the environment names another config backend"
        stop(ConfigFileError(what, where=str(path), why=why, fix="unset SIMPLETUNER_CONFIG_BACKEND there"))
    from simpletuner.helpers.training.state_tracker import StateTracker

    StateTracker.set_config_path(str(path.parent))
    origins |= file_origins


def whole_words(words: Sequence[str]) -> list[str]:
    """Each of our values in one word with its flag: the environment's TRAINER_EXTRA_ARGS is cut at its blanks."""
    whole: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        flag, equals, value = word.partition("=")
        name = plain_key(flag)
        if not flag.startswith("--") or not is_our_name(name):
            whole.append(word)
            continue
        if not equals:
            value = waiting.pop(0) if waiting and not waiting[0].startswith("--") else "true"
        value = _rejoined(value, waiting)
        # SimpleTuner accepts `--data_backend FILE` as a short form of its own key.
        block = is_ours(name, value) or value.startswith("@")
        whole.append(f"--{name if block else DATASETS_FILE_KEY}={value}")
    return whole


def _rejoined(value: str, waiting: list[str]) -> str:
    if not looks_like_json(value):
        return value
    for count in range(len(waiting) + 1):
        candidate = " ".join([value, *waiting[:count]])
        if not isinstance(decoded(candidate), str):
            del waiting[:count]
            return candidate
    # Broken JSON: all of its words go into the error, none to SimpleTuner's parser.
    while waiting and not waiting[0].startswith("--"):
        value = f"{value} {waiting.pop(0)}"
    return value


def _values(words: Iterable[str]) -> dict[str, object]:
    """A command line as keys and values: texts, and our blocks as the JSON they hold."""
    named: dict[str, object] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            key = plain_key(flag)
            named[key] = value if equals else True
        elif key:
            named[key] = word
    return {
        name: _value(name, text) if is_our_name(name) and isinstance(text, str) else text
        for name, text in named.items()
    }


def _value(name: str, text: str) -> object:
    if not text.startswith("@"):
        return decoded(text)
    try:
        return json.loads(Path(text[1:]).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        what = f"--{name} names a file that does not hold what the fork wrote there."
        stop(ConfigFileError(what, where=text[1:], why=str(error), fix="start the job again"))


def typed_config(raw: Mapping[str, Any], parsed: Namespace) -> dict[str, Any]:
    """Texts of a command line as the numbers and switches the parser made of them."""
    typed = dict(raw)
    for key, value in raw.items():
        meaning = getattr(parsed, key, None)
        if isinstance(value, str) and isinstance(meaning, bool | int | float):
            typed[key] = meaning
    return typed


def remove_blocks(parsed: Namespace, raw: Mapping[str, Any]) -> None:
    """Our keys leave the parsed config: trackers hash all of it for the id of a run, which has to be SimpleTuner's.

    Its parser also accepts every beginning of a key, under which nobody would find the value.
    """
    keys = sorted(BLOCK_KEYS & vars(parsed).keys())
    shortened = [key for key in keys if getattr(parsed, key) is not None and key not in raw]
    if shortened:
        raise SettingsError(Problem(key, "was given by a part of its name; write it in full") for key in shortened)
    for key in keys:
        delattr(parsed, key)


def command_line_config(argv: list[str]) -> tuple[Path, dict[str, object], list[str]] | None:
    """The file named by --config, its keys that no other flag of the same command line replaces, and those flags."""
    path = config_path(argv)
    if path is None:
        return None
    typed = whole_words(split_config_flag(argv)[1])
    replaced = _values(typed)
    kept = {key: value for key, value in read_config_file(path).items() if plain_key(key) not in replaced}
    return path, kept, typed


def command_line_values(argv: list[str]) -> dict[str, object]:
    """What a run of this command line gets from file and flags, for whoever judges it before it starts."""
    found = command_line_config(argv)
    return {} if found is None else loaded_values(found[1]) | loaded_values(_values(found[2]))


def take_config_flag() -> None:
    """`train.py --config FILE`: the file becomes the command line, to which flags typed beside it are added."""
    found = command_line_config(sys.argv[1:])
    if found is None:
        return
    # Loggers made before this import are not the ones SimpleTuner wants.
    import simpletuner.helpers.logging  # noqa: F401
    from simpletuner.helpers.configuration.json_file import normalize_args

    path, config, typed = found
    words = normalize_args(config)
    flags = _values(typed)
    raw = (StateHooks.config_of_arguments(words) or {}) | flags
    StateHooks.set_arguments([*words, *typed], raw)
    StateHooks.set_config_file(path, {key: "command line" if key in flags else f"config file {path}" for key in raw})
    sys.argv[1:] = [*words, *typed]
    os.environ["SIMPLETUNER_CONFIG_BACKEND"] = "cmd"


def rejected(error: Exception) -> RejectedConfig:
    """What SimpleTuner's loaders say about a config, as one error."""
    from simpletuner.helpers.configuration.cmd_args import get_default_config

    if not isinstance(error, ValueError):
        traceback.print_exception(error)  # no mistake in a config, but a fault in a program
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[-1] if lines else type(error).__name__
    _, unknown, words = why.partition("unrecognized arguments: ")
    names = [plain_key(word.partition("=")[0]) for word in words.split() if word.startswith("--")] if unknown else []
    hints = "".join(nearest(name, get_default_config()) for name in names)
    fix = f"correct it.{hints} Nothing was trained, and no other config is used in its place"
    return RejectedConfig("The training config cannot be used.", why=why[:1000], fix=fix)
