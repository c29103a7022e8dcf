"""`--config FILE`: finds it on a command line and reads the JSON or TOML file it names."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigFileError
from .keys import plain_key, unique_keys

FLAG = "--config"
_FIX = "name a .json or .toml training config with --config FILE"


def split_config_flag(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The values of --config, and the rest of the command line as it was typed."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, nargs="?", const="", action="append", default=[], dest="values")
    found, rest = parser.parse_known_args(list(arguments))
    return found.values, rest


def config_path(arguments: Iterable[str]) -> Path | None:
    """The file a command line names, or None when it has no --config."""
    values, _ = split_config_flag(arguments)
    if not values:
        return None
    if len(set(values)) > 1:
        raise ConfigFileError("--config is given more than once.", where=", ".join(values), fix="keep one of them")
    if not values[0].strip() or values[0].startswith("--"):
        raise ConfigFileError("--config needs the name of a file.", where=f"--config {values[0]}".strip(), fix=_FIX)
    return Path(values[0]).expanduser()


def read_config_file(path: Path) -> dict[str, object]:
    """The mapping in a config file; every way it can be unusable is an error that names the file."""
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        kinds = " or ".join(_PARSERS)
        raise ConfigFileError(
            "--config names a file of an unknown kind.", where=str(path), why=f"not {kinds}", fix=_FIX
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if not text.strip():
            raise _unusable(path, "The file given with --config is empty.")
        config = parse(text)
    except OSError as error:
        raise _unusable(path, "The file given with --config cannot be read.", error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _unusable(
            path, "The file given with --config is not text.", f"not UTF-8 text: {error.reason} at byte {error.start}"
        ) from error
    except (ValueError, RecursionError) as error:
        why = str(error) or type(error).__name__
        fix = "correct the file; nothing else is loaded instead"
        raise _unusable(path, "The file given with --config cannot be parsed.", why, fix) from error
    if not isinstance(config, dict):
        why = f"its top level is a {type(config).__name__}, not a block of keys"
        raise _unusable(path, "The file given with --config is no training config.", why)
    return _one_spelling_per_key(config, path)


def _unusable(path: Path, what: str, why: str = "", fix: str = _FIX) -> ConfigFileError:
    return ConfigFileError(what, where=str(path), why=why, fix=fix)


def _one_spelling_per_key(config: dict[str, object], path: Path) -> dict[str, object]:
    names: dict[str, str] = {}
    for key in config:
        name = plain_key(key)
        if name in names:
            why = f'"{names[name]}" and "{key}" are the same key'
            raise ConfigFileError("A key is given twice.", where=str(path), why=why, fix="remove one of the two")
        names[name] = key
    return config


def _json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error}{_no_json(text, error)}") from error


def _no_json(text: str, error: json.JSONDecodeError) -> str:
    """What people write into a .json that JSON does not have, or nothing."""
    with suppress(ValueError):
        _toml(text)
        return "; this is TOML: name the file .toml"
    if text[error.pos :].startswith(("//", "/*", "#")):
        return f"; line {error.lineno} has a comment, and JSON has none: remove it"
    comma = text[: error.pos].rstrip().endswith(",")
    return "; a comma stands before the closing bracket: remove it" if comma else ""


def _toml(text: str) -> object:
    try:
        import tomllib
    except ImportError as error:
        # The diagnostic runs on 3.10 too, where nothing else of the fork does.
        raise ValueError("TOML needs Python 3.11 or newer") from error
    return tomllib.loads(text)


_PARSERS: dict[str, Callable[[str], object]] = {".json": _json, ".toml": _toml}
