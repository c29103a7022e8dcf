"""Overrides of SimpleTuner's methods by name, on one object of a run, never on its class."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

from .errors import GH200Error

_OPTIONAL = "_gh200_optional"


def override[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """Overrides the method of the same name, which every release has."""
    setattr(method, _OPTIONAL, False)
    return method


def override_if_present[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """The same, for a method that not every release has."""
    setattr(method, _OPTIONAL, True)
    return method


class Overrides:
    """`upstream` has the overridden methods of the object, as they were before."""

    upstream_class: ClassVar[str]
    feature: ClassVar[str]
    rejection: ClassVar[type[GH200Error]] = GH200Error

    def __init__(self) -> None:
        self.upstream = SimpleNamespace()

    @classmethod
    def answers(cls) -> dict[str, bool]:
        """The names it overrides, each with whether a release may lack it."""
        marks = {name: getattr(getattr(cls, name), _OPTIONAL, None) for name in dir(cls)}
        return {name: optional for name, optional in marks.items() if optional is not None}

    def install(self, owner: Any) -> None:
        """Overrides the methods on `owner`. A patch declares each as expected of SimpleTuner."""
        for name, optional in self.answers().items():
            original = getattr(owner, name, None)
            if original is not None:
                setattr(self.upstream, name, original)
            elif not optional:
                raise self.rejection(
                    f"This upstream's {type(owner).__name__} has no {name}.",
                    why=f"{self.feature} overrides it, and would be silently wrong without it",
                    fix=f"use an upstream release the fork was verified on, or turn {self.feature} off",
                )
        for name in vars(self.upstream):
            setattr(owner, name, getattr(self, name))
