"""Which statements never hand over to the one that follows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .nodes import DEFS, Place, blocks, header_dump

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_WITHS = (ast.With, ast.AsyncWith)
_ENDERS = frozenset({"sys.exit", "os._exit", "os.abort", "exit", "quit"})


def exit_before(place: Place) -> ast.stmt | None:
    """A statement that keeps control from ever reaching this one, in its own block or in one around it."""
    for node, block, index in _ancestry(place):
        dead = next((item for item in block[:index] if not falls_through(item)), None)
        if dead is not None:
            return dead
        if node is not place.node and _never_entered(node, place):
            return node
    return None


def exits_before(place: Place) -> Iterator[str]:
    """Each return, break and continue that may keep control from this statement, with the conditions around it."""
    if isinstance(place.node, ast.Module):
        return
    for _, block, index in _ancestry(place):
        for item in block[:index]:
            yield from _exits_in(item, "", in_loop=False)


def _exits_in(node: ast.stmt, around: str, *, in_loop: bool) -> Iterator[str]:
    if isinstance(node, ast.Return) or (isinstance(node, ast.Break | ast.Continue) and not in_loop):
        yield f"{around}{type(node).__name__}"
    if not isinstance(node, DEFS):
        for part, inner in blocks(node):
            here = f"{around}{header_dump(node)}/{part};"
            for item in inner:
                yield from _exits_in(item, here, in_loop=in_loop or (isinstance(node, _LOOPS) and part == "body"))


def _ancestry(place: Place) -> Iterator[tuple[ast.stmt, list[ast.stmt], int]]:
    """The statement and the compound statements around it, each with the block that contains it."""
    assert isinstance(place.node, ast.stmt)
    yield place.node, place.block, place.index
    for outer in reversed(place.around):
        assert isinstance(outer.node, ast.stmt)
        yield outer.node, outer.block, outer.index


def _never_entered(node: ast.stmt, place: Place) -> bool:
    """Whether the branch the place is in has a test that cannot let it in."""
    part = next(part for owner, part in place.chain if owner is node)
    truth = _constant(node.test) if isinstance(node, ast.If | ast.While) else None
    return truth is not None and truth is (part != "body")


def _constant(test: ast.expr) -> bool | None:
    if isinstance(test, ast.Name) and test.id == "TYPE_CHECKING":
        return False
    return bool(test.value) if isinstance(test, ast.Constant) else None


def falls_through(node: ast.stmt) -> bool:
    """False only where the next statement is certainly not reached."""
    if isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break) or _ends_the_process(node):
        return False
    if isinstance(node, ast.Assert):
        return _constant(node.test) is not False
    if isinstance(node, ast.If):
        return _if_falls_through(node)
    if isinstance(node, ast.While):
        return _constant(node.test) is not True or _has_break(node)
    if isinstance(node, _WITHS):
        # A context manager may swallow an exception, never a return.
        return _block_falls_through(node.body) or not _leaves_quietly(node.body)
    if isinstance(node, ast.Try | ast.TryStar):
        return _try_falls_through(node)
    if isinstance(node, ast.Match):
        catch_all = any(
            isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and not case.guard
            for case in node.cases
        )
        return not catch_all or any(_block_falls_through(case.body) for case in node.cases)
    return True


def _if_falls_through(node: ast.If) -> bool:
    truth = _constant(node.test)
    ways = [node.body] * (truth is not False) + [node.orelse] * (truth is not True)
    return any(_block_falls_through(way) for way in ways)


def _try_falls_through(node: ast.Try | ast.TryStar) -> bool:
    if node.finalbody and not _block_falls_through(node.finalbody):
        return False
    whole = _block_falls_through([*node.body, *node.orelse])
    return whole or any(_block_falls_through(handler.body) for handler in node.handlers)


def _block_falls_through(block: list[ast.stmt]) -> bool:
    return all(falls_through(node) for node in block)


def _leaves_quietly(block: list[ast.stmt]) -> bool:
    first = next(node for node in block if not falls_through(node))
    return not isinstance(first, ast.Raise)


def _ends_the_process(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func) in _ENDERS


def _has_break(loop: ast.While) -> bool:
    def inside(block: list[ast.stmt]) -> bool:
        for node in block:
            if isinstance(node, ast.Break):
                return True
            if not isinstance(node, (*DEFS, *_LOOPS)) and any(inside(inner) for _, inner in blocks(node)):
                return True
            if isinstance(node, _LOOPS) and inside(node.orelse):
                return True
        return False

    return inside(loop.body)
