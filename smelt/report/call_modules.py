"""The module of each torch-level call, inferred from the parameters that calls read.

A call that reads `layers.0.weight` belongs to `layers.0`. Modules nest, so a call between two such calls belongs to
the innermost module that contains both.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.graph.ir import Graph, Node, argument_nodes
from smelt.guards.source import Source, key_text

_TABLES = ("_modules", "_parameters", "_buffers")  # steps of a source that a name in the program leaves out
Path = tuple[str, ...]


def modules_of(graph: Graph, sources: Sequence[Source]) -> dict[Node, str]:
    """The name of each node's module, as in `named_modules`; nodes without a module are left out.

    Args:
        graph: a torch-level graph.
        sources: the sources of its first placeholders, the tensors.
    """
    owners = {p: path for p, o in zip(graph.placeholders, sources) if (path := _module_path(o)) is not None}
    calls = [node for node in graph if node.op.startswith("call")]
    known = [_own(node, owners) for node in calls]
    before: list[Path | None] = []
    latest: Path | None = None
    for path in known:
        latest = path if path is not None else latest
        before.append(latest)
    following: Path | None = None
    found: dict[Node, Path] = dict(owners)
    for node, path, previous in zip(reversed(calls), reversed(known), reversed(before)):
        following = path if path is not None else following
        if path is not None:
            found[node] = path
        elif previous is not None and following is not None:
            found[node] = _shared(previous, following)
    return {node: ".".join(path) for node, path in found.items() if path}


def _own(node: Node, owners: dict[Node, Path]) -> Path | None:
    """The innermost module of a call's parameters."""
    paths = [owners[n] for n in argument_nodes(node) if n in owners]
    return max(paths, key=len, default=None)


def _shared(a: Path, b: Path) -> Path:
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[:count]


def _module_path(source: Source) -> Path | None:
    """The path of the module that holds a parameter or buffer; None for other sources."""
    if source.kind != "param" or source.base is None:
        return None
    steps: list[str] = []
    at: Source | None = source.base
    while at is not None and at.base is not None:
        if type(at.key) is not str or at.key not in _TABLES:
            steps.append(key_text(at.key) if type(at.key) is not str else at.key)
        at = at.base
    if at is not None and at.kind == "arg" and str(at.key) != "self":
        steps.append(str(at.key))
    return tuple(reversed(steps))
