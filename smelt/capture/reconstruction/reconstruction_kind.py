"""The rows of this package: how a compiled frame reconstructs objects of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason
from smelt.shapes.expr import Expression
from smelt.tracing.record.wrapper_gradients import ResultGradient


class Expressions(Protocol):
    """Writes the expression of an object that already exists in the compiled frame."""

    def __call__(self, x: object) -> str: ...

    def constant(self, x: object, hint: str) -> str:
        """The expression of an object that is embedded in the compiled frame."""
        ...

    def unless_created(self, x: object, hint: str) -> str:
        """The expression of an object that is embedded unless capture created it."""
        ...

    def iterator_over(self, container: object, expression: str) -> str:
        """`expression`, which makes an iterator over `container`."""
        ...

    def number(self, x: torch.SymInt | torch.SymFloat) -> str:
        """The expression of a symbolic number."""
        ...

    def expression(self, expression: Expression) -> str:
        """The Python expression that computes a number expression."""
        ...

    def result_gradient(self, x: torch.Tensor) -> ResultGradient | None:
        """The gradient of a wrapper subclass's tensor that the graph returns."""
        ...

    def is_only_view(self, x: torch.Tensor) -> bool:
        """Whether no other tensor of the compiled frame is a view of the base of `x`, or that base."""
        ...

    def step(self, point: object) -> tuple[object, object]:
        """The step of a generator at a `ResumePoint`: see `ResumeFunctions.step`."""
        ...

    def callback_compiler(self) -> str:
        """The name of `ResumeFunctions.compiled_callback` in the compiled frame."""
        ...


@dataclass(frozen=True)
class ReconstructionKind:
    """The row of a kind of object. `needs`: the objects that must exist before it; `create`: the expression that creates it.

    A kind that can be created empty, and thus be part of a cycle, also has `empty` (the expression), `fill(x, text, name)`
    (the statements, for the object called `name`) and `holds` (the objects that `fill` refers to). `named`: it always needs
    `fill`.
    """

    needs: Callable[[Any], Iterable[object]]
    create: Callable[[Any, Expressions], str]
    empty: Callable[[Any, Expressions], str] | None = None
    fill: Callable[[Any, Expressions, str], list[str]] | None = None
    holds: Callable[[Any], Iterable[object]] = lambda x: ()
    named: bool = False


def unsupported(x: object, why: str = "") -> Unsupported:
    """The error for an object that capture created and no row can reconstruct."""
    detail = f"a {type(x).__module__}.{type(x).__qualname__} created inside the function leaves it"
    return Unsupported(Reason(UNSUPPORTED_OBJECT, detail + (f": {why}" if why else "")))
