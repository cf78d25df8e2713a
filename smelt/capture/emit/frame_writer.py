"""The writer of a compiled frame's body: it gives the expression for an object, after the statements that make it.

What always holds: an object that is reached twice is made once; each name is used for one object; objects on cycles are made
empty, and filled when all of them exist.
"""

from __future__ import annotations

import builtins
import itertools
import keyword
import math
import re
from collections.abc import Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.value_kinds import is_shared
from smelt.capture.graph_breaks.code_positions import Place
from smelt.capture.graph_breaks.resume_functions import Resumes
from smelt.capture.graph_breaks.resume_points import Point
from smelt.capture.reconstruction.constants import CONSTANTS, LITERALS, is_kept_by_typing, stands_for_itself
from smelt.capture.reconstruction.frame_globals import NAMES
from smelt.capture.reconstruction.reconstruction_kind import Kind
from smelt.capture.reconstruction.reconstruction_order import Reach
from smelt.capture.reconstruction.reconstruction_table import kind_of
from smelt.capture.semantics.calls.argument_binding import parameters
from smelt.guards.source import Source, key_name
from smelt.shapes.expr import Expression, text
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.unbacked_numbers import DataNumber

_BUILTINS = vars(builtins)
# besides NAMES, what statements may use
_RESERVED = frozenset(
    {
        *_BUILTINS,
        "inputs",
        "graph",
        "failure",
        "error",
        "rerun",
        "restart",
        "random_state",
        "set_random_state",
    }
)
_SHORT = 20  # characters of a text that name it
_NESTING = 20  # how deep expressions may be nested: the parser has a limit


class Writer:
    """Writes the body. Calling it gives the expression for an object, after writing the statements that make it.

    `head`: statements before the call of the graph; `lines`: those after it; `scope`: the globals that they use;
    `collect`: what the guard tree hands over as `inputs`; `functions`: those that the statements call, as source, with what
    their frames stand for.
    """

    def __init__(
        self,
        found: Reach,
        slots: Sequence[str],
        collect: Sequence[Source],
        resumes: Resumes,
        brought: Mapping[int, Source] = MappingProxyType({}),
    ) -> None:
        self.found = found
        self._resumes = resumes
        self._given = resumes.given
        self._brought = brought  # objects that are not kept alive: where the call has them
        self.slots = slots
        self.collect = list(collect)
        self.head: list[str] = []
        self.lines: list[str] = []
        self.scope: dict[str, object] = {}
        self.functions: list[tuple[str, Place, list[str]]] = []
        self._names: dict[int, str] = {}  # object -> the local or global name that holds it
        self._taken = {*slots, *NAMES, *_RESERVED}
        self._collected = {source: f"inputs[{i}]" for i, source in enumerate(collect)}
        self._depth = 0  # of the expression that is being written
        self._late: list[tuple[str, object, Kind]] = []  # objects on cycles, to be filled when all exist
        self._keep: list[object] = []
        # what stands in the source, by class and value
        self._literals: dict[tuple[type, object], object] = {}

    def __call__(self, x: Any) -> str:
        name = self._names.get(id(x))
        if name is not None:
            return name
        if id(x) in self._brought:
            return self.outside(x, self._brought[id(x)])
        if stands_for_itself(x):
            return self._constant(x)
        if type(x) in NUMBERS and x.node.expression.op == "leaf":
            return self.number(x)
        source = self.found.source_of(x)
        if source is not None:
            return self.outside(x, source)
        return self._constant(x) if is_kept_by_typing(x) else self._fresh(x)

    def constant(self, x: object, hint: str) -> str:
        """The name of a global that holds `x` itself: `hint`, or one like it that is free."""
        name = self._names.get(id(x))
        if name is None:
            own = _BUILTINS.get(hint) is x
            name = self._names[id(x)] = hint if own else self.fresh_name(hint)
            self.scope[name] = x
        return name

    def unless_made(self, x: object, hint: str) -> str:
        """`constant` for an object from outside; one that the trace made is made anew."""
        made = self.found.source_of(x) is None or id(x) in self._brought
        return self(x) if made else self.constant(x, hint)

    def bind(self, x: object, expression: str) -> None:
        """From now on `x` is written as `expression`."""
        self._names[id(x)] = expression
        self._keep.append(x)

    def bind_source(self, source: Source, expression: str) -> None:
        """From now on what is found at `source` is written as `expression`."""
        self._collected[source] = expression

    def expression_at(self, source: Source) -> str:
        """The expression for what is found at `source`, which was bound."""
        return self._collected[source]

    def step(self, point: object) -> tuple[object, object]:
        """What goes on in a generator at a `Point`: see `Resumes.step`."""
        return self._resumes.step(cast(Point, point))

    def given_function(self) -> str:
        """The name of a function: see `Resumes.given`."""
        return self.constant(self._given, "compiled_function")

    def before_graph(self, x: object) -> str:
        """The expression for an object from outside that is used before the graph is called."""
        source = self._brought.get(id(x)) or self.found.source_of(x)
        assert source is not None
        if source.kind == "const":
            return self.constant(x, str(source.key))
        return self._leaf(source)

    def fresh_name(self, hint: str) -> str:
        """A name like `hint` that the function does not use yet."""
        base = re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name = base
        for i in itertools.count(1):
            if name not in self._taken:
                break
            name = f"{base}_{i}"
        self._taken.add(name)
        return name

    def function(self, parameters: Sequence[str], body: Sequence[str], place: Place) -> str:
        """The name of a function whose frames look like the user's at `place`."""
        name = self.fresh_name(f"in_{place.source.co_name}")
        lines = [f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in body or ("pass",))]
        self.functions.append((name, place, lines))
        return name

    def outside(self, x: object, source: Source) -> str:
        """An object from outside: an argument, an object known by identity, or one that the guard tree collects."""
        if source.kind == "arg":
            return self.slots[source.index]
        if source.kind == "const":
            return self.constant(x, str(source.key))
        if source.kind == "array" and source.base is not None:
            made = self.fresh_name("tensor")
            self.lines.append(f"{made} = from_numpy({self._leaf(source.base)})")
            self.bind(x, made)
            return made
        name = self._collected.get(source)
        if name is None:
            name = self._collected[source] = self.fresh_name(_short_name(source))
            self.lines.append(f"{name} = inputs[{len(self.collect)}]  # {source.source}")
            self.collect.append(source)
        self.bind(x, name)
        return name

    def number(self, x: torch.SymInt | torch.SymFloat) -> str:
        """Python that computes a symbolic number."""
        return self.expression(cast(Symbol, x.node).expression)

    def expression(self, expression: Expression) -> str:
        """Python that computes a number that changes from call to call."""
        return text(expression, self._leaf)

    def _leaf(self, source: Source | DataNumber) -> str:
        if isinstance(source, DataNumber):
            return f"{self(source.carrier)}.shape[{source.dim}]"
        if source.kind == "arg":
            return self.slots[source.index]
        name = self._collected.get(source)
        if name is None:
            name = self._collected[source] = self.fresh_name(_short_name(source))
            self.head.append(f"{name} = inputs[{len(self.collect)}]  # {source.source}")
            self.collect.append(source)
        return name

    def finish(self) -> None:
        """Fills the objects on cycles."""
        while self._late:
            name, x, kind = self._late.pop(0)
            assert kind.fill is not None
            self.lines += kind.fill(x, self, name)

    def _constant(self, x: object) -> str:
        kind = type(x)
        if kind in LITERALS or (type(x) is float and math.isfinite(x)):
            # A literal gives one object: not this one, if an equal one is written so, or if no literal gives this one.
            if self._literals.setdefault((kind, x), x) is x and _is_literal(x):
                return repr(x)
            source = self.found.source_of(x)
            if source is not None and source.kind != "const":
                return self.outside(x, source)
            self._keep.append(x)
            return self.constant(x, _constant_name(x))
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


def _is_literal(x: object) -> bool:
    """Whether the literal of a constant gives this very object. The interpreter keeps one object for each text that reads
    like a name, where it was not made by an operation."""
    if not isinstance(x, str):
        return is_shared(x)
    like_a_name = x.isascii() and x.replace("_", "a").isalnum()
    return len(x) < 2 or (like_a_name and eval(repr(x)) is x)


def _constant_name(x: object) -> str:
    """What a constant that is no literal is called: as it reads."""
    if isinstance(x, (int, float)):
        return f"{type(x).__name__}_{x}".replace("-", "minus_")
    return x[:_SHORT] if isinstance(x, str) else type(x).__name__


def _short_name(source: Source) -> str:
    return (
        source.key
        if isinstance(source.key, str)
        else f"{_short_name(source.base)}_{key_name(source.key)}"
        if source.base
        else "x"
    )


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of the argument slots: positional, keyword-only, *args, **kwargs."""
    return tuple(_parameter(name, i) for i, name in enumerate(parameters(code)))


def _parameter(name: str, index: int) -> str:
    usable = name.isidentifier() and name not in NAMES and name not in _RESERVED
    return (
        name if usable else f"{name.strip('.')}_{index}" if name.strip(".").isidentifier() else f"arg_{index}"
    )
