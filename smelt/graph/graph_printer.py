"""Text of graphs: a Python program that runs, and a table.

The program is a function `forward` of the placeholders. A value without later readers is set to None, which frees its
memory. Constants of more than 64 elements are not printed; the text reads them from a dictionary `constants`.
"""

from __future__ import annotations

import builtins
import keyword
import linecache
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.free_symbols import dimensions, graphs_in, symbols_in
from smelt.graph.ir import Graph, Line, Node, TensorSpec, argument_nodes
from smelt.graph.object_handles import handles_in
from smelt.shapes.expr import contiguous_stride
from smelt.torch_private import (
    VF,
    OpOverload,
    OpOverloadPacket,
    functions_of_c,
    functions_of_nn,
    variable_functions,
)

_MAX_PRINTED_CONSTANT = 64

_IMPORTS = "import operator\n\nimport torch\n"

# Where functions are looked for by name, the path that a reader knows best first.
_NAMESPACES: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", torch.nn.functional),
    ("operator", operator),
    ("", builtins),
    ("torch._C._nn", functions_of_nn),
    ("torch.special", torch.special),
    ("torch.fft", torch.fft),
    ("torch.linalg", torch.linalg),
    ("torch._C._VariableFunctions", variable_functions),
    ("torch._C", functions_of_c),
    ("torch._VF", VF),
    ("torch.Tensor", torch.Tensor),
)


@dataclass(frozen=True)
class PythonSource:
    """`source` defines `forward`; `names`: the names it needs besides `torch` and `operator`."""

    source: str
    names: dict[str, Any]

    def function(self) -> Callable[..., Any]:
        """`forward`, compiled."""
        scope: dict[str, Any] = dict(self.names)
        exec(compile(self.source, "<smelt graph>", "exec"), scope)
        return scope["forward"]


def python_source(graph: Graph, comments: bool = True) -> PythonSource:
    """The graph as Python. `comments`: user lines and result types."""
    names: dict[str, Any] = {}
    head = [*_IMPORTS.split("\n"), *_constants(graph, names)]
    body = _body(graph, names, comments)
    used = set(symbols_in(n for n in graph.nodes if n.op != "placeholder"))
    bound = dimensions(graph.placeholders)
    sizes = [f"{s} = {bound[s][0]}.size({bound[s][1]})" for s in sorted(used & bound.keys(), key=str)]
    parameters = ", ".join(n.name for n in graph.placeholders)
    source = "\n".join(
        [*head, "", f"def forward({parameters}):", *(f"    {line}".rstrip() for line in [*sizes, *body]), ""]
    )
    return PythonSource(source, names)


def code(graph: Graph) -> str:
    """The graph as a Python program, which runs if it needs no names besides `torch` and `operator`. The graphs inside it
    follow as functions, named for their nodes."""
    text = python_source(graph).source
    for node in graph:
        for handle in handles_in(node.args):
            for i, inner in enumerate(graphs_in(handle)):
                function = code(inner).removeprefix(_IMPORTS)
                text += f"\n{function.replace('def forward(', f'def {node.name}_{i}(', 1)}"
    return text


def _constants(graph: Graph, names: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in graph.constants.items():
        if value.numel() <= _MAX_PRINTED_CONSTANT and value.is_contiguous() and value.device.type == "cpu":
            lines.append(f"{name} = torch.tensor({_value_text(value.tolist(), names)}, dtype={value.dtype})")
        else:
            names["constants"] = graph.constants
            lines.append(f"{name} = constants[{name!r}]")
    return lines


def _body(graph: Graph, names: dict[str, Any], comments: bool) -> list[str]:
    last = _last_users(graph)
    lines: list[str] = []
    line: Line | None = None
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        if comments and node.line is not None and node.line != line:
            line = node.line
            lines += ["", f"# {line}{_text_of(line)}"]
        if node.op == "output":
            lines.append(f"return {_value_text(node.args[0], names)}")
            continue
        text = f"{node.name} = {_call_text(node, names)}"
        done = "".join(f"{n.name} = " for n in last.get(node, ()))
        text += f";  {done}None" if done else ""
        lines.append(text + (f"  # {spec_text(node.spec)}" if comments and node.spec is not None else ""))
    return lines


def _text_of(line: Line) -> str:
    """The text of the line, if its file is at hand."""
    text = linecache.getline(line.filename, line.line).strip()
    return f": {text}" if text else ""


def _last_users(graph: Graph) -> dict[Node, list[Node]]:
    """Node -> the inputs and computed values that no later node reads."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        for argument in argument_nodes(node):
            last[argument] = node
    done: dict[Node, list[Node]] = {}
    for value, user in last.items():
        if user.op != "output" and value.op != "get_attr":
            done.setdefault(user, []).append(value)
    return done


def _call_text(node: Node, names: dict[str, Any]) -> str:
    values = [_value_text(a, names) for a in node.args]
    values += [f"{k}={_value_text(v, names)}" for k, v in node.kwargs.items()]
    if node.op == "call_method":
        return f"{values[0]}.{node.target}({', '.join(values[1:])})"
    if node.target is operator.getitem and len(values) == 2:
        return f"{values[0]}[{_index_text(node.args[1], names)}]"
    return f"{target_text(node.target, names)}({', '.join(values)})"


def _index_text(index: Any, names: dict[str, Any]) -> str:
    if isinstance(index, tuple) and index:
        inner = ", ".join(_index_text(i, names) for i in index)
        return inner + ("," if len(index) == 1 else "")
    if isinstance(index, slice):
        start, stop, step = (
            "" if v is None else _value_text(v, names) for v in (index.start, index.stop, index.step)
        )
        return f"{start}:{stop}" + (f":{step}" if step else "")
    return _value_text(index, names)


def target_text(target: Any, names: dict[str, Any]) -> str:
    """An expression for a function; a function that no known module holds gets an entry in `names`."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        packet, _, overload = str(target).rpartition(".")
        if keyword.iskeyword(overload):  # aten.random.from
            return f"getattr(torch.ops.{packet}, {overload!r})"
        return f"torch.ops.{target}"
    name = getattr(target, "__name__", "")
    for namespace, module in _NAMESPACES:
        if name and getattr(module, name, None) is target:
            return f"{namespace}.{name}" if namespace else name
    alias = f"_{name or 'function'}"
    while names.setdefault(alias, target) is not target:
        alias += "_"
    return alias


def _value_text(value: Any, names: dict[str, Any]) -> str:
    kind = type(value)
    if kind is Node:
        return value.name
    if kind is float and not math.isfinite(value):
        return f"float('{value}')"
    if kind is complex:
        return f"complex({_value_text(value.real, names)}, {_value_text(value.imag, names)})"
    if kind is list:
        return f"[{', '.join(_value_text(v, names) for v in value)}]"
    if isinstance(value, tuple):
        return f"({', '.join(_value_text(v, names) for v in value)}{',' if len(value) == 1 else ''})"
    if kind is dict:
        return "{" + ", ".join(f"{k!r}: {_value_text(v, names)}" for k, v in value.items()) + "}"
    if kind is slice:
        return f"slice({', '.join(_value_text(v, names) for v in (value.start, value.stop, value.step))})"
    if kind is torch.device:
        return f"torch.device({str(value)!r})"
    if kind is type(...):
        return "..."
    if isinstance(value, type):
        return target_text(value, names)
    return repr(value)


def spec_text(spec: Any) -> str:
    """`float32[2, 3]`; strides only if they are not contiguous."""
    if isinstance(spec, tuple):
        return f"({', '.join(spec_text(s) for s in spec)})"
    if not isinstance(spec, TensorSpec):
        return str(spec)
    text = f"{str(spec.dtype).removeprefix('torch.')}[{', '.join(map(str, spec.shape))}]"
    if spec.device.type != "cpu":
        text += f" {spec.device}"
    if spec.stride != contiguous_stride(spec.shape):
        text += f" strides ({', '.join(map(str, spec.stride))})"
    return text


def table(graph: Graph) -> str:
    """One row per node: kind, name, target, arguments, result."""
    rows = [("op", "name", "target", "args", "kwargs", "result")]
    for node in graph.nodes:
        names: dict[str, Any] = {}
        target = node.target if isinstance(node.target, str) else target_text(node.target, names)
        args, kwargs = _value_text(node.args, names), _value_text(node.kwargs, names)
        rows.append(
            (node.op, node.name, target, args, kwargs, spec_text(node.spec) if node.spec is not None else "")
        )
    return columns(rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first row is the head."""
    widths = [min(60, max(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)
