"""Whether a call fits a def, both read as syntax."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..syntax.nodes import FUNCTIONS, places

type Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Signature:
    """`positional` may be given by place, `by_name` by keyword, `required` must be given."""

    positional: tuple[str, ...]
    by_name: frozenset[str]
    required: frozenset[str]
    more_positional: bool
    more_by_name: bool

    @classmethod
    def empty(cls) -> Signature:
        """Takes nothing."""
        return cls((), frozenset(), frozenset(), False, False)

    def takes(self, name: str) -> bool:
        """Whether a name can be passed."""
        return name in self.positional or name in self.by_name or self.more_by_name

    def without_first(self) -> Signature:
        """As seen through an instance, which fills the first parameter."""
        first = set(self.positional[:1])
        return Signature(
            self.positional[1:], self.by_name - first, self.required - first, self.more_positional, self.more_by_name
        )


def signature_of(function: Function) -> Signature:
    """What a function takes, self included."""
    args = function.args
    positional = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    optional = set(positional[len(positional) - len(args.defaults) :]) if args.defaults else set()
    keyword_only = [arg.arg for arg in args.kwonlyargs]
    optional |= {arg.arg for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True) if default is not None}
    return Signature(
        positional=tuple(positional),
        by_name=frozenset([arg.arg for arg in args.args] + keyword_only),
        required=frozenset([*positional, *keyword_only]) - optional,
        more_positional=args.vararg is not None,
        more_by_name=args.kwarg is not None,
    )


def method_signature(function: Function) -> Signature:
    """As called on an instance."""
    return signature_of(function) if _is(function, "staticmethod") else signature_of(function).without_first()


def function_signature(function: Function) -> Signature:
    """As called by name, or on a class."""
    return signature_of(function).without_first() if _is(function, "classmethod") else signature_of(function)


def _is(function: Function, decorator: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == decorator for node in function.decorator_list)


def call_problem(call: ast.Call, signature: Signature) -> str:
    """Why the call does not fit, or nothing. A call with * or ** is not judged."""
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(word.arg is None for word in call.keywords):
        return ""
    given = len(call.args)
    if given > len(signature.positional) and not signature.more_positional:
        return f"takes {len(signature.positional)} positional argument(s), {given} given"
    by_place = set(signature.positional[:given])
    names = {word.arg for word in call.keywords if word.arg}
    unknown = names - signature.by_name
    if unknown and not signature.more_by_name:
        return f"has no parameter {', '.join(sorted(unknown))}"
    if names & by_place:
        return f"gets {', '.join(sorted(names & by_place))} twice"
    missing = signature.required - by_place - names
    return f"lacks an argument for {', '.join(sorted(missing))}" if missing else ""


def override_problem(ours: Signature, theirs: Signature) -> str:
    """Why a method of ours cannot be called like the one it overrides, or nothing."""
    unknown = [name for name in (*theirs.positional, *sorted(theirs.by_name)) if not ours.takes(name)]
    if unknown and not ours.more_positional:
        return f"does not accept {', '.join(dict.fromkeys(unknown))}"
    for position, name in enumerate(theirs.positional):
        if name in ours.positional and ours.positional.index(name) != position:
            return f"has {name} at another position"
    for ours_has, theirs_has, what in (
        (ours.more_positional, theirs.more_positional, "positional"),
        (ours.more_by_name, theirs.more_by_name, "keyword"),
    ):
        if theirs_has and not ours_has:
            return f"does not take further {what} arguments"
    extra = ours.required - theirs.by_name - set(theirs.positional)
    return f"asks for {', '.join(sorted(extra))}, which callers do not give" if extra else ""


def methods(node: ast.ClassDef) -> dict[str, Function]:
    """The methods a class body defines; the last definition of a name counts."""
    return {place.node.name: place.node for place in places(node) if isinstance(place.node, FUNCTIONS)}


def dataclass_signature(node: ast.ClassDef) -> Signature | None:
    """What a dataclass without an own `__init__` takes; None for other classes, or if it has bases."""
    decorators = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    if node.bases or not any(ast.unparse(item).split(".")[-1] == "dataclass" for item in decorators):
        return None
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]
    fields = [item for item in fields if "ClassVar" not in ast.unparse(item.annotation)]
    names = [item.target.id for item in fields]  # type: ignore[union-attr]
    required = {item.target.id for item in fields if item.value is None}  # type: ignore[union-attr]
    return Signature(tuple(names), frozenset(names), frozenset(required), False, False)
