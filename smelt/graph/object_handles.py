"""Handles: numbers that stand for objects (graphs, kernels) in calls of operators, whose schemas know only numbers and
tensors."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping
from typing import Any

from smelt.graph.pytree import leaves
from smelt.shapes.expr import Size, Sym
from smelt.shapes.substitute import substitute, substitution


class Handle(int):
    """The number of an object. The object lives as long as its handle, which nodes and compiled graphs hold."""

    inner: Any

    @classmethod
    def of(cls, inner: object) -> Handle:
        """A new handle for the object."""
        handle = cls(next(_numbers))
        handle.inner = _inner[int(handle)] = inner
        return handle


_numbers = itertools.count()
_inner: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


@substitution(Handle)
def _with_sizes(handle: Handle, values: Mapping[Sym, Size]) -> Handle:
    """A handle of the object at these sizes."""
    inner = substitute(handle.inner, values)
    return handle if inner is handle.inner else Handle.of(inner)


def found(handle: int) -> Any:
    """The object of a handle's number."""
    return _inner[handle]


def handles_in(value: object) -> list[Handle]:
    """The handles among arguments; whoever holds the call must hold them."""
    return leaves(value, Handle)
