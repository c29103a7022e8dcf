"""Reads the documents: their links, headings, code spans, and the commands they tell an operator to type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\(([^)\s]+)\)")
# A span that starts like this and goes on is something to type, not the name of a file.
PROGRAM = re.compile(
    r"(\./execute_gh200_rebase\.sh|scripts/\w+\.sh|python3?|\.venv/bin/\w+|accelerate|nvidia-smi|nsys|numastat|source|pytest|git|sh"
    r"|bash|cd|cp|echo) (?!and |or )"
)


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        return FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        return [body for found, body in FENCE.findall(self.text) if found == language]

    def spans(self) -> list[str]:
        return [" ".join(span.split()) for span in SPAN.findall(self.prose)]

    def links(self) -> list[str]:
        return LINK.findall(SPAN.sub("", self.prose))

    def anchors(self) -> set[str]:
        """As GitHub makes them of headings."""
        found: list[str] = []
        for heading in re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE):
            slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
            found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
        return set(found)

    def commands(self) -> Iterator[str]:
        for language, body in FENCE.findall(self.text):
            for line in body.replace("\\\n", " ").splitlines():
                if language == "bash" or line.startswith("$ "):
                    command = " ".join(re.sub(r"(^|\s)#.*", "", line.removeprefix("$ ")).split())
                    if command:
                        yield command
        yield from (span for span in self.spans() if PROGRAM.match(span))


@cache
def pages() -> tuple[Page, ...]:
    tops = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "GH200_REBASE_CHECKLIST.md"]
    return tuple(Page(path) for path in [*tops, *sorted((ROOT / "docs").glob("*.md"))])


def section(page: Page, heading: str) -> str:
    """The text below one heading, up to the next one of its level."""
    level = re.escape(heading.split(" ")[0])
    found = re.search(rf"^{re.escape(heading)}.*?(?=^{level} |\Z)", page.text, re.MULTILINE | re.DOTALL)
    assert found, f"{page.name} has no heading {heading!r}"
    return found[0]
