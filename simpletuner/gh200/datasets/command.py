"""Holds the in-memory datasets of a config in RAM for some hours; runs that start meanwhile attach instead of staging."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import GH200Error, stop
from ..memory.limits import spoken_size
from ..settings.dataset_file import IN_MEMORY, DatasetReader, entries_of_file
from ..settings.keys import DATASETS_FILE_KEY
from ..settings.problems import SettingsError
from ..settings.transport import loaded_config
from .arena import SharedArena
from .check import forget_changed
from .kept import Kept, everything_kept, tidy
from .party import Party, Run
from .places import Key
from .rendezvous import share
from .staged import Source, outermost, sources_of
from .staging import report_files, stage

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 366 * 86400
_DROP_SECONDS = 20.0
INTERRUPTED = 130
_EXAMPLES = """\
examples:
  python -m simpletuner.gh200.stage config/your_config.json            stage what it names, hold it for 8 hours
  python -m simpletuner.gh200.stage config/your_config.json --for 30m  for half an hour
  python -m simpletuner.gh200.stage list                               what is in RAM, and who holds it
  python -m simpletuner.gh200.stage drop                               end all that only keep; runs go on
  python -m simpletuner.gh200.stage drop /data/photos                  only those that keep this folder

It runs in the foreground and ends by itself, with Ctrl-C, or by drop; nothing survives it but what runs still use.
Start it as the ranks will be: with the same user, TMPDIR and CPU binding (numactl). docs/IN_MEMORY.md has the rest.
exit code: 0 done, 1 something could not be held or dropped, 2 the command line or the config cannot be used
"""


def duration(text: str) -> float:
    parts = re.fullmatch(r"((?:\d+(?:\.\d+)?[smhd])+)", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+(?:\.\d+)?)([smhd])", text))
    if parts is None or not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: a time such as 8h, 30m or 1h30m is wanted, at most a year")
    return seconds


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m simpletuner.gh200.stage", description=__doc__, epilog=_EXAMPLES, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("what", metavar="CONFIG|list|drop", help="a training config (JSON or TOML), or one of the words")
    made.add_argument("folder", nargs="?", help="with drop: only those that keep this folder")
    made.add_argument(
        "--for", dest="seconds", type=duration, default="8h", metavar="TIME", help="how long (default 8h)"
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    made = parser()
    given = made.parse_args(arguments)
    if given.folder is not None and given.what != "drop":
        made.error("a folder is only wanted with drop")
    try:
        if given.what == "list":
            return show(everything_kept())
        if given.what == "drop":
            return drop(given.folder)
        return keep(config_sources(Path(given.what)), given.seconds)
    except GH200Error as error:
        stop(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def config_sources(config: Path) -> list[Source]:
    """The folders to stage, each once: one that lies in another comes with it."""
    raw = loaded_config(config)
    file = entries_of_file(raw.get(DATASETS_FILE_KEY))
    reader = DatasetReader(raw, file)
    if reader.problems:
        raise SettingsError(reader.problems)
    entries = json.loads(reader.inline_json) if reader.inline_json is not None else file or []
    wanted = [
        entry
        for entry in entries
        if isinstance(entry, dict)
        and entry.get("type") == IN_MEMORY
        and not (entry.get("disabled") or entry.get("disable"))
    ]
    sources = sources_of(wanted, reader.in_memory)
    if not sources:
        raise GH200Error(
            "The config has no dataset to hold in RAM.",
            where=str(config),
            why=f'no entry of its datasets has the type "{IN_MEMORY}"',
            fix=f"check datasets, or the file named by {DATASETS_FILE_KEY}",
        )
    found = (outermost(source, sources) for source in sources)
    return list({(source.root, source.options.compression): source for source in found}.values())


def keep(sources: Sequence[Source], seconds: float) -> int:
    ended = threading.Event()
    until = time.time() + seconds
    held = []
    for source in sources:
        arena = hold(source, until)
        if arena is None:
            return 1
        held.append(arena)
        print(f"{source.root}: {arena.files} files, {spoken_size(arena.header['bytes'])}", flush=True)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    print(f"held until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(until))}, or Ctrl-C, or drop", flush=True)
    ended.wait(max(0.0, until - time.time()))
    held.clear()
    print("let go", flush=True)
    return 0


def hold(source: Source, until: float) -> SharedArena | None:
    options = source.options
    party = Party(source.dataset, Run.from_environment({}), options.model_dump_json(), options.patience_seconds, until)

    def check(arena: SharedArena) -> None:
        report_files(source.dataset, "are not what was staged any more", forget_changed(arena))

    return share(
        Key.of(source.root, options.compression),
        party,
        lambda told: stage(source.dataset, source.root, options, told=told),
        check,
    )


def show(found: Sequence[Kept]) -> int:
    if not found:
        print("nothing is held in RAM by this user")
    for kept in found:
        print(kept.told())
    tidy()
    return 0


def drop(folder: str | None) -> int:
    """Only processes that do nothing but keep are ended; a run that uses the memory goes on."""
    wanted = os.path.realpath(folder) if folder else None
    found = [kept for kept in everything_kept() if kept.keepers and wanted in (None, kept.root)]
    if not found:
        print("nothing to drop: no process only keeps " + (wanted or "a dataset"))
        return 1 if folder else 0
    until = time.monotonic() + _DROP_SECONDS
    for kept in found:
        kept.end_keepers()
    while left := [kept for kept in everything_kept() if kept.keepers and kept.root in {item.root for item in found}]:
        if time.monotonic() > until:
            print("still there: " + "; ".join(kept.told() for kept in left))
            return 1
        time.sleep(0.1)
    for kept in found:
        print(f"dropped: {kept.root}")
    tidy()
    return 0
