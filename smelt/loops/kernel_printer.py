"""Prints kernels as nested loops: a line for each store and reduction, and for each value that is needed more than once.

softmax(in p0: float32, out p1: float32)
for o0 in 32:
  reduce i0 in 64:
    r0 = max(p0[i0 + 64*o0])
  reduce i0 in 64:
    r1 = sum(exp(p0[i0 + 64*o0] - r0))
  map i0 in 64:
    p1[i0 + 64*o0] = exp(p0[i0 + 64*o0] - r0) / r1
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import torch

from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    ScanStage,
    Stage,
    Store,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.shapes.expr import Sym

# Operators that are written between their operands: how they look, and how tightly they bind.
_INFIX = {
    "mul": ("*", 5), "div": ("/", 5), "floordiv": ("//", 5), "remainder": ("%", 5),
    "add": ("+", 4), "sub": ("-", 4),
    "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "logical_and": ("and", 2), "logical_or": ("or", 1),
}  # fmt: skip
_SHORT = ("load", "const", "index", "result")  # written out each time, unless under a mask
_CHOICE, _ATOM = 0, 9  # how tightly `a if c else b`, and what needs no brackets, bind


def print_kernel(kernel: Kernel) -> str:
    """The kernel as text. Buffer i is `p<i>`, a reduction has its name, sizes and indices are in elements. Equal
    kernels of one name print equally."""
    buffers = ", ".join(f"{_role(b)} p{i}: {_name(b.dtype)}" for i, b in enumerate(kernel.buffers))
    sizes = f"; {', '.join(map(str, kernel.sizes))}" if kernel.sizes else ""
    lines = [f"{kernel.name}({buffers}{sizes})"]
    if kernel.outer:
        lines.append(f"for {_loops(kernel.outer)}:")
    indent = "  " if kernel.outer else ""
    lines += [indent + line for stage in kernel.stages for line in _stage(stage)]
    if kernel.sums is not None:
        lines.append(f"beside it, for {_loops(kernel.sums.outer)}:")
        lines += ["  " + line for stage in kernel.sums.stages for line in _stage(stage)]
    return "\n".join(lines)


def _role(buffer: Buffer) -> str:
    return f"local[{buffer.size}]" if buffer.role == "local" else buffer.role


def _loops(loops: Sequence[Loop]) -> str:
    return ", ".join(f"{loop.sym} in {loop.size}" for loop in loops)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stage(stage: Stage) -> Iterator[str]:
    head, write = _head(stage), _Values(stage)
    indent = "  " if head else ""
    if head:
        yield head + ":"
    yield from (indent + line for line in write.lines())


def _head(stage: Stage) -> str:
    """The stage's loops and their action; empty for a stage without loops."""
    loops = _loops(stage_loops(stage))
    return f"{_KINDS[type(stage)]} {loops}" if loops else ""


_KINDS: dict[type[Stage], str] = {MapStage: "map", ReduceStage: "reduce", ScanStage: "scan"}


class _Values:
    """Text of the values of one stage. A value with several users that is neither an element nor a number gets a name."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        roots = stage_values(stage)
        uses = Counter(roots)
        for value in walk(roots):
            uses.update(_operands(value))
        self.shared = {v for v, n in uses.items() if n > 1 and (v.op not in _SHORT or _operands(v))}
        self.names: dict[Value, str] = {}

    def lines(self) -> Iterator[str]:
        for reduction in self.stage.reductions if isinstance(self.stage, ReduceStage) else ():
            yield from self.definitions(reduction.value)
            yield f"{reduction.name} = {reduction.kind}({self.text(reduction.value)})"
        for store in stage_stores(self.stage):
            for value in (store.value, *(l.value for l in store.lookups)):
                yield from self.definitions(value)
            yield self.store(store)

    def store(self, store: Store) -> str:
        text = self.text(store.value)
        scanned = f"{self.stage.kind}({text})" if isinstance(self.stage, ScanStage) else text
        further = "".join(f" + {l.stride}*({self.text(l.value)})" for l in store.lookups)
        return f"p{store.buffer}[{store.index}{further}] = {scanned}"

    def definitions(self, value: Value) -> Iterator[str]:
        """A line for each shared value in `value` that has no name yet, operands first."""
        if value in self.names:
            return
        for part in _operands(value):
            yield from self.definitions(part)
        if value in self.shared:
            text = self.written(value, _CHOICE)
            self.names[value] = f"v{len(self.names)}"
            yield f"{self.names[value]} = {text}"

    def text(self, value: Value, around: int = _CHOICE) -> str:
        """The expression, in brackets if the `around` operator binds more tightly."""
        return self.names.get(value) or self.written(value, around)

    def written(self, value: Value, around: int) -> str:
        text, binding = self.unbracketed(value)
        return f"({text})" if binding < around else text

    def unbracketed(self, value: Value) -> tuple[str, int]:
        """The expression and its precedence."""
        if value.op in _INFIX:
            sign, binding = _INFIX[value.op]
            left, right = value.args
            return f"{self.text(left, binding)} {sign} {self.text(right, binding + 1)}", binding
        if value.op in _WRITTEN:
            return _WRITTEN[value.op](self, value)
        return f"{value.op}({', '.join(self.text(a) for a in value.args)})", _ATOM

    def load(self, value: Value) -> tuple[str, int]:
        buffer, index, mask = value.args
        text = f"p{buffer}[{index}]"
        return (text, _ATOM) if mask is None else (f"{text} if {self.text(mask, 1)} else 0", _CHOICE)

    def where(self, value: Value) -> tuple[str, int]:
        condition, a, b = value.args
        return f"{self.text(a, 1)} if {self.text(condition, 1)} else {self.text(b, 1)}", _CHOICE

    def cast(self, value: Value) -> tuple[str, int]:
        return f"{_name(value.dtype)}({self.text(value.args[0])})", _ATOM

    def index(self, value: Value) -> tuple[str, int]:
        (expression,) = value.args
        return (str(expression), _ATOM) if isinstance(expression, Sym) else (f"({expression})", _ATOM)

    def negative(self, value: Value) -> tuple[str, int]:
        return f"-{self.text(value.args[0], 6)}", 6


def _operands(value: Value) -> list[Value]:
    return [a for a in value.args if isinstance(a, Value)]


_WRITTEN: dict[str, Callable[[_Values, Value], tuple[str, int]]] = {
    "load": _Values.load,
    "const": lambda _, value: (repr(value.args[0]), _ATOM),
    "index": _Values.index,
    "result": lambda _, value: (str(value.args[0]), _ATOM),
    "cast": _Values.cast,
    "where": _Values.where,
    "neg": _Values.negative,
}
