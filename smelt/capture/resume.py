"""Resume functions: the rest of a frame after a graph break, as a function of the values that are still alive.

A `Point` says where a frame goes on: an instruction of its code, the live locals, the shape of the stack. Equal points share
one resume function, also the points that resume functions of the same code lead to, so that a loop with a break in it
has a bounded number of them. A break inside interpreted calls has one point for each frame of the VM; `Resumes.chain` makes
one function of them, which is captured as a whole: the innermost goes on, each caller gets what its callee returned (or, in
its exception handler, what it raised).
"""

from __future__ import annotations

import itertools
import linecache
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.capture.assemble import Handling, Null, Position, Push, Value, resumed
from smelt.capture.code import Code, Original, note_original
from smelt.capture.frames import Frame, Handled, LastInstruction
from smelt.capture.liveness import live_slots
from smelt.capture.values import NULL

_serial = itertools.count()
RESUME_MODULE = "__smelt_resume__"  # the __name__ in chains


class Placeholder:
    """A value that exists only when the compiled frame runs: what the breaking instruction gives, or a callee returns."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Point:
    """`slots`: live locals of the original code; `layout`: what is on the stack. `scope` are the function's globals, `cell`
    the one of `__class__`, if it has one."""

    source: types.CodeType
    at: int
    slots: tuple[int, ...]
    layout: tuple[Push, ...]
    scope: dict[str, Any]
    cell: types.CellType | None

    @property
    def key(self) -> tuple[Any, ...]:
        return id(self.source), self.at, self.slots, self.layout, id(self.scope), id(self.cell)


@dataclass(frozen=True)
class Going:
    """A point and the values that its resume function takes. `returns`: all that is left is to return the last of them."""

    point: Point
    values: tuple[Any, ...]
    returns: bool


@dataclass(frozen=True)
class Level:
    """A frame that waits for a callee's result: where it goes on with `result`, and with an exception (`error`) if it
    handles one there."""

    normal: Going
    result: Placeholder | None  # None: the innermost frame, which waits for nobody
    handler: Going | None = None
    error: Placeholder | None = None


class Originals:
    """The code objects that frames stem from, decoded, and what is live where."""

    def __init__(self, decode: Callable[[types.CodeType], Code]) -> None:
        self._decode = decode

    def of(self, frame: Frame) -> tuple[types.CodeType, Code]:
        original = frame.code.original
        source = frame.function.__code__ if original is None else original.source
        return source, frame.code if original is None else self._decode(source)

    def live(self, source: types.CodeType, code: Code) -> list[frozenset[int]]:
        if code.live is None:
            code.live = live_slots(code, source)
        return code.live


def going_on(originals: Originals, frame: Frame, at: int, stack: Sequence[Any]) -> Going:
    """Where `frame` goes on: at instruction `at` of its own code, with `stack`."""
    source, code = originals.of(frame)
    original = frame.code.original
    at -= original.prologue if original else 0
    places = original.places if original else range(code.nlocals)
    slots, values = [], []
    for slot in sorted(originals.live(source, code)[at]):
        value = frame.locals[places[slot]]
        if value is not NULL and not (code.local_names[slot] == "__class__" and slot in _free(code)):
            slots.append(slot)
            values.append(value)
    layout, pushed = _layout(frame, stack, len(slots), original)
    point = Point(source, at, tuple(slots), layout, frame.globals, _class_cell(frame))
    return Going(point, (*values, *pushed), code.names[at] == "RETURN_VALUE")


def _free(code: Code) -> range:
    return range(code.nlocals - code.nfree, code.nlocals)


def _class_cell(frame: Frame) -> types.CellType | None:
    names = frame.code.free_names
    if "__class__" not in names:
        return None
    return frame.locals[frame.code.nlocals - len(names) + names.index("__class__")]


def _layout(
    frame: Frame, stack: Sequence[Any], first: int, original: Original | None
) -> tuple[tuple[Push, ...], list[Any]]:
    """What the prologue pushes, and the values that it takes for that."""
    pushes: list[Push] = []
    values: list[Any] = []
    markers = [v for v in stack if type(v) is Handled]
    handled = [m.error for m in markers[1:]] + [frame.handled]  # what is handled above each marker
    for value in stack:
        if value is NULL:
            pushes.append(Null())
        elif type(value) is LastInstruction:
            pushes.append(Position(value.at - (original.prologue if original else 0)))
        elif type(value) is Handled:
            pushes.append(Handling(first + len(values)))
            values.append(handled.pop(0))
        else:
            pushes.append(Value(first + len(values)))
            values.append(value)
    return tuple(pushes), values


def resume_function(decode: Callable[[types.CodeType], Code], point: Point) -> types.FunctionType:
    """The function that goes on at `point`, given its live locals and what is on its stack. Of a generator's point, it is a
    generator function."""
    source, code = point.source, decode(point.source)
    extra = [_extra_name(code, p, i) for i, p in enumerate(p for p in point.layout if isinstance(p, (Value, Handling)))]
    name = f"resume_in_{source.co_name.strip('<>')}_at_{code.lines[point.at]}"
    made, prologue = resumed(source, code, point.at, point.slots, point.layout, extra, name)
    note_original(made, Original(source, prologue, _places(made, code, point, len(extra))))
    closure = None if not made.co_freevars else (point.cell,)
    function = types.FunctionType(made, point.scope, name, None, closure)  # type: ignore[arg-type]
    function.__qualname__ = name
    return function


class Resumes:
    """The resume functions and chains of one compiled function. `wrap(function)` makes the callable that compiles it."""

    def __init__(self, wrap: Callable[[types.FunctionType], Any], decode: Callable[[types.CodeType], Code]) -> None:
        self._wrap = wrap
        self._decode = decode
        self._made: dict[tuple[Any, ...], tuple[Any, list[Point]]] = {}  # key -> (callable, what its ids belong to)

    def __len__(self) -> int:
        return len(self._made)

    def clear(self) -> None:
        """Forgets them all; those in use stay alive."""
        self._made.clear()

    @property
    def callables(self) -> list[Any]:
        """All that were made, in order."""
        return [made for made, _ in self._made.values()]

    def function(self, point: Point) -> Any:
        """The resume function of `point`."""
        found = self._made.get(point.key)
        if found is None:
            found = self._made[point.key] = self._wrap(self._resume_function(point)), [point]
        return found[0]

    def _resume_function(self, point: Point) -> types.FunctionType:
        return resume_function(self._decode, point)

    def chain(self, levels: Sequence[Level]) -> tuple[Any, tuple[Any, ...]]:
        """A callable for the rest of all frames, innermost first, and the values that it takes."""
        if len(levels) == 1:
            return self.function(levels[0].normal.point), levels[0].normal.values
        text = _ChainText(self, levels)
        key = ("chain", *text.key)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._wrap(text.compiled()), text.points
        return found[0], tuple(text.values)


def _extra_name(code: Code, push: Push, number: int) -> str:
    return f"{'handled' if isinstance(push, Handling) else 'stack'}_{number}"


def _places(made: types.CodeType, code: Code, point: Point, extra: int) -> tuple[int, ...]:
    """See assemble: parameters first, then those for the stack, then the other slots; `__class__` last."""
    fixed = [i for i in _free(code) if code.local_names[i] == "__class__"]
    rest = [i for i in range(code.nlocals) if i not in point.slots and i not in fixed]
    order: list[int | None] = [*point.slots, *([None] * extra), *rest, *fixed]
    places = {slot: at for at, slot in enumerate(order) if slot is not None}
    return tuple(places[i] for i in range(code.nlocals))


class _ChainText:
    """Writes the source of a chain:

    def rest_of_f(a0, a1, a2):
        result = resume_in_h_at_9(a0)
        result = resume_in_g_at_5(a1, result)
        return resume_in_f_at_2(a2, result)
    """

    def __init__(self, resumes: Resumes, levels: Sequence[Level]) -> None:
        self.resumes = resumes
        self.values: list[Any] = []
        self._names: dict[int, str] = {}  # id of a value -> its parameter
        self.scope: dict[str, Any] = {}
        self.key: list[Any] = []
        self.points: list[Point] = []
        self.name = f"rest_of_{levels[-1].normal.point.source.co_name.strip('<>')}"
        self.lines = self._lines(levels)

    def _lines(self, levels: Sequence[Level]) -> list[str]:
        done: list[str] = []
        expression = self._call(levels[0].normal, {})
        pending = [f"result = {expression}"]
        for level in levels[1:]:
            assert level.result is not None
            if level.handler is not None:
                done += ["error = None", "try:", *(f"    {line}" for line in pending)]
                done += ["except BaseException as caught:", "    error = caught"]
                pending = []
            expression = self._call(level.normal, {id(level.result): "result"})
            if level.handler is not None:
                handled = self._call(level.handler, {id(level.error): "error"})
                expression = f"{expression} if error is None else {handled}"
            pending.append(f"result = {expression}")
        return [*done, *pending[:-1], f"return {expression}"]

    def _call(self, going: Going, known: dict[int, str]) -> str:
        name = f"resume_{len(self.scope)}_in_{going.point.source.co_name.strip('<>')}"
        self.scope[name] = self.resumes.function(going.point)
        arguments = [known.get(id(v)) or self._parameter(v) for v in going.values]
        self.key.append((going.point.key, *arguments))
        self.points.append(going.point)
        return f"{name}({', '.join(arguments)})"

    def _parameter(self, value: Any) -> str:
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"a{len(self.values)}"
            self.values.append(value)
        return name

    def compiled(self) -> types.FunctionType:
        parameters = ", ".join(f"a{i}" for i in range(len(self.values)))
        source = "\n".join([f"def {self.name}({parameters}):", *(f"    {line}" for line in self.lines)]) + "\n"
        filename = f"<smelt {self.name} #{next(_serial)}>"
        scope = {"__builtins__": __builtins__, "__name__": RESUME_MODULE, **self.scope}
        exec(compile(source, filename, "exec"), scope)
        function = scope.pop(self.name)
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        weakref.finalize(function, linecache.cache.pop, filename, None)
        return function
