"""Carries the fork's config blocks through upstream's loaders, which turn every config into a flat command line."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ConfigFileError, stop
from ..state import StateHooks
from .config_file import config_path, read_config_file, split_config_flag
from .keys import BLOCK_KEYS, DATASETS_FILE_KEY, INLINE_KEYS, SCHEMA_KEY, decoded, is_ours, looks_like_json, plain_key

BUNDLE = "gh200_blocks"
AS_GIVEN = "gh200_as_given"
COMMAND_LINE = "gh200_command_line"
# One argument may have 128 KiB on Linux; what is longer travels by file.
LONGEST_ARGUMENT = 100_000
_PLACEHOLDER = re.compile(r"\{env:([^{}]+)\}")
INLINE_PLACEHOLDER = "(datasets inside the training config)"


def outgoing_config(mapping: Mapping[str, object]) -> Mapping[str, object]:
    """A config about to become command-line arguments, with our blocks packed into one of them."""
    if SCHEMA_KEY in map(plain_key, mapping):
        mapping = {key: value for key, value in mapping.items() if plain_key(key) != SCHEMA_KEY}
    bundle = _bundle(mapping)
    rest = {key: value for key, value in mapping.items() if not _bundled(key, value)}
    given = {plain_key(key): value for key, value in rest.items()}
    # The command line keeps neither types nor nesting; in this process they are remembered, to others they travel.
    StateHooks.remember_as_given(given)
    if not bundle:
        return mapping
    # A job that upstream's server starts has functions beside what its config says.
    said = {key: value for key, value in given.items() if not callable(value)}
    return {**rest, f"--{BUNDLE}": _packed({**bundle, AS_GIVEN: said})}


def loaded_config(path: Path) -> dict[str, object]:
    """The keys and values a run gets from a config file: for whoever judges the file without starting a run."""
    return loaded_values(read_config_file(path))


def loaded_values(config: Mapping[str, object]) -> dict[str, object]:
    """The same of a config that is read already; what `command_line_config` put beside it wins."""
    rest = {plain_key(key): with_environment(value) for key, value in config.items() if not _bundled(key, value)}
    rest.pop(SCHEMA_KEY, None)
    bundle = _bundle(config)
    typed = bundle.pop(COMMAND_LINE, None)
    values = {**rest, **_jsonable_bundle(bundle)}
    if isinstance(typed, dict):
        words, ours, _ = _taken_out(typed["arguments"], "command line")
        values |= _named(words) | ours
    return values


def _bundled(key: str, value: object) -> bool:
    return value is not None and (is_ours(key, value) or key == COMMAND_LINE)


def _bundle(mapping: Mapping[str, object]) -> dict[str, object]:
    bundle: dict[str, object] = {}
    for key, value in mapping.items():
        if not _bundled(key, value):
            continue
        name = plain_key(key)
        if name in bundle and bundle[name] != value:
            # Text where a block belongs: validation will name the key and show this sentence.
            bundle[name] = f'given twice, as "{name}" and as "--{name}", with different values'
        else:
            bundle[name] = decoded(value) if isinstance(value, str) and name in BLOCK_KEYS else value
    return bundle


def _packed(bundle: dict[str, object]) -> str:
    text = json.dumps(_jsonable_bundle(bundle))
    # Upstream would resolve what is left of this pattern inside the JSON text, where a quote breaks it.
    text = text.replace("{env:", "\\u007benv:")
    if len(text) <= LONGEST_ARGUMENT:
        return text
    # Read by every rank of a child launch, so only the process that wrote it may remove it.
    handle, name = tempfile.mkstemp(prefix=f"gh200-{os.getpid()}-", suffix=".json")
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(text)
    atexit.register(Path(name).unlink, missing_ok=True)
    return f"@{name}"


def _jsonable_bundle(bundle: Mapping[str, object]) -> dict[str, object]:
    return {key: _jsonable(value) for key, value in bundle.items()}


def _jsonable(value: object) -> object:
    try:
        return with_environment(json.loads(json.dumps(value, default=_plain)))
    except (TypeError, ValueError, RecursionError) as error:
        return f"(cannot be written as JSON: {str(error)[:200] or type(error).__name__})"


def _plain(value: object) -> object:
    if isinstance(value, os.PathLike) or hasattr(value, "isoformat"):
        return str(value)
    if isinstance(value, (Mapping, tuple, set, frozenset)):
        return dict(value) if isinstance(value, Mapping) else list(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def with_environment(value: object) -> object:
    """`{env:NAME}` in any text of a block, as upstream resolves it in its own values."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: os.environ.get(match.group(1), ""), value)
    if isinstance(value, dict):
        return {key: with_environment(item) for key, item in value.items()}
    return [with_environment(item) for item in value] if isinstance(value, list) else value


def _unpacked(text: str) -> dict[str, object]:
    try:
        if not text.startswith("@"):
            return dict(json.loads(text))
        file = Path(text[1:])
        bundle = dict(json.loads(file.read_text(encoding="ascii")))
    except (OSError, TypeError, ValueError) as error:
        stop(
            ConfigFileError(
                f"--{BUNDLE} does not hold what the fork put there.",
                where=text[:200],
                why=str(error),
                fix="start the job again; this argument is written by the fork, never by hand",
            )
        )
    if file.name.startswith(f"gh200-{os.getpid()}-"):
        file.unlink(missing_ok=True)
    return bundle


def incoming_arguments(input_args: list[str] | None) -> list[str] | None:
    """The arguments for upstream's parser: our blocks are taken out and recorded, everything else is as it came."""
    words = list(sys.argv[1:]) if input_args is None else list(input_args)
    rest, raw, origins = _taken_out(words, "command line" if input_args is None else "training config")
    given = _as_given(raw.pop(AS_GIVEN, None), in_process=input_args is not None)
    origins.pop(AS_GIVEN, None)
    command_line = raw.pop(COMMAND_LINE, None)
    if isinstance(command_line, dict):
        origins = dict.fromkeys(raw, f"config file {command_line['file']}")
        typed, typed_raw, typed_origins = _taken_out(command_line["arguments"], "command line")
    else:
        # Upstream ignores its command line beside a config file; a GH200 flag typed there is never ignored.
        _, typed_raw, typed_origins = _taken_out(sys.argv[1:] if input_args is not None else [], "command line")
        typed = []
    ours = raw | typed_raw
    if not ours and rest == words:
        StateHooks.set_raw_config(_with_types(_named(words), given))
        return input_args
    named = _with_types(_named(rest), given) | _named(typed)
    rest += typed
    StateHooks.set_raw_config({**named, **ours}, origins={**origins, **typed_origins})
    if any(ours.get(key) is not None for key in INLINE_KEYS) and DATASETS_FILE_KEY not in named:
        rest.append(f"--{DATASETS_FILE_KEY}={INLINE_PLACEHOLDER}")
    return rest


def _taken_out(words: Iterable[str], origin: str) -> tuple[list[str], dict[str, object], dict[str, str]]:
    """Splits a command line into what is not ours, our values by key, and where those came from."""
    rest: list[str] = []
    raw: dict[str, object] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        flag, equals, value = word.partition("=")
        name = plain_key(flag)
        if not flag.startswith("--") or (name not in BLOCK_KEYS and name != BUNDLE):
            rest.append(word)
            continue
        taken = [word]
        if not equals:
            value = "true"
            if waiting and not waiting[0].startswith("--"):
                value = waiting.pop(0)
                taken.append(value)
        if name == BUNDLE:
            raw |= _unpacked(value)
        elif is_ours(name, value):
            raw[name] = decoded(_rejoined(value, waiting))
        else:
            rest += taken
    return rest, raw, dict.fromkeys(raw, origin)


def _rejoined(value: str, waiting: list[str]) -> str:
    """JSON that upstream's TRAINER_EXTRA_ARGS has cut at its blanks, put together again."""
    if not looks_like_json(value):
        return value
    for count in range(len(waiting) + 1):
        candidate = " ".join([value, *waiting[:count]])
        if not isinstance(decoded(candidate), str):
            del waiting[:count]
            return candidate
    # Broken JSON: all of its words go into the error, none to upstream's parser.
    while waiting and not waiting[0].startswith("--"):
        value = f"{value} {waiting.pop(0)}"
    return value


def _named(words: Iterable[str]) -> dict[str, object]:
    """A command line as keys and texts: a record of what upstream's parser was given."""
    named: dict[str, object] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            key = plain_key(flag)
            named[key] = value if equals else True
        elif key:
            named[key] = word
    return named


def _as_given(packed: object, *, in_process: bool) -> Mapping[str, object]:
    known = StateHooks.as_given() if in_process else {}
    return known or (packed if isinstance(packed, dict) else {})


def _with_types(named: dict[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """The keys and texts of a command line as the config had them that it was made from, with what it cannot carry."""
    typed = {key: given[key] for key, text in named.items() if key in given and _became(given[key], text)}
    if not typed or any(key in given and key not in typed for key in named):
        return named  # another config's
    return {**named, **{key: value for key, value in given.items() if value is not None}}


def _became(value: object, text: object) -> bool:
    """Whether a command line may have made this text of this value; only for plain ones is there a doubt."""
    plain = isinstance(value, int | float | str) and not isinstance(value, bool) and "{env:" not in str(value)
    return not plain or str(value).strip() == str(text).strip() or text is True


def command_line_config(argv: list[str]) -> dict[str, object] | None:
    """The config named by --config, without the keys that other flags of the same command line replace."""
    path = config_path(argv)
    if path is None:
        return None
    config = read_config_file(path)
    _, typed = split_config_flag(argv)
    replaced = _named(typed)
    kept = {key: value for key, value in config.items() if plain_key(key) not in replaced}
    return {**kept, COMMAND_LINE: {"file": str(path), "arguments": typed}}


def config_from_command_line(args: Namespace | dict[str, object] | None) -> Namespace | dict[str, object] | None:
    """What `load_config` was given, or the file named by --config when it was given nothing."""
    if args or {"-h", "--help"} & set(sys.argv):
        return args
    try:
        path, config = config_path(sys.argv[1:]), command_line_config(sys.argv[1:])
    except ConfigFileError as error:
        stop(error)
    if path is None:
        return args
    from simpletuner.helpers.training.state_tracker import StateTracker

    StateTracker.set_config_path(str(path.parent))
    return config


def config_file_argument(extra_args: list[str]) -> str | None:
    """The file `simpletuner train` was given with --config; unusable, it stops here and not in the child process."""
    try:
        path = config_path(extra_args)
        if path is not None:
            read_config_file(path)
    except ConfigFileError as error:
        stop(error)
    return None if path is None else str(path)
