"""`simpletuner train --config FILE --key value`: the same flags train.py takes, in the form upstream's CLI accepts."""

from __future__ import annotations

import sys

from ..errors import ConfigFileError, stop
from .config_file import FLAG, config_path, read_config_file
from .keys import BLOCK_KEYS, plain_key

_CLI_OWN = ("--example", "-e", "--env", "-h", "--help")
# Upstream's name for no environment; without one named it insists on a config.json in the current directory.
_NO_ENVIRONMENT = ["--env", "default"]


def train_command() -> None:
    """A file that cannot be used stops here, and not in the child process."""
    line = train_command_line(sys.argv)
    if line is sys.argv:
        return
    try:
        path = config_path(sys.argv[1:])
        if path is not None:
            read_config_file(path)
    except ConfigFileError as error:
        stop(error)
    sys.argv[:] = line


def train_command_line(argv: list[str]) -> list[str]:
    """Upstream's `train` command rejects unknown flags but passes `key=value` words on, so flags become those.

    Only a command line with --config or a GH200 key is touched.
    """
    if "train" not in argv[1:]:
        return argv
    start = argv.index("train", 1) + 1
    names = {word.partition("=")[0] for word in argv[start:] if word.startswith("--")}
    if not any(name == FLAG or plain_key(name) in BLOCK_KEYS for name in names):
        return argv
    words = argv[start:]
    rewritten: list[str] = []
    own: list[str] = []
    while words:
        word = words.pop(0)
        flag, equals, _ = word.partition("=")
        follows = bool(words) and not words[0].startswith("-")
        if flag in _CLI_OWN:
            own += [word, words.pop(0)] if follows and not equals else [word]
        elif flag.startswith("--") and not equals and follows:
            rewritten.append(f"{plain_key(flag)}={words.pop(0)}")
        else:
            rewritten.append(word.removeprefix("--"))
    if FLAG in names and not {word.partition("=")[0] for word in own} & {"--env", "--example", "-e"}:
        own += _NO_ENVIRONMENT
    return [*argv[:start], *own, *rewritten]
