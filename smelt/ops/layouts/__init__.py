"""Shape functions: what an operator returns for meta tensors, without torch's Python shape functions where possible.

torch registers Python functions over the C++ shape functions of most operators. They take 0.1 to 1 ms, and the first of
them that runs in a process imports torch's own compiler and sympy, for a second. `on_metas` therefore asks, in this order:

1. torch's C++ shape functions (`native/operators/shapes.cpp`);
2. the tables of this package, one module per family, for operators that models use and that have none;
3. the operator itself on real tensors of zeros, if they are few and it would otherwise be a Python function;
4. torch's function.

The answers of 2 and 3 are those of a CPU. Which dtypes a CPU has kernels for is no matter of shapes: after 1 the
operator is tried on tensors of one element. A function of a table that returns NotImplemented, and an operator that
refuses zeros, hand on to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch._ops import OpOverload

from smelt.ops.layouts import (
    attention,
    backward,
    convolutions,
    creation,
    moves,
    norms,
    pointwise,
    reductions,
)
from smelt.ops.layouts.meta import of_cpp
from smelt.ops.layouts.trial import accepts, of_zeros, tried

_FAMILIES = (attention, backward, convolutions, creation, moves, norms, pointwise, reductions)
_LAYOUTS = {func: layout for family in _FAMILIES for func, layout in family.LAYOUTS.items()}


def on_metas(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], cpu: bool) -> Any:
    """What `func` returns for meta tensors; `cpu` says that they stand for tensors on a CPU. Raises what `func` raises."""
    out = of_cpp(func, args, kwargs)
    if out is not NotImplemented and (not cpu or accepts(func, args, kwargs)):
        return out
    if cpu and out is NotImplemented:
        out = of_table(func, args, kwargs)
        if out is NotImplemented:
            out = of_zeros(func, args, kwargs)
        if out is not NotImplemented:
            return out
    return func(*args, **kwargs)


def of_table(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a function of a family's table says; NotImplemented where there is none, or where it does not know."""
    function = _LAYOUTS.get(func)
    return NotImplemented if function is None else function(*args, **kwargs)


__all__ = ["of_cpp", "of_table", "of_zeros", "on_metas", "tried"]
