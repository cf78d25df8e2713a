"""Objects that an operator is given by number: a schema knows numbers and tensors, but no graphs or kernels."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from smelt.graph.pytree import leaves


class Handle(int):
    """The number of an object, which lives as long as its handle: nodes and compiled graphs hold that."""

    inner: Any

    @classmethod
    def of(cls, inner: object) -> Handle:
        """A new one."""
        handle = cls(next(_numbers))
        handle.inner = _inner[int(handle)] = inner
        return handle


_numbers = itertools.count()
_inner: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def found(handle: int) -> Any:
    """The object that a handle is the number of."""
    return _inner[handle]


def handles_in(value: object) -> list[Handle]:
    """The handles among arguments: whoever keeps a call keeps them."""
    return leaves(value, Handle)
