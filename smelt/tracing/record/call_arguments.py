"""Arguments of a call, and the argument types that graphs can hold besides tensors, numbers and containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from smelt.torch_private import OpOverload

# Arguments of a call: the user's objects, with fakes (in graph nodes: nodes) in place of tensors.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

# Types of arguments that nodes hold unchanged.
LEAF_TYPES: frozenset[type] = frozenset(
    {
        int, float, bool, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.layout,
        torch.memory_format, torch.Size, type(NotImplemented), range,
    }
)  # fmt: skip


def composite_of(function: Callable[..., Any]) -> Callable[[Args, Kwargs], Any]:
    """`function` as a composite for torch's function of the same signature. It returns NotImplemented for arguments
    that do not fit, so that torch raises its own error."""

    def composite(args: Args, kwargs: Kwargs) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            return NotImplemented

    return composite


class Unnameable(Exception):
    """An argument that a graph cannot hold; the message describes it."""


def other_argument(value: object) -> object:
    """Rare argument types: numpy scalars become Python numbers. Raises Unnameable for what graphs cannot hold."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and value.__module__ in ("torch", "builtins"):
        return value
    raise Unnameable(f"an argument of type {type(value).__qualname__}")


def by_name(func: OpOverload, args: Args, kwargs: Kwargs) -> Kwargs:
    """An operator's arguments by name, with defaults, in schema order."""
    names = [a.name for a in func._schema.arguments]
    passed = {**dict(zip(names, args)), **kwargs}
    return {a.name: passed.get(a.name, a.default_value) for a in func._schema.arguments}
