"""Generators in steps: each segment from one `yield` to the next is compiled as a frame of its own.

A generator that leaves the compiled frame is a real one, whose frame calls *steps*. A step takes the values that are alive
at a point of the user's generator and runs the generator to its next `yield`, where it returns a `Suspension`, or to its
end, where it returns the result.

    state = state.call(*state.values)       # compiled: returns a Suspension with the next step and its values
    sent = yield state.value

A step that cannot be compiled, or into which an exception is thrown, runs the user's bytecode in an inner generator.
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
from smelt.capture.base.vm_frames import Generator as VMGenerator
from smelt.capture.graph_breaks.code_positions import Position, location_table
from smelt.capture.semantics.calls import calls
from smelt.capture.vm.vm import VM
from smelt.runtime.generated_source import compile_source, identifier

STEP_MODULE = "smelt.capture.graph_breaks.step"  # the __name__ in the stubs of steps

_Real = Generator[object, object, object]


def is_step(function: types.FunctionType) -> bool:
    """Whether `function` is the stub of a step (`GeneratorStep.stub`)."""
    return function.__globals__.get("__name__") == STEP_MODULE


class GeneratorStep:
    """A step of a generator. `function`: a generator function of the user's bytecode that begins at a resume point;
    `suspended()`: one that begins at the `yield` before that point."""

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
        """A generator of the user's bytecode, suspended at the `yield` before the step."""
        if self._at_yield is None:
            self._at_yield = self.suspended()
        return advanced(cast(_Real, self._at_yield(*values, None)))

    def stub(self, parameters: int) -> types.FunctionType:
        """The function, of so many parameters, that is compiled as the step."""
        arguments = ", ".join(f"a{i}" for i in range(parameters))
        name = f"step_of_{identifier(self.function.__code__.co_name)}"
        text = f"def {name}({arguments}):\n    return step({arguments})\n"
        scope = {"__builtins__": __builtins__, "__name__": STEP_MODULE, "step": self}
        return compile_source(text, name, name, scope)


class Suspension:
    """The state of a generator that has yielded `value`. It resumes with `call(*values, sent)`: a compiled step or, without
    a `step`, the `send` of a generator that the interpreter runs."""

    __slots__ = ("call", "step", "value", "values")

    def __init__(
        self,
        value: object,
        call: Callable[..., object],
        step: GeneratorStep | None,
        values: tuple[object, ...],
    ) -> None:
        self.value = value
        self.call = call
        self.step = step
        self.values = values

    def throw(self, error: BaseException) -> object:
        """Throw `error`; return the next yielded value. The interpreter runs the generator from then on."""
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
                outcome = state.throw(raised)
                del raised
        except StopIteration as stop:
            if state.step is None:
                return stop.value
            _native.raise_at(stop, _raise_offset(stop))
        except BaseException as error:
            _native.raise_at(error, _raise_offset(error))
        if state.step is None:
            state.value = outcome
        elif type(outcome) is Suspension:
            state = outcome
        else:
            return outcome
        del outcome


def _code_for(user_code: types.CodeType) -> types.CodeType:
    """The code of a generator that advances one of the user's code `user_code`. NOPs with the positions of the instructions
    of `user_code` follow its own instructions: `raise_at` moves the generator's frame to one of them."""
    own = _advancing.__code__
    kind = inspect.CO_COROUTINE if user_code.co_flags & inspect.CO_COROUTINE else inspect.CO_GENERATOR
    padding = bytes((dis.opmap["NOP"], 0)) * (len(user_code.co_code) // 2)
    runs: list[tuple[int, Position]] = [
        (len(own.co_code) // 2, (user_code.co_firstlineno, None, None, None)),
        *((1, position) for position in user_code.co_positions()),
    ]
    return own.replace(
        co_code=own.co_code + padding,
        co_consts=(*own.co_consts, user_code),
        co_flags=own.co_flags & ~inspect.CO_GENERATOR
        | kind
        | user_code.co_flags & inspect.CO_ITERABLE_COROUTINE,
        co_filename=user_code.co_filename,
        co_name=user_code.co_name,
        co_qualname=user_code.co_qualname,
        co_firstlineno=user_code.co_firstlineno,
        co_linetable=location_table(runs, user_code.co_firstlineno),
    )


def _raise_offset(error: BaseException) -> int:
    """The byte offset, in the code of the advancing generator, of the user's instruction at which a step raised `error`. The
    advancing generator replaces the step's frames in the traceback."""
    own = error.__traceback__
    assert own is not None
    user_code = cast(types.CodeType, own.tb_frame.f_code.co_consts[-1])
    error.__traceback__ = found = own.tb_next
    while found is not None:
        code = found.tb_frame.f_code
        if (code.co_filename, code.co_qualname) == (user_code.co_filename, user_code.co_qualname):
            where = list(user_code.co_positions())
            position = next(itertools.islice(code.co_positions(), found.tb_lasti // 2, None))
            if position in where:
                error.__traceback__ = found.tb_next
                return len(_advancing.__code__.co_code) + 2 * where.index(position)
        found = found.tb_next
    return 0


def generator(
    name: str, qualname: str, user_code: types.CodeType, state: Suspension, begins: bool = False
) -> _Real:
    """A generator with these names that advances one of the user's code `user_code`: suspended in `state`, or not begun."""
    function = types.FunctionType(_code_for(user_code), _advancing.__globals__, name)
    function.__qualname__ = qualname
    created = cast(_Real, function(state, begins))
    return created if begins else advanced(created)


def advanced(created: _Real) -> _Real:
    """Run a new generator to the `yield` at which it is suspended; return it."""
    created.send(None)
    return created


def finished(name: str, qualname: str, user_code: types.CodeType) -> _Real:
    """A generator that has ended."""
    ended = generator(name, qualname, user_code, Suspension(None, iter, None, ()), begins=True)
    ended.close()
    return ended


# ------------------------------------------------------------------------------------------------------ capture


class SuspendedVMGenerator:
    """A generator of the VM that a step has run to a `yield`, and the value that it has yielded."""

    __slots__ = ("generator", "value")

    def __init__(self, generator: VMGenerator, value: object) -> None:
        self.generator = generator
        self.value = value


def _step(vm: VM, step: GeneratorStep, args: Args, kwargs: Kwargs) -> object:
    """The result of a step. A graph break may leave the generator's frame: the step only returns the result after it."""
    call_site = vm.frames.take_call_site()
    created = vm.call_function(step.function, args)
    assert isinstance(created, VMGenerator)
    vm.frames.call_site = call_site
    vm.attach_call_site(created.frame)
    try:
        return SuspendedVMGenerator(created, created.send(None))
    except StopIteration as stop:
        return stop.value


calls.CALLERS[GeneratorStep] = _step
