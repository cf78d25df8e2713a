"""Stored forms of the graphs of an entry: aten graphs, and the torch-level graph that second derivatives replay."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from smelt import _native
from smelt.autograd.double_backward import DoubleBackward
from smelt.errors import ExportError, PlanError
from smelt.exported.aten_graphs import as_data, inner_data, inner_graphs, restored
from smelt.exported.program_file import RECORDS, GraphData, GraphNode, InnerGraphs
from smelt.graph.ir import Graph, Node
from smelt.graph.subgraphs import Program
from smelt.guards.stored_form import Unstorable
from smelt.plan.serialization import packed
from smelt.plan.value_encoding import decode, encoded
from smelt.tracing.backward.torch_level_index import TorchLevelTensor
from smelt.warm.stored_entry import constant_form

# Values besides those of programs' files.
_RECORDS: dict[int, tuple[Any, tuple[str, ...]]] = {
    **RECORDS,
    30: (slice, ("start", "stop", "step")),
    31: (lambda: ..., ()),
}
_NUMBERS = {cls: (number, names) for number, (cls, names) in _RECORDS.items()} | {type(...): (31, ())}
# Where the functions of torch-level graphs are found.
_SPACES = (
    "torch", "torch.nn.functional", "torch._C._nn", "torch.functional", "torch.linalg", "torch.special", "torch.fft",
    "torch._C._linalg", "torch._C._special", "torch._C._fft", "_operator", "math", "torch._C", "torch._VF",
    "smelt.graph.torch_settings",
)  # fmt: skip
_GETATTR = "builtins:getattr"  # reads a property of a tensor, such as `T`


def stored_graphs(
    graphs: Mapping[str, Graph], double: DoubleBackward | None = None
) -> tuple[bytes, list[list[Any]]]:
    """The stored form of graphs, and their constants. Raises Unstorable."""
    constants: list[torch.Tensor] = []

    def name_of(tensor: torch.Tensor) -> str:
        constants.append(tensor)
        return str(len(constants) - 1)

    try:
        data: dict[str, Any] = {name: as_data(graph, name_of) for name, graph in graphs.items()}
        if double is not None:
            data["double"] = _double_form(double, name_of)
        written = encoded(data, _NUMBERS)
    except (ExportError, PlanError) as error:
        raise Unstorable(str(error)) from None
    return packed(written), [constant_form(tensor) for tensor in constants]


def read_graphs(section: bytes) -> Mapping[str, Any]:
    """The graphs of a section, as data. Raises PlanError, and ValueError for other bytes."""
    data: Mapping[str, Any] = decode(_native.unpacked(section), _RECORDS)
    return data


# ------------------------------------------------------------------------------------------------- second derivatives


def _double_form(double: DoubleBackward, name_of: Callable[[torch.Tensor], str]) -> dict[str, Any]:
    if double.has_checkpoints:
        raise Unstorable("second derivatives of checkpoints")
    index = {node: i for i, node in enumerate(double.graph)}

    def rows(tensors: Sequence[TorchLevelTensor]) -> list[Any]:
        return [[index[t.node], index[t.history_node], t.by_view, t.written_later] for t in tensors]

    return {
        "graph": as_data(double.graph, name_of, partial(_torch_target, name_of=name_of)),
        "results": rows(double.results),
        "cuts": rows(double.cuts),
        "rest": (double.sources, double.rewritten, double.copied, double.draws, False, double.settings, ()),
    }


def double_backward(form: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> DoubleBackward:
    """The double backward of a stored form, whose graph has the constants of `state`."""
    data: GraphData = form["graph"]
    graph = restored(data, state, partial(_torch_function, state=state))

    def tensors(rows: Sequence[Any]) -> tuple[TorchLevelTensor, ...]:
        nodes = graph.nodes
        return tuple(TorchLevelTensor(nodes[i], nodes[last], *flags) for i, last, *flags in rows)

    return DoubleBackward(graph, tensors(form["results"]), tensors(form["cuts"]), *form["rest"])


@functools.cache
def _names() -> dict[int, str]:
    """The names of functions, by id: `module:name`."""
    found = {id(getattr): _GETATTR}
    for space in _SPACES:
        for name, value in vars(sys.modules[space]).items():
            if callable(value) and not isinstance(value, type):
                found.setdefault(id(value), f"{space}:{name}")
    for name in dir(torch.Tensor):
        found.setdefault(id(getattr(torch.Tensor, name)), f"torch.Tensor:{name}")
    return found


def _torch_target(node: Node, name_of: Callable[[torch.Tensor], str]) -> Any:
    if node.op != "call_function":
        return node.target
    if isinstance(node.target, Program):
        return inner_data(
            node.target.rule, node.target.graphs, name_of, partial(_torch_target, name_of=name_of)
        )
    name = _names().get(id(node.target))
    if name is None or _function(name) is not node.target:
        raise Unstorable(f"second derivatives call {getattr(node.target, '__qualname__', node.target)}")
    return name


def _torch_function(node: GraphNode, state: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node.target, InnerGraphs):
        return Program(*inner_graphs(node.target, state, partial(_torch_function, state=state)))
    return _function(node.target) if node.op == "call_function" else node.target


def _function(name: str) -> Any:
    if name == _GETATTR:
        return getattr
    space, _, attribute = name.partition(":")
    if space == "torch.Tensor":
        return getattr(torch.Tensor, attribute)
    return vars(sys.modules[space])[attribute] if space in _SPACES else None
