"""Appending nodes with unique names to a graph under construction."""

from __future__ import annotations

import keyword
import re
from typing import Any, Literal

from smelt.graph.ir import Graph, Line, Node, OpKind
from smelt.tracing.record.call_arguments import Args, Kwargs

_RESERVED = set(keyword.kwlist) | {"torch", "getattr", "operator", "inf", "nan", "device", "output"}
_RESERVED |= {f"s{i}" for i in range(24)}  # size symbols
_RESERVED |= {"complex", "float", "slice", "constants"}  # names used by printed graphs


class Builder:
    """Wraps a `Graph` and assigns unique names (`add`, `add_1`, ...)."""

    def __init__(self, level: Literal["torch", "aten"]) -> None:
        self.graph = Graph(level)
        self._used: dict[str, int] = dict.fromkeys(_RESERVED, 0)

    def name(self, stem: str) -> str:
        """A name unused in this graph that starts with `stem` (which must be an identifier)."""
        used = self._used
        count = used.get(stem)
        if count is None:
            used[stem] = 0
            return stem
        while True:
            count += 1
            name = f"{stem}_{count}"
            if name not in used:
                used[stem] = count
                used[name] = 0
                return name

    def make(
        self,
        op: OpKind,
        target: Any,
        args: Args,
        kwargs: Kwargs,
        stem: str,
        spec: Any = None,
        line: Line | None = None,
        source: Node | None = None,
    ) -> Node:
        """Append and return a node."""
        node = Node(op, target, args, kwargs, self.name(stem), spec, line, source)
        self.graph.nodes.append(node)
        return node


def identifier(text: str) -> str:
    """`text` as a Python identifier (for names that come from the user's objects)."""
    name = re.sub(r"\W+", "_", text).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() else name
