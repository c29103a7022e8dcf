"""`python -m simpletuner.gh200.caches list|clear CONFIG`: what the caches of a config take on disk, and how to be rid of it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import GH200Error
from .folders import CacheFolder, Plan, cache_folders

EPILOG = """examples:
  python -m simpletuner.gh200.caches list config/your_config.json
  python -m simpletuner.gh200.caches clear config/your_config.json --dataset photos
  python -m simpletuner.gh200.caches clear config/your_config.json --older-than 30d --yes

Paths in a config are relative to the folder a run is started in: start this there too. Only cache entries (.pt) are
removed; upstream makes them again in the next run. Exit codes: 0 done, 1 not confirmed, 2 the config or an argument
cannot be used, 3 something could not be removed."""
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def main(arguments: list[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        folders = cache_folders(Plan(chosen.config, os.environ))
    except GH200Error as error:
        print(error.render(), file=sys.stderr)
        return 2
    if chosen.command == "list":
        print(json.dumps([_as_dict(folder) for folder in folders], indent=1) if chosen.json else _table(folders))
        return 0
    return _clear(folders, chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simpletuner.gh200.caches",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="every cache folder: dataset, model, size, age, stale or not")
    listing.add_argument("--json", action="store_true", help="for programs")
    clearing = commands.add_parser("clear", help="remove entries; names them and asks first")
    clearing.add_argument("--yes", action="store_true", help="do not ask")
    clearing.add_argument("--dataset", action="append", metavar="ID", help="only this dataset's (may be repeated)")
    clearing.add_argument("--older-than", type=_age, metavar="AGE", help="only entries older than 90m, 12h, 30d or 4w")
    clearing.add_argument("--stale", action="store_true", help="only folders that list calls stale")
    for command in (listing, clearing):
        command.add_argument("config", type=Path, metavar="CONFIG", help="a training config, .json or .toml")
    return parser


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+)([mhdw])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 90m, 12h, 30d or 4w")
    return int(match[1]) * _UNITS[match[2]]


def _as_dict(folder: CacheFolder) -> dict[str, object]:
    return {
        "dataset": folder.dataset, "kind": folder.kind, "model": folder.model, "path": str(folder.path),
        "entries": len(folder.entries), "bytes": folder.bytes, "newest": folder.newest or None,
        "stale": folder.stale, "in_use": folder.in_use,
    }  # fmt: skip


def _table(folders: list[CacheFolder]) -> str:
    rows = [("dataset", "cache", "model", "entries", "size", "newest", "folder")]
    for one in folders:
        newest = f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(one.newest))}" if one.newest else "-"
        row = (one.dataset or "-", one.kind, one.model or "-", str(len(one.entries)), _size(one.bytes), newest)
        rows.append((*row, str(one.path)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    for line, one in enumerate(reversed(folders), 1):
        note = f"stale: {one.stale}" if one.stale else f"in use: {one.in_use}" if one.in_use else ""
        if note:
            lines.insert(len(folders) + 2 - line, f"    {note}")
    entries, size = sum(len(one.entries) for one in folders), sum(one.bytes for one in folders)
    return "\n".join([*lines, f"{entries} entries, {_size(size)} in {len(folders)} folders"])


def _size(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return ""


@dataclass(frozen=True)
class _Part:
    folder: CacheFolder
    entries: list[Path]
    bytes: int


def _clear(folders: list[CacheFolder], chosen: argparse.Namespace) -> int:
    unknown = sorted(set(chosen.dataset or ()) - {folder.dataset for folder in folders})
    if unknown:
        names = ", ".join(sorted({folder.dataset for folder in folders if folder.dataset}))
        error = GH200Error(
            f"There is no cache of a dataset {', '.join(unknown)}.", where="--dataset", fix=f"one of: {names}"
        )
        print(error.render(), file=sys.stderr)
        return 2
    parts = [part for folder in folders if (part := _part(folder, chosen)).entries]
    if not parts:
        print("nothing to remove")
        return 0
    for part in parts:
        print(
            f"{len(part.entries)} entries, {_size(part.bytes)}: {part.folder.path} ({part.folder.dataset or 'a run'})"
        )
    if not chosen.yes and not _confirmed(sum(len(part.entries) for part in parts)):
        print("nothing was removed")
        return 1
    failed = [problem for part in parts for problem in _removed(part)]
    print("\n".join(failed) if failed else "removed", file=sys.stderr if failed else sys.stdout)
    return 3 if failed else 0


def _part(folder: CacheFolder, chosen: argparse.Namespace) -> _Part:
    wanted = not folder.in_use and (not chosen.dataset or folder.dataset in chosen.dataset)
    limit = time.time() - chosen.older_than if chosen.older_than is not None else None
    entries = folder.entries if wanted and (folder.stale or not chosen.stale) else ()
    going = [entry for entry in entries if limit is None or entry.written < limit]
    return _Part(folder, [entry.path for entry in going], sum(entry.bytes for entry in going))


def _confirmed(count: int) -> bool:
    try:
        return input(f"Remove these {count} entries? [y/N] ").strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        print("(no answer; --yes removes without asking)")
        return False


def _removed(part: _Part) -> list[str]:
    failed = []
    for entry in part.entries:
        try:
            entry.unlink(missing_ok=True)
        except OSError as error:
            failed.append(f"{entry}: {error.strerror}")
    for folder in sorted({entry.parent for entry in part.entries}, key=lambda path: -len(path.parts)):
        while folder.is_relative_to(part.folder.path):
            with suppress(OSError):  # not empty: somebody's own files, or entries that were kept
                folder.rmdir()
            folder = folder.parent
    return failed
