"""The interfaces through which rules of operators write nodes of an aten graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from smelt.errors import Unsupported
from smelt.graph.ir import Node


class Emitter(Protocol):
    """Appends aten nodes to a graph."""

    def emit(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, spec: Any = None
    ) -> Node:
        """The node of the call `op(*args, **kwargs)`. `spec` describes its result; None asks the shape function."""
        ...

    def refuse(self, detail: str) -> Unsupported:
        """The exception to raise for a call that no nodes can express."""
        ...


class Make(Protocol):
    """Builds the node of one call of an operator."""

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node: ...
