"""A row of the tables of this package: how a compiled frame makes an object of one kind anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.shapes.expr import Expression


class Expressions(Protocol):
    """Gives the expression for an object that is already available in the compiled frame."""

    def __call__(self, x: object) -> str: ...

    def constant(self, x: object, hint: str) -> str:
        """The expression for an object that is known by identity."""
        ...

    def unless_made(self, x: object, hint: str) -> str:
        """The expression for an object that is known by identity unless the trace made it."""
        ...

    def number(self, x: torch.SymInt | torch.SymFloat) -> str:
        """The expression for a symbolic number."""
        ...

    def expression(self, expression: Expression) -> str:
        """Python that computes a number that changes from call to call."""
        ...

    def step(self, point: object) -> tuple[object, object]:
        """What goes on in a generator at a `Point`: see `Resumes.step`."""
        ...

    def given_function(self) -> str:
        """The name of a function: see `Resumes.given`."""
        ...


@dataclass(frozen=True)
class Kind:
    """`needs`: objects that must exist before creation. `create`: the expression that makes the object out of them.

    Kinds that can be created empty also have `empty` (the expression), `fill` (statements; `name` is the object's) and
    `holds` (what fill refers to). `named`: has statements even where no cycle asks for them.
    """

    needs: Callable[[Any], Iterable[object]]
    create: Callable[[Any, Expressions], str]
    empty: Callable[[Any, Expressions], str] | None = None
    fill: Callable[[Any, Expressions, str], list[str]] | None = None
    holds: Callable[[Any], Iterable[object]] = lambda x: ()
    named: bool = False


def unsupported(x: object, why: str = "") -> Unsupported:
    """The error for an object that capture made and no row can make anew."""
    detail = f"a {type(x).__module__}.{type(x).__qualname__} made inside the function leaves it"
    return Unsupported(Reason(UNSUPPORTED_OBJECT, detail + (f": {why}" if why else "")))
