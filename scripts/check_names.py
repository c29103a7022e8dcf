"""One concept, one name: words this project no longer uses, and classes that are defined twice in a package.

scripts/vocabulary.json has the words, what to write in their place, and how often a file may still use one. A count only
goes down: `--write` lowers it to what is there and never raises it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

VOCABULARY = "scripts/vocabulary.json"
PACKAGES = ("simpletuner/gh200", "gh200_rebase", "gh200_lab")
SUFFIXES = {".py", ".sh", ".sbatch", ".svg", ".md", ".toml", ".json", ".html", ".js", ".yaml", ".c", ".h", ""}
# Written by v1, by SimpleTuner or by a tool; not ours to rename.
LEFT_OUT = (
    "CHANGELOG.md",
    "LICENSE",
    VOCABULARY,
    "tests/golden/records/",
    "tests/golden/v1/",
    "patches/lock.json",
    "docs/MODULE_PATHS.md",
    "docs/module_paths.json",
    "requirements/",
)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def pattern(word: str) -> re.Pattern[str]:
    """Matches a word or phrase as prose and as part of an identifier: "memory monitor" also finds `memory_monitor` and `MemoryMonitor`."""
    return re.compile(rf"(?<![a-z]){word.replace(' ', '[-_ ]?')}(?![a-z])", re.IGNORECASE)


def tracked(root: Path) -> Iterator[Path]:
    """Files that git tracks or would add, without those that are not ours to rename."""
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        path = root / name
        if path.suffix in SUFFIXES and not name.startswith(LEFT_OUT) and path.is_file() and not path.is_symlink():
            yield path


def uses(path: Path, words: Mapping[str, re.Pattern[str]]) -> Counter[str]:
    """How often a file, its name included, uses each of the words."""
    try:
        text = CAMEL.sub("_", f"{path.name}\n{path.read_text(encoding='utf-8')}")
    except UnicodeDecodeError:
        return Counter()
    return Counter({word: count for word, found in words.items() if (count := len(found.findall(text)))})


def duplicate_classes(root: Path) -> Iterator[str]:
    """One line for each class name that a package defines more than once."""
    for package in PACKAGES:
        places: defaultdict[str, list[str]] = defaultdict(list)
        for path in sorted((root / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(f"{path.relative_to(root)}:{node.lineno}")
        for name, found in sorted(places.items()):
            if len(found) > 1:
                yield f"class {name} is defined {len(found)} times in {package}: {', '.join(found)}"


def rendered(words: Mapping[str, str], allowed: Mapping[str, Mapping[str, int]]) -> str:
    """The vocabulary as JSON, with one line for each word and each file."""
    parts = {
        title: ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
        for title, part in (("words", words), ("allowed", allowed))
    }
    return "{\n" + ",\n".join(f' "{title}": {{\n{lines}\n }}' for title, lines in parts.items()) + "\n}\n"


def main() -> int:
    """Prints each problem; with --write, lowers the counts first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="lower the counts of allowed uses to those that are left")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    options = parser.parse_args()
    file = options.root / VOCABULARY
    vocabulary = json.loads(file.read_text(encoding="utf-8"))
    words = {word: pattern(word) for word in vocabulary["words"]}
    allowed: dict[str, dict[str, int]] = vocabulary["allowed"]
    found = {path.relative_to(options.root).as_posix(): uses(path, words) for path in tracked(options.root)}
    if options.write:
        lowered = {
            name: {word: min(count, found[name][word]) for word, count in sorted(counts.items()) if found[name][word]}
            for name, counts in sorted(allowed.items())
            if name in found
        }
        vocabulary["allowed"] = allowed = {name: counts for name, counts in lowered.items() if counts}
        file.write_text(rendered(vocabulary["words"], allowed), encoding="utf-8")
    problems = [
        f"{name}: {word!r} is used {count} times, {allowed.get(name, {}).get(word, 0)} allowed; write: {vocabulary['words'][word]}"
        for name, counts in sorted(found.items())
        for word, count in sorted(counts.items())
        if count > allowed.get(name, {}).get(word, 0)
    ]
    problems += duplicate_classes(options.root)
    print("\n".join(problems) if problems else "names: no word of the old vocabulary is new, no class has a double")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
