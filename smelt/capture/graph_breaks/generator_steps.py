"""Generators that run from one `yield` to the next, each part compiled as a frame of its own.

What leaves a capture as a generator is a real one, whose frame advances a *step*: a function of what is alive at a point of
the user's generator, which runs that to its next `yield` and gives a `Suspension`, or to its end and gives what it returns.

    state = state.call(*state.values)       # compiled: gives a Suspension with the next step and its values
    sent = yield state.value

A step that cannot be compiled runs the user's bytecode in a generator inside; so does one into which an exception is thrown.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import types
from collections.abc import Callable, Generator
from typing import cast

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs
from smelt.capture.base.vm_frames import Generator as Machines
from smelt.capture.graph_breaks.code_positions import Position, location_table
from smelt.capture.reconstruction.generated_source import compiled_source, identifier
from smelt.capture.semantics.calls import calls
from smelt.capture.vm.vm import VM

STEP_MODULE = "smelt.capture.graph_breaks.step"  # the __name__ in the functions that steps are compiled as

_Real = Generator[object, object, object]


def is_step(function: types.FunctionType) -> bool:
    """Whether `function` is what a step is compiled as."""
    return function.__globals__.get("__name__") == STEP_MODULE


class Step:
    """Goes on in a generator: `function` is a generator function of the user's bytecode that begins at a point of it.
    `suspended()` makes one that begins at the `yield` before."""

    __slots__ = ("_at_yield", "function", "suspended")

    def __init__(self, function: types.FunctionType, suspended: Callable[[], types.FunctionType]) -> None:
        self.function = function
        self.suspended = suspended
        self._at_yield: types.FunctionType | None = None

    def __call__(self, *values: object) -> object:
        generator = cast(_Real, self.function(*values))
        try:
            value = generator.send(None)
        except StopIteration as stop:
            return stop.value
        return Suspension(value, generator.send, None, ())

    def at_yield(self, values: tuple[object, ...]) -> _Real:
        """The user's bytecode, suspended at the `yield` before."""
        if self._at_yield is None:
            self._at_yield = self.suspended()
        return advanced(cast(_Real, self._at_yield(*values, None)))

    def stub(self, parameters: int) -> types.FunctionType:
        """The function that is compiled in its place."""
        given = ", ".join(f"a{i}" for i in range(parameters))
        name = f"step_of_{identifier(self.function.__code__.co_name)}"
        text = f"def {name}({given}):\n    return step({given})\n"
        scope = {"__builtins__": __builtins__, "__name__": STEP_MODULE, "step": self}
        return compiled_source(text, name, name, scope)


class Suspension:
    """A generator that has yielded `value`. It goes on with `call(*values)`: a compiled step, to which what is sent is given
    besides; without a `step`, the `send` of a generator that the interpreter runs."""

    __slots__ = ("call", "step", "value", "values")

    def __init__(
        self, value: object, call: Callable[..., object], step: Step | None, values: tuple[object, ...]
    ) -> None:
        self.value = value
        self.call = call
        self.step = step
        self.values = values

    def thrown_into(self, error: BaseException) -> object:
        """What the next `yield` gives if `error` is thrown; the interpreter runs the generator from then on. Raises
        StopIteration."""
        if self.step is not None:
            generator, self.step = self.step.at_yield(self.values), None
            self.call, self.values = generator.send, ()
            return generator.throw(error)
        return cast("_Real", self.call.__self__).throw(error)  # type: ignore[attr-defined]


def _advancing(state: Suspension, begins: bool) -> _Real:
    sent: tuple[object, ...] = ()
    thrown: BaseException | None = None
    while True:
        if not begins:
            try:
                sent = ((yield state.value),)
            except BaseException as error:
                error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
                thrown = error
        begins = False
        try:
            if thrown is None:
                values, state.values = (*state.values, *sent), ()
                sent = ()
                outcome = state.call(*values)
                del values
            else:
                raised, thrown = thrown, None
                outcome = state.thrown_into(raised)
                del raised
        except StopIteration as stop:
            if state.step is None:
                return stop.value
            _native.raise_at(stop, _place(stop))
        except BaseException as error:
            _native.raise_at(error, _place(error))
        if state.step is None:
            state.value = outcome
        elif type(outcome) is Suspension:
            state = outcome
        else:
            return outcome
        del outcome


def _code_for(source: types.CodeType) -> types.CodeType:
    """The code of a generator that advances one of the user's code `source`. Behind its own instructions are places for
    those of `source`: `raise_at` makes it stand there."""
    own = _advancing.__code__
    kind = inspect.CO_COROUTINE if source.co_flags & inspect.CO_COROUTINE else inspect.CO_GENERATOR
    padding = bytes((dis.opmap["NOP"], 0)) * (len(source.co_code) // 2)
    runs: list[tuple[int, Position]] = [
        (len(own.co_code) // 2, (source.co_firstlineno, None, None, None)),
        *((1, position) for position in source.co_positions()),
    ]
    return own.replace(
        co_code=own.co_code + padding,
        co_consts=(*own.co_consts, source),
        co_flags=own.co_flags & ~inspect.CO_GENERATOR
        | kind
        | source.co_flags & inspect.CO_ITERABLE_COROUTINE,
        co_filename=source.co_filename,
        co_name=source.co_name,
        co_qualname=source.co_qualname,
        co_firstlineno=source.co_firstlineno,
        co_linetable=location_table(runs, source.co_firstlineno),
    )


def _place(error: BaseException) -> int:
    """Where the user's generator stood when a step raised `error`, in the code of the generator that advances it. That one
    takes the place of the step's frames in the traceback."""
    own = error.__traceback__
    assert own is not None
    source = cast(types.CodeType, own.tb_frame.f_code.co_consts[-1])
    error.__traceback__ = found = own.tb_next
    while found is not None:
        code = found.tb_frame.f_code
        if (code.co_filename, code.co_qualname) == (source.co_filename, source.co_qualname):
            where = list(source.co_positions())
            position = next(itertools.islice(code.co_positions(), found.tb_lasti // 2, None))
            if position in where:
                error.__traceback__ = found.tb_next
                return len(_advancing.__code__.co_code) + 2 * where.index(position)
        found = found.tb_next
    return 0


def generator(
    name: str, qualname: str, source: types.CodeType, state: Suspension, begins: bool = False
) -> _Real:
    """A generator of these names for one of the user's code `source`, which has not begun, or is suspended in `state`."""
    function = types.FunctionType(_code_for(source), _advancing.__globals__, name)
    function.__qualname__ = qualname
    made = cast(_Real, function(state, begins))
    return made if begins else advanced(made)


def advanced(made: _Real) -> _Real:
    """Runs a generator up to the `yield` at which it is suspended, and gives it."""
    made.send(None)
    return made


def finished(name: str, qualname: str, source: types.CodeType) -> _Real:
    """A generator that has nothing left."""
    made = generator(name, qualname, source, Suspension(None, iter, None, ()), begins=True)
    made.close()
    return made


# ------------------------------------------------------------------------------------------------------ capture


class MachinesState:
    """A generator of the machine that a step has run to a `yield`, and what it has yielded."""

    __slots__ = ("generator", "value")

    def __init__(self, generator: Machines, value: object) -> None:
        self.generator = generator
        self.value = value


def _step(vm: VM, step: Step, args: Args, kwargs: Kwargs) -> object:
    """What a step gives. The generator's frame may be left in the middle: the rest of the step only returns the result."""
    tail = vm.frames.take_tail()
    made = vm.call_function(step.function, args)
    assert isinstance(made, Machines)
    vm.frames.tail = tail
    vm.direct(made.frame)
    try:
        return MachinesState(made, made.send(None))
    except StopIteration as stop:
        return stop.value


calls.CALLERS[Step] = _step
