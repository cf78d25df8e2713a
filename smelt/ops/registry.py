"""The table of lowerings.

An entry is `f(builder, *args, **kwargs)`, called with the aten arguments (tensors as lazy `Tensor`s). It returns a
`Tensor`, a tuple of them, or None: "call the ATen operator", which is also what happens to operators without an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Lowering = Callable[..., Any]

LOWERINGS: dict[Any, Lowering] = {}
# Those that may be given a `Number` (whose value a call brings) where they take a number.
TAKE_NUMBERS: set[Any] = set()


def lowers(*operators: Any) -> Callable[[Lowering], Lowering]:
    """Register a lowering for overloads."""

    def register(f: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(operators, f))
        return f

    return register
