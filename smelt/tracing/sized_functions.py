"""Functions of torch that take sizes for numbers, in C++ or in Python, in every version: what torch does is done here with
symbolic ones."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch

from smelt.graph.sizes import evaluate
from smelt.tracing.arguments import Args, Kwargs
from smelt.tracing.products import shape_of, symbols_in


def _einsum(args: Args, kwargs: Kwargs) -> Any:
    """Of three operands and more opt_einsum says in which order they are multiplied: the order for the sizes of the call at
    hand serves others as well."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    symbols = symbols_in(*operands)
    planner = torch.backends.opt_einsum.get_opt_einsum()
    usable = planner is not None and torch.backends.opt_einsum.enabled  # type: ignore[attr-defined]
    if kwargs or not isinstance(equation, str) or len(operands) < 3 or symbols is None or not usable:
        return NotImplemented
    shapes = [[evaluate(n, symbols.hints) for n in shape_of(x)] for x in operands]
    strategy = torch.backends.opt_einsum.strategy  # type: ignore[attr-defined]
    path, _ = planner.contract_path(equation, *shapes, shapes=True, optimize=strategy)
    return torch._VF.einsum(equation, operands, path=list(chain.from_iterable(path)))  # type: ignore[attr-defined]


def _fill_diagonal(args: Args, kwargs: Kwargs) -> Any:
    given = dict(zip(("self", "fill_value", "wrap"), args), **kwargs)
    x, value, wrap = given.pop("self", None), given.pop("fill_value", None), given.pop("wrap", False)
    if given or symbols_in(x) is None or x.dim() != 2 or not isinstance(value, (int, float)) or wrap:
        return NotImplemented
    x.diagonal().fill_(value)
    return x


# What is run in place of these functions: `body(args, kwargs)` gives NotImplemented where torch's own code is to run.
BODIES: dict[Any, Any] = {
    torch.functional.einsum: _einsum,
    torch.Tensor.fill_diagonal_: _fill_diagonal,
}
