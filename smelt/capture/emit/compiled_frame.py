"""The compiled frame: an ordinary Python function, written as source, that replaces a captured frame.

    def compiled_forward(self, x, inputs):
        t0, t1 = graph(inputs)
        return {'logits': t0, 'states': (t1, self)}

It takes the frame's argument slots and the objects that the guard tree collected: the graph's input tensors first, then
other outside objects that the result or a store needs. It calls the graph, makes all values, then does all stores in
program order. An object that was reached twice is one object again, cycles included; an input tensor that comes out is
the input itself.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from smelt.capture.breaks.endings import Ending
from smelt.capture.breaks.resume import Resumes
from smelt.capture.emit.replay import Store
from smelt.capture.emit.rerun import guarded_call, handle_again, run_again
from smelt.capture.rebuilding.constants import CONSTANTS, LITERALS, stands_for_itself
from smelt.capture.rebuilding.kind import Kind
from smelt.capture.rebuilding.kinds import kind_of
from smelt.capture.rebuilding.names import NAMES
from smelt.capture.rebuilding.reach import Reach
from smelt.capture.rebuilding.source import compiled_source
from smelt.graph import numbers
from smelt.graph.numbers import Expression
from smelt.guards.origin import Origin, key_name
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import NUMBERS

_BUILTINS = vars(builtins)
# besides NAMES, what statements may use
_RESERVED = frozenset({*_BUILTINS, "inputs", "graph", "failure", "error", "run_again"})
_RECURSION_LIMIT = 20_000
_NESTING = 20  # how deep expressions may be nested: the parser has a limit


@dataclass(frozen=True)
class CompiledFrame:
    """`collect`: what the guard tree hands over as `inputs`, in order."""

    function: FunctionType
    source: str
    collect: tuple[Origin, ...]


# ------------------------------------------------------------------------------------------------- writing


class Writer:
    """Writes the body. Calling it gives the expression for an object, after writing the statements that make it."""

    def __init__(self, found: Reach, slots: Sequence[str], collect: Sequence[Origin]) -> None:
        self.found = found
        self.slots = slots
        self.collect = list(collect)
        self.head: list[str] = []  # before the graph is called
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # object -> the local or global name that holds it
        self._taken = {*slots, *NAMES, *_RESERVED}
        self._collected = {origin: f"inputs[{i}]" for i, origin in enumerate(collect)}
        self._depth = 0  # of the expression that is being written
        self._late: list[tuple[str, object, Kind]] = []  # objects on cycles, to be filled when all exist
        self._keep: list[object] = []

    def __call__(self, x: Any) -> str:
        name = self._names.get(id(x))
        if name is not None:
            return name
        if stands_for_itself(x):
            return self._constant(x)
        if type(x) in NUMBERS and x.node.expression.op == "leaf":
            return self.number(x)
        origin = self.found.origin_of(x)
        if origin is not None:
            return self.outside(x, origin)
        return self._fresh(x)

    def constant(self, x: object, hint: str) -> str:
        name = self._names.get(id(x))
        if name is None:
            own = _BUILTINS.get(hint) is x
            name = self._names[id(x)] = hint if own else self.fresh_name(hint)
            self.scope[name] = x
        return name

    def bind(self, x: object, expression: str) -> None:
        """From now on `x` is written as `expression`."""
        self._names[id(x)] = expression
        self._keep.append(x)

    def fresh_name(self, hint: str) -> str:
        """A name like `hint` that the function does not use yet."""
        base = re.sub(r"\W+", "_", hint).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name = base
        for i in itertools.count(1):
            if name not in self._taken:
                break
            name = f"{base}_{i}"
        self._taken.add(name)
        return name

    def outside(self, x: object, origin: Origin) -> str:
        """An object from outside: an argument, an object known by identity, or one that the guard tree collects."""
        if origin.kind == "arg":
            return self.slots[origin.index]
        if origin.kind == "const":
            return self.constant(x, str(origin.key))
        if origin.kind == "array" and origin.base is not None:
            made = self.fresh_name("tensor")
            self.lines.append(f"{made} = from_numpy({self._leaf(origin.base)})")
            self.bind(x, made)
            return made
        name = self._collected.get(origin)
        if name is None:
            name = self._collected[origin] = self.fresh_name(_short_name(origin))
            self.lines.append(f"{name} = inputs[{len(self.collect)}]  # {origin.source}")
            self.collect.append(origin)
        self.bind(x, name)
        return name

    def number(self, x: Any) -> str:
        return self.expression(x.node.expression)

    def expression(self, expression: Expression) -> str:
        """Python that computes a number that changes from call to call."""
        return numbers.text(expression, self._leaf)

    def _leaf(self, origin: Origin) -> str:
        if origin.kind == "arg":
            return self.slots[origin.index]
        name = self._collected.get(origin)
        if name is None:
            name = self._collected[origin] = self.fresh_name(_short_name(origin))
            self.head.append(f"{name} = inputs[{len(self.collect)}]  # {origin.source}")
            self.collect.append(origin)
        return name

    def finish(self) -> None:
        """Fills the objects on cycles."""
        while self._late:
            name, x, kind = self._late.pop(0)
            assert kind.fill is not None
            self.lines += kind.fill(x, self, name)

    def _constant(self, x: Any) -> str:
        kind = type(x)
        if kind in LITERALS or (kind is float and math.isfinite(x)):
            return repr(x)
        if (
            kind in CONSTANTS
            and repr(x).startswith("torch.")
            and repr(x).count(".") == 1
            and "(" not in repr(x)
        ):
            return repr(x)
        self._keep.append(x)
        return self.constant(x, getattr(x, "__name__", None) or kind.__name__)

    def _fresh(self, x: object) -> str:
        key = id(x)
        kind = self.found.kinds.get(key) or kind_of(x)
        late = key in self.found.cyclic and kind.empty is not None
        if late or kind.named:
            return self._named(x, kind, late)
        self._depth += 1
        expression = kind.create(x, self)
        self._depth -= 1
        once = self.found.uses.get(key, 1) == 1 and self._depth % _NESTING != _NESTING - 1
        return expression if once else self._assign(x, expression)

    def _named(self, x: object, kind: Kind, late: bool) -> str:
        assert kind.empty is not None and kind.fill is not None
        name = self._assign(x, kind.empty(x, self))
        if late:
            self._late.append((name, x, kind))
        else:
            self.lines += kind.fill(x, self, name)
        return name

    def _assign(self, x: object, expression: str) -> str:
        name = self.fresh_name(type(x).__name__.lower())
        self.lines.append(f"{name} = {expression}")
        self.bind(x, name)
        return name


def _short_name(origin: Origin) -> str:
    return (
        origin.key
        if isinstance(origin.key, str)
        else f"{_short_name(origin.base)}_{key_name(origin.key)}"
        if origin.base
        else "x"
    )


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of the argument slots: positional, keyword-only, *args, **kwargs."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return tuple(_parameter(name, i) for i, name in enumerate(code.co_varnames[:count]))


def _parameter(name: str, index: int) -> str:
    usable = name.isidentifier() and name not in NAMES and name not in _RESERVED
    return (
        name if usable else f"{name.strip('.')}_{index}" if name.strip(".").isidentifier() else f"arg_{index}"
    )


# ------------------------------------------------------------------------------------------------ the function


@contextmanager
def _room() -> Iterator[None]:
    """Objects may be nested deeper than the user's recursion limit allows to write them."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@_room()
def emit(
    code: CodeType,
    found: Reach,
    ending: Ending,
    stores: Sequence[Store],
    inputs: Sequence[tuple[FakeTensor, Origin]],
    outputs: Sequence[FakeTensor],
    graph: Callable[[tuple[Any, ...]], Sequence[Any]] | None,
    resumes: Resumes,
    symbols: Sequence[Expression] = (),
    original: FunctionType | None = None,
    handles: bool = False,
) -> CompiledFrame:
    """Writes and compiles the function that replaces a frame of `code`.

    Args:
        found: `reach` of the ending's roots and the operands of stores.
        inputs: the graph's inputs and where each is found.
        outputs: the fakes that `graph` returns; None for `graph` leaves out the call.
        resumes: makes the functions in which a frame goes on after a graph break.
        symbols: the numbers that `graph` takes after the tensors.
        original: runs the call where the graph raises before any store (`rerun.py`); None: the exception goes on.
        handles: the user's code may have a handler for it.
    """
    slots = slot_names(code)
    writer = Writer(found, slots, [_collected(origin) for _, origin in inputs])
    for i, (fake, origin) in enumerate(inputs):
        writer.bind(fake, slots[origin.index] if origin.kind == "arg" else _input_text(i, origin))
    for i, fake in enumerate(outputs):
        writer.bind(fake, writer.fresh_name(f"t{i}"))
    targets = [writer(fake) for fake in outputs]
    _bind_parameters(writer, outputs)
    last = ending.write(writer, resumes)
    statements = [store.text.format(*map(writer, store.operands)) for store in stores]
    writer.finish()
    call = _graph_call(writer, targets, [o for _, o in inputs], symbols) if graph is not None else []
    if call and (statements or handles) and original is not None:
        call = guarded_call(call, code, slots, writer.constant(original, f"original_{original.__name__}"))
    body = [*writer.head, *call]
    body += writer.lines
    body += statements
    body += last
    scope = {**writer.scope, "graph": graph, "run_again": handle_again if handles else run_again}
    return _compiled(code, slots, body, scope, tuple(writer.collect))


def _bind_parameters(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """What left the graph as a tensor and is an nn.Parameter of the user's."""
    for fake in outputs:
        if getattr(fake, "_is_param", False):
            given, name = writer(fake), writer.fresh_name("parameter")
            writer.lines.append(f"{name} = as_parameter({given}, {fake.requires_grad})")
            writer.bind(fake, name)


def _collected(origin: Origin) -> Origin:
    """What the guard tree hands over for a graph input: of a NumPy array, the array."""
    if origin.kind == "array" and origin.base is not None:
        return origin.base
    return origin


def _input_text(index: int, origin: Origin) -> str:
    return f"from_numpy(inputs[{index}])" if origin.kind == "array" else f"inputs[{index}]"


def _graph_call(
    writer: Writer, targets: Sequence[str], origins: Sequence[Origin], symbols: Sequence[Expression]
) -> list[str]:
    n_inputs = len(origins)
    given = [writer.expression(e) for e in symbols]
    argument = "inputs" if len(writer.collect) == n_inputs else f"inputs[:{n_inputs}]"
    if any(origin.kind == "array" for origin in origins):
        argument = f"({', '.join(_input_text(i, origin) for i, origin in enumerate(origins))},)"
    if given:
        argument = f"({', '.join([f'*{argument}'] * (n_inputs > 0) + given)},)"
    if not targets:
        return [f"graph({argument})"]
    return [f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = graph({argument})"]


def _compiled(
    code: CodeType,
    slots: Sequence[str],
    body: Sequence[str],
    scope: dict[str, Any],
    collect: tuple[Origin, ...],
) -> CompiledFrame:
    name = "compiled_" + re.sub(r"\W+", "_", code.co_name).strip("_")
    lines = [f"def {name}({', '.join((*slots, 'inputs'))}):  # {code.co_filename}:{code.co_firstlineno}"]
    lines += [f"    {line}" for line in body]
    source = "\n".join(lines) + "\n"
    scope = {"__builtins__": __builtins__, "__name__": "smelt.compiled", **NAMES, **scope}
    return CompiledFrame(compiled_source(source, name, code.co_qualname, scope), source, collect)
