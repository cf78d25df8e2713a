"""The writer of a compiled frame's body: it returns an object's expression after writing the statements that construct it.

Invariant: an object that is reached twice is constructed once; each name is used for one object; objects on cycles are
created empty and filled when all of them exist.
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
from smelt.capture.base.value_kinds import is_interned
from smelt.capture.graph_breaks.code_positions import CodePosition
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.graph_breaks.resume_points import ResumePoint
from smelt.capture.reconstruction.constants import CONSTANTS, LITERALS, is_cached_by_typing, is_embeddable
from smelt.capture.reconstruction.frame_globals import CONVERSIONS, FRAME_NAMES
from smelt.capture.reconstruction.reconstruction_kind import ReconstructionKind
from smelt.capture.reconstruction.reconstruction_order import ReachableObjects
from smelt.capture.reconstruction.reconstruction_table import reconstruction_kind_of
from smelt.capture.semantics.calls.argument_binding import parameters
from smelt.guards.source import Source, key_name
from smelt.shapes.expr import Expression, text
from smelt.tracing.record.wrapper_gradients import ResultGradient
from smelt.tracing.symbolic.sym_nodes import Symbol
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.unbacked_numbers import UnbackedNumber

_BUILTINS = vars(builtins)
# names that statements may use besides FRAME_NAMES
_RESERVED = frozenset({
    *_BUILTINS, "inputs", "graph", "failure", "error", "rerun_eagerly", "saved_state", "random_state",
    "set_random_state",
})  # fmt: skip
_MAX_NAME = 20  # characters of a text in its name
_NESTING = 20  # maximum nesting of expressions: the parser has a limit


def _words(line: str) -> set[str]:
    return set(re.findall(r"\w+", line))


class Writer:
    """Writes the body. Calling it returns the expression for an object, after writing the statements that construct it.

    `head`: statements before the call of the graph; `lines`: statements after it; `scope`: the globals that they use;
    `collect`: the sources of `inputs`, which the guard tree collects; `functions`: functions that the statements call, as
    source, with the code positions that their frames show.
    """

    def __init__(
        self,
        reachable: ReachableObjects,
        slots: Sequence[str],
        collect: Sequence[Source],
        resume_functions: ResumeFunctions,
        call_objects: Mapping[int, Source] = MappingProxyType({}),
        result_gradients: Mapping[int, tuple[torch.Tensor, ResultGradient]] = MappingProxyType({}),
    ) -> None:
        self.reachable = reachable
        self._result_gradients = result_gradients
        self._resume_functions = resume_functions
        self._compiled_callback = resume_functions.compiled_callback
        self._call_objects = call_objects  # objects that are not kept alive: their sources in each call
        self.slots = slots
        self.collect = list(collect)
        self.head: list[str] = []
        self.lines: list[str] = []
        self.stored_to: frozenset[Source | None] = frozenset()  # the environment objects that stores change
        self._iterators: list[str] = []  # the expressions of iterators over these
        self.scope: dict[str, object] = {}
        self.functions: list[tuple[str, CodePosition, list[str]]] = []
        self._names: dict[int, str] = {}  # id of an object -> the local or global name that holds it
        self._used_names = {*slots, *FRAME_NAMES, *_RESERVED}
        self._collected = {source: f"inputs[{i}]" for i, source in enumerate(collect)}
        self._depth = 0  # nesting depth of the current expression
        self._unfilled: list[
            tuple[str, object, ReconstructionKind]
        ] = []  # objects on cycles, filled at the end
        self._alive: list[object] = []
        self._literals: dict[
            tuple[type, object], object
        ] = {}  # the object of each literal, by class and value

    def __call__(self, x: Any) -> str:
        name = self._names.get(id(x))
        if name is not None:
            return name
        if id(x) in self._call_objects:
            return self.environment_object(x, self._call_objects[id(x)])
        if is_embeddable(x):
            return self._constant(x)
        if type(x) in NUMBERS and x.node.expression.op == "leaf":
            return self.number(x)
        source = self.reachable.source_of(x)
        if source is not None:
            return self.environment_object(x, source)
        return self._constant(x) if is_cached_by_typing(x) else self._reconstructed(x)

    def constant(self, x: object, hint: str) -> str:
        """The name of a global that holds `x` itself: `hint`, or an unused name like it."""
        name = self._names.get(id(x))
        if name is None:
            is_builtin = _BUILTINS.get(hint) is x
            name = self._names[id(x)] = hint if is_builtin else self.fresh_name(hint)
            self.scope[name] = x
        return name

    def iterator_over(self, container: object, expression: str) -> str:
        """`expression`, which makes an iterator over `container`; it is evaluated after the stores if they change that."""
        source = self.reachable.source_of(container)
        if source is not None and source in self.stored_to:
            self._iterators.append(expression)
        return expression

    def split_lines(self, statements: Sequence[str]) -> tuple[list[str], list[str]]:
        """The lines before and after the statements that store. After them come iterators over what they change, and what
        holds such iterators, unless a statement refers to one."""
        if not self._iterators:
            return self.lines, []
        before: list[str] = []
        after: list[str] = []
        names: set[str] = set()
        for line in self.lines:
            if any(each in line for each in self._iterators) or not names.isdisjoint(_words(line)):
                after.append(line)
                names.add(line.partition(" = ")[0])
            else:
                before.append(line)
        if any(not names.isdisjoint(_words(statement)) for statement in statements):
            return self.lines, []
        return before, after

    def unless_created(self, x: object, hint: str) -> str:
        """`constant` for an environment object; an object that the trace created is reconstructed."""
        created = self.reachable.source_of(x) is None or id(x) in self._call_objects
        return self(x) if created else self.constant(x, hint)

    def bind(self, x: object, expression: str) -> None:
        """Write `x` as `expression` from now on."""
        self._names[id(x)] = expression
        self._alive.append(x)

    def bind_source(self, source: Source, expression: str) -> None:
        """Write the object at `source` as `expression` from now on."""
        self._collected[source] = expression

    def expression_at(self, source: Source) -> str:
        """The expression bound to `source`."""
        return self._collected[source]

    def step(self, point: object) -> tuple[object, object]:
        """The step of a generator at a `ResumePoint`: see `ResumeFunctions.step`."""
        return self._resume_functions.step(cast(ResumePoint, point))

    def result_gradient(self, x: torch.Tensor) -> ResultGradient | None:
        """The gradient of a wrapper subclass's tensor that the graph returns."""
        found = self._result_gradients.get(id(x))
        return None if found is None else found[1]

    def is_only_view(self, x: torch.Tensor) -> bool:
        """Whether no other tensor of the compiled frame is a view of the base of `x`, or that base."""
        base, alive = x._base, self.reachable.alive
        tensors = [y for y in alive if isinstance(y, torch.Tensor) and (y is base or y._base is base)]
        return len(tensors) == 1 and self.reachable.source_of(base) is None

    def callback_compiler(self) -> str:
        """The name of `ResumeFunctions.compiled_callback` in the compiled frame."""
        return self.constant(self._compiled_callback, "compiled_callback")

    def before_graph(self, x: object) -> str:
        """The expression for an environment object that is used before the call of the graph."""
        source = self._call_objects.get(id(x)) or self.reachable.source_of(x)
        assert source is not None
        if source.kind == "const":
            return self.constant(x, str(source.key))
        return self._leaf(source)

    def fresh_name(self, hint: str) -> str:
        """An unused name like `hint`."""
        base = re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "value"
        if base[0].isdigit() or keyword.iskeyword(base):
            base = f"_{base}"
        name = base
        for i in itertools.count(1):
            if name not in self._used_names:
                break
            name = f"{base}_{i}"
        self._used_names.add(name)
        return name

    def function(self, parameters: Sequence[str], body: Sequence[str], position: CodePosition) -> str:
        """The name of a function whose frames look like the user's at `position`."""
        name = self.fresh_name(f"in_{position.user_code.co_name}")
        lines = [f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in body or ("pass",))]
        self.functions.append((name, position, lines))
        return name

    def environment_object(self, x: object, source: Source) -> str:
        """The expression for an environment object: an argument, a constant, or an object that the guard tree collects."""
        if source.kind == "arg":
            return self.slots[source.index]
        if source.kind == "const":
            return self.constant(x, str(source.key))
        if source.kind in CONVERSIONS and source.base is not None:
            tensor = self.fresh_name("tensor")
            self.lines.append(f"{tensor} = {CONVERSIONS[source.kind]}({self._leaf(source.base)})")
            self.bind(x, tensor)
            return tensor
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
        """Python that computes an expression over symbolic numbers."""
        return text(expression, self._leaf)

    def _leaf(self, source: Source | UnbackedNumber) -> str:
        if isinstance(source, UnbackedNumber):
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
        """Write the statements that fill the objects on cycles."""
        while self._unfilled:
            name, x, kind = self._unfilled.pop(0)
            assert kind.fill is not None
            self.lines += kind.fill(x, self, name)

    def _constant(self, x: object) -> str:
        kind = type(x)
        if kind in LITERALS or (type(x) is float and math.isfinite(x)):
            # A literal evaluates to one object, which is not this one if an equal object is already written as a literal.
            if self._literals.setdefault((kind, x), x) is x and _is_literal(x):
                return repr(x)
            source = self.reachable.source_of(x)
            if source is not None and source.kind != "const":
                return self.environment_object(x, source)
            self._alive.append(x)
            return self.constant(x, _constant_name(x))
        if (
            kind in CONSTANTS
            and repr(x).startswith("torch.")
            and repr(x).count(".") == 1
            and "(" not in repr(x)
        ):
            return repr(x)
        self._alive.append(x)
        return self.constant(x, getattr(x, "__name__", None) or kind.__name__)

    def _reconstructed(self, x: object) -> str:
        key = id(x)
        kind = self.reachable.kinds.get(key) or reconstruction_kind_of(x)
        is_cyclic = key in self.reachable.cyclic and kind.empty is not None
        if is_cyclic or kind.named:
            return self._named(x, kind, is_cyclic)
        self._depth += 1
        expression = kind.create(x, self)
        self._depth -= 1
        is_inline = self.reachable.uses.get(key, 1) == 1 and self._depth % _NESTING != _NESTING - 1
        return expression if is_inline else self._assign(x, expression)

    def _named(self, x: object, kind: ReconstructionKind, is_cyclic: bool) -> str:
        assert kind.empty is not None and kind.fill is not None
        name = self._assign(x, kind.empty(x, self))
        if is_cyclic:
            self._unfilled.append((name, x, kind))
        else:
            self.lines += kind.fill(x, self, name)
        return name

    def _assign(self, x: object, expression: str) -> str:
        name = self.fresh_name(type(x).__name__.lower())
        self.lines.append(f"{name} = {expression}")
        self.bind(x, name)
        return name


def _is_literal(x: object) -> bool:
    """Whether the literal of a constant evaluates to this very object: only texts that read like names are interned."""
    if not isinstance(x, str):
        return is_interned(x)
    like_a_name = x.isascii() and x.replace("_", "a").isalnum()
    return len(x) < 2 or (like_a_name and eval(repr(x)) is x)


def _constant_name(x: object) -> str:
    """The name of a constant that is written as a global, after its value."""
    if isinstance(x, (int, float)):
        return f"{type(x).__name__}_{x}".replace("-", "minus_")
    return x[:_MAX_NAME] if isinstance(x, str) else type(x).__name__


def _short_name(source: Source) -> str:
    return (
        source.key
        if isinstance(source.key, str)
        else f"{_short_name(source.base)}_{key_name(source.key)}"
        if source.base
        else "x"
    )


def slot_names(code: CodeType) -> tuple[str, ...]:
    """The names of the argument slots: positional, keyword-only, *args, **kwargs."""
    return tuple(_parameter(name, i) for i, name in enumerate(parameters(code)))


def _parameter(name: str, index: int) -> str:
    usable = name.isidentifier() and name not in FRAME_NAMES and name not in _RESERVED
    return (
        name if usable else f"{name.strip('.')}_{index}" if name.strip(".").isidentifier() else f"arg_{index}"
    )
