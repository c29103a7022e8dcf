"""Run by every Python of .venv at its start: a training command whose --config file is missing ends at once.

Accelerate's launcher and upstream's package load torch before anybody looks at the file, which takes many seconds.
Copied into .venv by scripts/setup.sh; the standard library alone, and of that what has been loaded already.
"""

import os
import sys


def _training(words: list[str]) -> list[str]:
    """What follows the fork's train.py, or `simpletuner train`, on a command line; empty where there is neither."""
    for place, word in enumerate(words):
        if word == "-c":
            break
        directory, name = os.path.split(word)
        if name == "simpletuner" and words[place + 1 : place + 2] == ["train"]:
            return words[place + 2 :]
        beside = [os.path.join(directory, "gh200"), os.path.join(directory, "simpletuner", "gh200")]
        if name == "train.py" and any(map(os.path.isdir, beside)):
            return words[place + 1 :]
    return []


def _named_config(words: list[str]) -> str:
    for place, word in enumerate(words):
        if word == "--config":
            return "".join(words[place + 1 : place + 2])
        if word.startswith("--config="):
            return word.partition("=")[2]
    return ""


def stop_without_config() -> None:
    named = _named_config(_training(sys.orig_argv[1:]))
    # Anything else that can be wrong with it is reported by the fork, which knows more.
    if not named or named.startswith("--") or os.path.exists(os.path.expanduser(named)):
        return
    os.write(
        2,
        "\nThe file given with --config cannot be read.\n"
        f"  where: {named}, looked for in {os.getcwd()}\n"
        "  why: No such file or directory\n"
        "  fix: name a .json or .toml training config with --config FILE\n".encode("utf-8", "surrogateescape"),
    )
    # An exception here would be printed as a broken environment, and Python would go on.
    os._exit(2)


stop_without_config()
