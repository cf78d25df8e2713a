"""What the operators of programs that are valid for all sizes are written with.

An operator writes one line of such a program. It is given the writer, and gives the expression of a new variable, True if
it wrote lines itself, or None where it cannot be applied. Operators that raise for tensors without elements are mostly
applied to dimensions that never are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.harness.sized_values import Dim, Value

if TYPE_CHECKING:
    from tests.harness.generate_sizes import Writer

Operator = Callable[["Writer"], "Value | bool | None"]
FLOATS = ("whole", "rough")
EXACT = ("whole", "index")
ANY = ("whole", "rough", "index", "mask")


def listed(operators: list[Operator]) -> Callable[[int], Callable[[Operator], Operator]]:
    """A decorator that lists a function as many times as it is told."""

    def operator(weight: int = 1) -> Callable[[Operator], Operator]:
        def add(function: Operator) -> Operator:
            operators.extend([function] * weight)
            return function

        return add

    return operator


def axis_of(w: Writer, v: Value) -> int:
    return w.pick(len(v.dims))


def never_empty(w: Writer, v: Value) -> int | None:
    """A dimension that is never 0, mostly."""
    found = [d for d, size in enumerate(v.dims) if size.least > 0]
    if found:
        return int(w.one_of(found))
    return axis_of(w, v) if w.chance(8) else None


def signed(w: Writer, d: int, rank: int) -> int:
    """The dimension, perhaps counted from the end."""
    return d - rank if w.chance(3) else d


def least(v: Value) -> int:
    return min((d.least for d in v.dims), default=1)


def with_dims(dims: tuple[Dim, ...], d: int, *new: Dim) -> tuple[Dim, ...]:
    return (*dims[:d], *new, *dims[d + 1 :])


def bounded(text: str, kind: str) -> str:
    """A value that stays small."""
    return f"({text}).clamp(-9, 9)" if kind in EXACT else f"torch.tanh({text})"
