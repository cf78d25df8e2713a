"""In-place aten graphs become functional ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.graph.ir import Graph, Node
from smelt.trace.fake import FakeTensor

if TYPE_CHECKING:
    from smelt.trace.record import Trace


def functionalize(trace: Trace, outputs: Sequence[FakeTensor]) -> tuple[Graph, list[Node | None], set[int]]:
    return trace.aten.graph, [f.aten for f in outputs], set()
