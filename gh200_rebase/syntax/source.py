"""A Python file as bytes and as syntax tree, with exact positions between the two."""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from .nodes import DEFS, Place, scopes

BOM = b"\xef\xbb\xbf"
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
UNPLACED = frozenset({tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER})
SPACING = frozenset({tokenize.COMMENT, tokenize.NL})


class Unreadable(Exception):
    """A file the engine cannot edit safely; the message says why."""


@dataclass(frozen=True)
class Token:
    """One token with its byte range."""

    kind: int
    text: str
    start: int
    end: int
    line: int


@dataclass(frozen=True)
class Source:
    """`data` are the file's bytes; `text` is what Python sees after decoding, without a BOM."""

    path: str
    data: bytes
    text: str
    encoding: str
    lines: tuple[str, ...]
    starts: tuple[int, ...]
    tree: ast.Module

    @cached_property
    def scopes(self) -> dict[str, list[Place]]:
        """Classes and functions by dotted name."""
        return scopes(self.tree)

    @cached_property
    def eol(self) -> str:
        """The line end that most lines have."""
        ends = Counter(line_end(line) for line in self.lines if line_end(line))
        return ends.most_common(1)[0][0] if ends else "\n"

    @cached_property
    def tokens(self) -> list[Token]:
        """All tokens with a position."""
        return _tokens(self)

    @cached_property
    def token_starts(self) -> list[int]:
        """Byte offsets of the tokens."""
        return [token.start for token in self.tokens]

    def offset(self, line: int, column: int) -> int:
        """Byte offset of an `ast` position, whose column counts UTF-8 bytes."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if self.encoding != "utf-8":
            characters = len(text.encode()[:column].decode())
            column = len(text[:characters].encode(self.encoding))
        return self.line_start(line) + column

    def line_start(self, line: int) -> int:
        """Byte offset of a line."""
        return self.starts[line - 1] if line <= len(self.starts) else len(self.data)

    def line_at(self, offset: int) -> int:
        """Number of the line that holds this byte; the end of the file counts as a line after the last."""
        if offset == len(self.data) and (not self.lines or line_end(self.lines[-1])):
            return len(self.lines) + 1
        return max(bisect.bisect_right(self.starts, offset), 1)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Byte range of a node; a def's starts at its first decorator's `@`."""
        start = self.offset(node.lineno, node.col_offset)
        end = self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        if isinstance(node, DEFS) and node.decorator_list:
            first = node.decorator_list[0]
            index = self.token_at(self.offset(first.lineno, first.col_offset))
            while self.tokens[index].text != "@":
                index -= 1
            start = self.tokens[index].start
        return start, end

    def token_at(self, offset: int) -> int:
        """Index of the token that starts at this byte."""
        index = bisect.bisect_left(self.token_starts, offset)
        if index == len(self.tokens) or self.tokens[index].start != offset:
            raise Unreadable(f"no token starts at byte {offset}")
        return index

    def following(self, offset: int) -> list[Token]:
        """The tokens from this byte to the end of the logical line, comments and blank lines left out."""
        found: list[Token] = []
        for index in range(bisect.bisect_left(self.token_starts, offset), len(self.tokens)):
            token = self.tokens[index]
            if token.kind not in SPACING:
                found.append(token)
            if token.kind == tokenize.NEWLINE:
                break
        return found

    def logical_line(self, offset: int) -> tuple[int, int]:
        """The logical line this byte is on: where its first token starts, and its first physical line."""
        index = self.token_at(offset)
        while index and self.tokens[index - 1].kind != tokenize.NEWLINE:
            index -= 1
        while self.tokens[index].kind in SPACING:
            index += 1
        return self.tokens[index].start, self.tokens[index - 1].line + 1 if index else 1

    def encode(self, text: str) -> bytes:
        """Text in the file's encoding."""
        try:
            return text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise Unreadable(f"our code does not fit the file's encoding {self.encoding}: {error}") from None

    def reparsed(self) -> Source:
        """The same file with a tree of its own, for callers that change the tree."""
        return replace(self, tree=parse_text(self.text))


def line_end(line: str) -> str:
    """The line end of a line."""
    return line[len(line.rstrip("\r\n")) :]


def parse_text(text: str) -> ast.Module:
    """Parse without the warnings upstream's own escapes would print."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


@lru_cache(maxsize=48)
def read_source(path: str, data: bytes) -> Source:
    """Decode and parse a file; raises Unreadable with the reason. Callers must not change the tree."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        start = len(BOM) if data.startswith(BOM) else 0
        encoding = "utf-8" if encoding in ("utf-8", "utf-8-sig") else encoding
        text = data[start:].decode(encoding)
        tree = parse_text(text)
    except (SyntaxError, ValueError, LookupError) as error:
        raise Unreadable(f"cannot be read as Python: {error}") from None
    except (RecursionError, MemoryError):
        raise Unreadable("is nested too deeply to be parsed") from None
    lines = tuple(LINE.findall(text))
    encoded = [line.encode(encoding) for line in lines]
    if b"".join(encoded) != data[start:]:
        raise Unreadable(f"does not survive a round trip through its encoding {encoding}")
    starts = []
    for line in encoded:
        starts.append(start)
        start += len(line)
    return Source(path, data, text, encoding, lines, tuple(starts), tree)


def _tokens(source: Source) -> list[Token]:
    # The parser sees every line end as \n; the tokenizer must too, or a lone \r shifts its line numbers.
    plain = iter([line[: len(line) - len(line_end(line))] + "\n" for line in source.lines])
    widths = [None if line.isascii() else line for line in source.lines]

    def place(position: tuple[int, int]) -> int:
        line, column = position
        text = widths[line - 1] if line <= len(widths) else None
        if text is not None:
            column = len(text[:column].encode(source.encoding))
        return source.line_start(line) + column

    try:
        return [
            Token(token.type, token.string, place(token.start), place(token.end), token.start[0])
            for token in tokenize.generate_tokens(lambda: next(plain, ""))
            if token.type not in UNPLACED
        ]
    except (tokenize.TokenError, SyntaxError) as error:
        raise Unreadable(f"cannot be tokenized: {error}") from None
