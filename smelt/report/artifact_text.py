"""Text of compilation artifacts: frames, the source of resume functions, graphs, kernels, plans."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from smelt.capture.base.bytecode import original_of
from smelt.capture.driver.cache_entries import Entry
from smelt.capture.graph_breaks.generator_steps import is_step
from smelt.graph.graph_printer import python_source
from smelt.graph.ir import Graph, TensorSpec
from smelt.graph.sample_sizes import syms_of
from smelt.plan.plan_printer import print_plan
from smelt.plan.steps import Plan
from smelt.report.edited_sources import mark
from smelt.shapes.expr import INFINITE, Sym
from smelt.shapes.substitute import substitute


@dataclass(frozen=True)
class Written:
    """The text of a file; `body` begins on line `line`."""

    text: str
    body: str
    line: int


def _below(head: str, body: str, tail: str = "") -> Written:
    return Written(f"{head}{body}{tail}\n{mark(head + body)}", body, head.count("\n") + 1)


def comment(text: str) -> str:
    """`text` as comment lines of Python."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


# ------------------------------------------------------------------------------------------------------------ frames


def frame_text(entry: Entry) -> Written:
    """The compiled frame, preceded by its guards."""
    names = (
        "graph is the compiled graph; inputs are the tensors that the guards collected. Names without a definition\n"
        "here are objects of the program: the file can be read and stepped through, but does not run by itself."
    )
    sizes = "".join(f"\n{sym} is {_size_text(entry, sym)}" for sym in entry.traced.sizes)
    head = comment(
        f"{entry.name}: the compiled frame.\n\n{names}{sizes}\n\nIt runs if all these guards hold:"
    )
    return _below(head + comment(entry.guards) + "\n", entry.source)


def _size_text(entry: Entry, sym: Sym) -> str:
    size = entry.traced.sizes[sym]
    low, high = size.bounds
    of = f"a size of input {size.input}, {size.hint} in the captured call"
    return of + (f", from {low} to {high}" if high < INFINITE else f", from {low} on" if low else "")


def resume_text(function: FunctionType) -> str | None:
    """The user's function that a resume function continues, with a mark at the resume point; None for other functions,
    or without its source."""
    behind = "a graph break"
    if is_step(function):
        behind, function = "a `yield`", function.__globals__["step"].function
    original = original_of(function.__code__)
    if original is None:
        return None
    line = next((n for _, _, n in function.__code__.co_lines() if n is not None), None)
    try:
        lines, first = inspect.getsourcelines(original.code)
    except (OSError, TypeError):
        return None
    code = function.__code__
    arguments = ", ".join(code.co_varnames[: code.co_argcount]) or "nothing"
    text = textwrap.dedent("".join(lines)).splitlines()
    here = None if line is None else line - first
    if here is not None and 0 <= here < len(text) and not text[here].endswith("\\"):
        text[here] += "  # <-- continues here, with the rest of this line"
    head = comment(
        f"{function.__name__}: the rest of {original.code.co_qualname} behind {behind}, as a function.\n"
        f"{original.code.co_filename}:{line}\n\nIts arguments are the variables that are read later, then the "
        f"intermediate values of the line:\n{arguments}"
    )
    return head + "\n" + "\n".join(text) + "\n"


# ------------------------------------------------------------------------------------------------------------ graphs


def graph_text(
    graph: Graph, title: str, sizes: Mapping[str, int] | None = None, constants_file: str = ""
) -> Written:
    """The graph as a program that runs by itself, on inputs like those of the call. `sizes`: values of the symbols by
    name; `constants_file`: the file with tensors that the program does not spell out."""
    written = python_source(graph)
    head = comment(title) + "\n"
    for name, value in written.names.items():
        head += _import(name, value, constants_file)
    if "torch.ops.smelt." in written.source:
        head += "import smelt.callables  # registers smelt's operators\n"
    inputs = [f"        {_example(p.spec, sizes or {})},  # {p.name}" for p in graph.placeholders]
    listed = "\n".join(["    inputs = [", *inputs, "    ]"]) if inputs else "    inputs = []"
    tail = (
        f'\n\nif __name__ == "__main__":\n    torch.manual_seed(0)\n{listed}\n    print(forward(*inputs))\n'
    )
    return _below(head, written.source, tail)


def constants_of(graph: Graph) -> dict[str, torch.Tensor]:
    """The tensors that a graph's program reads from a file."""
    found: dict[str, torch.Tensor] = python_source(graph).names.get("constants", {})
    return {name: value.detach() for name, value in found.items()}


def _import(name: str, value: Any, constants_file: str) -> str:
    if name == "constants":
        load = f'constants = torch.load(Path(__file__).with_name("{constants_file}"))'
        return f"from pathlib import Path\n\nimport torch\n\n{load}\n\n"
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if isinstance(module, str) and _found(module, path) is value:
        return f"import {module}\n\n{name} = {module}.{path}\n\n"
    return (
        f"{name} = None\n{comment(f'{value!r}, which no module names: this file does not run by itself')}\n"
    )


def _found(module: str, path: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


_DRAWN = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)


def _example(spec: Any, sizes: Mapping[str, int]) -> str:
    if not isinstance(spec, TensorSpec):
        return "1.0" if getattr(spec, "type", int) is float else "2"
    spec = substitute(spec, {sym: sizes.get(sym.name, 2) for sym in syms_of(spec)})
    shape, stride = tuple(spec.shape), tuple(spec.stride)
    layout = f"{shape}, {stride}, dtype={spec.dtype}, device={str(spec.device)!r}"
    fill = "normal_()" if spec.dtype in _DRAWN else "zero_()"
    return f"torch.empty_strided({layout}).{fill}"


# ----------------------------------------------------------------------------------------------------- kernels, plans


def sources_text(plans: Iterable[Plan]) -> dict[str, str]:
    """By file ending, the sources of the plans' kernels: LLVM text, or Python for Triton."""
    found: dict[str, dict[str, str]] = {"ll": {}, "triton.py": {}}
    for plan in plans:
        for symbol, function in plan.kernels.items():
            if function.source is not None:
                kind = "ll" if function.block is None else "triton.py"
                found[kind].setdefault(function.source, symbol)
    mark = {"ll": ";", "triton.py": "#"}
    return {
        kind: "\n".join(f"{mark[kind]} {symbol}\n{text}" for text, symbol in texts.items())
        for kind, texts in found.items()
        if texts
    }


def plans_text(plans: Sequence[Plan]) -> str:
    """The steps of plans."""
    return "\n\n".join(map(print_plan, plans)) + "\n"
