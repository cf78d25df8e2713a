"""The arguments of a call, and which of them a graph can hold besides tensors, numbers and containers of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from smelt.torch_private import OpOverload

# The arguments of a call: the user's objects, with fakes (in nodes, nodes) in place of tensors.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

# Types of arguments that nodes hold as they are.
LEAF_TYPES: frozenset[type] = frozenset(
    {
        int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
        torch.memory_format, torch.Size, type(NotImplemented), range,
    }
)  # fmt: skip


def body_of(function: Callable[..., Any]) -> Callable[[Args, Kwargs], Any]:
    """What runs `function` in place of torch's of the same signature: NotImplemented for arguments that it does not take,
    for which torch has words."""

    def body(args: Args, kwargs: Kwargs) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            return NotImplemented

    return body


class Unnameable(Exception):
    """An argument that a graph cannot hold; the text says what it is."""


def other_argument(value: object) -> object:
    """Argument kinds that are rare: numpy scalars become numbers. Raises Unnameable for what graphs cannot hold."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and value.__module__ in ("torch", "builtins"):
        return value
    raise Unnameable(f"an argument of type {type(value).__qualname__}")


def by_name(func: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs:
    """The arguments of an operator by name, with defaults, in the order of the schema."""
    names = [a.name for a in func._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    return {a.name: given.get(a.name, a.default_value) for a in func._schema.arguments}
