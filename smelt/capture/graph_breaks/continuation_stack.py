"""Chains: a break inside interpreted calls leaves one point for each frame; a chain is one function for all of them.

    def rest_of_f(a0, a1, a2):
        result = resume_0_in_h(a0)
        result = resume_1_in_g(a1, result)
        return resume_2_in_f(a2, result)

It is captured as a whole: the innermost frame goes on, each caller gets what its callee returned or, in its exception
handler, what it raised. When there is another break below one of its calls, the frames that are left are frames of the next
chain (`remaining`), so that chains do not nest and a loop comes back to the same one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.bytecode import lines_of, raw_instructions
from smelt.capture.base.value_kinds import LEAF_TYPES
from smelt.capture.base.vm_frames import Frame
from smelt.capture.graph_breaks.code_positions import Place
from smelt.capture.graph_breaks.resume_points import Placeholder, Point, Polyfill, Rest, WaitingFrame
from smelt.capture.reconstruction.generated_source import compiled_source, identifier
from smelt.capture.semantics.calls import calls

CHAIN_MODULE = "__smelt_chain__"  # the __name__ in chains


@dataclass(frozen=True)
class _Call:
    """A call of a resume function in a chain: what it takes, by name (a parameter, `result` or `error`)."""

    rest: Rest  # without values
    arguments: tuple[str, ...]

    @property
    def point(self) -> Point | Polyfill:
        return self.rest.point

    def with_values(self, known: dict[str, object]) -> Rest:
        return replace(self.rest, values=tuple(known[name] for name in self.arguments))


_Calls = tuple[_Call, _Call | None]  # of a frame: when its callee has returned, when it has raised
# id of code -> (reference, which frame an instruction belongs to, the frames' calls)
_chains: dict[int, tuple[weakref.ref[types.CodeType], dict[int, int], list[_Calls]]] = {}


def is_chain(function: types.FunctionType) -> bool:
    """Whether `function` is the rest of several frames."""
    return id(function.__code__) in _chains


def remaining(frame: Frame) -> list[WaitingFrame] | None:
    """If `frame` is a chain's, waiting at one of its calls: the frames above that call, innermost first."""
    found = _chains.get(id(frame.function.__code__))
    if found is None:
        return None
    _, frame_of, calls = found
    at = frame_of.get(frame.pc)
    if at is None:
        return None
    parameters = {name: frame.locals[i] for name, i in frame.code.parameters.items()}
    return [_waiting(*pair, parameters) for pair in calls[at + 1 :]]


def callers(frame: Frame) -> list[Point]:
    """If `frame` is a chain's, while one of its calls runs: where the frames above that call will go on."""
    found = _chains.get(id(frame.function.__code__))
    if found is None:
        return []
    at = found[1].get(frame.pc - 1)
    points = [] if at is None else [normal.point for normal, _ in found[2][at + 1 :]]
    return [point for point in points if isinstance(point, Point)]


def waiting_points(function: types.FunctionType, pc: int) -> list[tuple[Point | None, bool]]:
    """Of a chain, while the call at instruction `pc` runs: where the frames above that call will go on, innermost first, and
    whether they handle exceptions there. None stands for code of C."""
    _, frame_of, calls = _chains[id(function.__code__)]
    at = frame_of.get(pc)
    return [
        (normal.point if isinstance(normal.point, Point) else None, handler is not None)
        for normal, handler in (() if at is None else calls[at + 1 :])
    ]


def passed(frame: Frame) -> Iterator[Point]:
    """If `frame` is a chain's: where the frames wait that an exception passes that one of its calls raised, up to the first
    that handles it."""
    for point, handles in waiting_points(frame.function, frame.pc - 1):
        if point is not None:
            yield point
        if handles:
            return


def _waiting(normal: _Call, handler: _Call | None, parameters: dict[str, object]) -> WaitingFrame:
    result, error = Placeholder("result"), Placeholder("error")
    known = {**parameters, "result": result, "error": error}
    handling = None if handler is None else handler.with_values(known)
    return WaitingFrame(normal.with_values(known), result, handling, error)


class TailCall:
    """What the last statement of a chain calls: where the chain runs eagerly, its caller makes the call, so that the stack
    does not grow with each break in a loop."""

    __slots__ = ("target",)

    def __init__(self, target: Callable[..., object]) -> None:
        self.target = target

    def __call__(self, *arguments: object) -> object:
        return _native.tail_call(self.target, *arguments)


calls.CALLERS[TailCall] = lambda vm, fn, args, kwargs: calls.call(vm, fn.target, args, kwargs)


class ChainText:
    """Writes the source of the chain of `frames`, innermost first. `key` tells chains apart, `values` is what one takes."""

    def __init__(
        self, frames: Sequence[WaitingFrame], function: Callable[[Point | Polyfill], object]
    ) -> None:
        self.values: list[object] = []
        self._outermost = frames[-1].normal.point
        self.name = f"rest_of_{identifier(self._outermost.source.co_name)}"
        self._function = function
        self._names: dict[int, str] = {}  # id of a value -> its parameter
        self._scope: dict[str, object] = {}
        self._calls = [self._pair(frame) for frame in frames]
        self._lines, self._frame_of_line = self._write()

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for chains of the same points that pass the same arguments."""
        calls = [call for pair in self._calls for call in pair]
        return "chain", *(call and (call.point.key, call.arguments) for call in calls)

    @property
    def points(self) -> list[Point | Polyfill]:
        """Where its frames may go on."""
        return [call.point for pair in self._calls for call in pair if call is not None]

    def _pair(self, frame: WaitingFrame) -> _Calls:
        normal = self._call(frame.normal, frame.result, "result")
        handler = None if frame.handler is None else self._call(frame.handler, frame.error, "error")
        return normal, handler

    def _call(self, rest: Rest, awaited: Placeholder | None, name: str) -> _Call:
        arguments = (name if v is awaited is not None else self._parameter(v) for v in rest.values)
        return _Call(replace(rest, values=()), tuple(arguments))

    def _parameter(self, value: object) -> str:
        known = self._names.get(id(value)) if type(value) not in LEAF_TYPES else None
        if known is None:
            known = self._names[id(value)] = f"a{len(self.values)}"
            self.values.append(value)
        return known

    def _write(self) -> tuple[list[str], dict[int, int]]:
        lines: list[str] = []
        frame_of_line: dict[int, int] = {}
        pending: list[tuple[int, str]] = []  # (frame, statement)
        handled = False  # whether `error` may be what a frame further in raised

        def flush(indent: str, statements: Sequence[tuple[int, str]]) -> None:
            for frame, statement in statements:
                lines.append(indent + statement)
                frame_of_line[len(lines) + 1] = frame  # the first line is the `def`

        for i, (normal, handler) in enumerate(self._calls):
            last = i == len(self._calls) - 1
            expression = self._expression(normal, last)
            if handler is not None:
                before = [] if handled else ["error = None"]
                lines.extend([*before, "try:"])
                flush("    ", pending)
                lines.extend(["except BaseException as caught:", "    error = caught"])
                lines.extend(["else:", "    error = None"] if handled else [])
                handled = True
                pending = []
                expression += f" if error is None else {self._expression(handler, last)}"
            pending.append((i, f"return {expression}" if last else f"result = {expression}"))
        flush("", pending)
        return lines, frame_of_line

    def _expression(self, call: _Call, last: bool) -> str:
        name = f"resume_{len(self._scope)}_in_{identifier(call.point.source.co_name)}"
        function = cast("Callable[..., object]", self._function(call.point))
        self._scope[name] = TailCall(function) if last else function
        return f"{name}({', '.join(call.arguments)})"

    def compiled(self) -> types.FunctionType:
        """Compiles the chain, and notes which of its instructions belongs to which frame."""
        parameters = ", ".join(f"a{i}" for i in range(len(self.values)))
        source = (
            "\n".join([f"def {self.name}({parameters}):", *(f"    {line}" for line in self._lines)]) + "\n"
        )
        scope = {"__builtins__": __builtins__, "__name__": CHAIN_MODULE, **self._scope}
        function = compiled_source(source, self.name, self.name, scope)
        offsets = [start for _, _, start, _ in raw_instructions(function.__code__)[0]]
        lines = lines_of(function.__code__, offsets)
        frames = {at: self._frame_of_line[n] for at, n in enumerate(lines) if n in self._frame_of_line}
        if isinstance(self._outermost, Point):
            waits = raw_instructions(self._outermost.source)[0][self._outermost.at - 1][2]
            Place(self._outermost.source, waits).stands_for(function)
        key = id(function.__code__)
        reference = weakref.ref(function.__code__, lambda _: _chains.pop(key, None))
        _chains[key] = reference, frames, self._calls
        return function
