"""The command line of `simpletuner`: `train` takes the flags that train.py takes, `server` binds loopback by default."""

from __future__ import annotations

import sys

from ..errors import ConfigFileError, stop
from .config_file import FLAG, config_path, read_config_file
from .keys import is_our_name, plain_key

_CLI_OWN = ("--example", "-e", "--env", "-h", "--help")
_LOOPBACK = ["--host", "127.0.0.1"]
# Upstream's name for no environment; without one named it insists on a config.json in the current directory.
_NO_ENVIRONMENT = ["--env", "default"]


def command_arguments() -> None:
    """Before the command line is parsed. A file that cannot be used stops here, and not in the child process."""
    sys.argv[:] = server_command_line(sys.argv)
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


def server_command_line(argv: list[str]) -> list[str]:
    """A server without --host is for this machine alone; SimpleTuner's own default is every address."""
    given = any(word.startswith(("-H", "--ho")) for word in argv[1:])
    return argv if argv[1:2] != ["server"] or given else [*argv, *_LOOPBACK]


def train_command_line(argv: list[str]) -> list[str]:
    """Upstream's `train` command rejects unknown flags but passes `key=value` words on, so flags become those.

    Only a command line with --config or a GH200 key is touched.
    """
    if "train" not in argv[1:]:
        return argv
    start = argv.index("train", 1) + 1
    names = {word.partition("=")[0] for word in argv[start:] if word.startswith("--")}
    if not any(name == FLAG or is_our_name(plain_key(name)) for name in names):
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
