"""The virtual machine: it runs a frame's bytecode over real objects, with fakes in place of tensors.

A `VM` is one capture (`capture/driver/capture_frame.py`). Most of what it does is written as functions of a VM in the
modules around this one, a concept each; the class lists them.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from dataclasses import replace
from typing import Any, NoReturn

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code, decode
from smelt.capture.base.call_handlers import BUILTINS, METHODS
from smelt.capture.base.value_kinds import MISSING, Sentinel
from smelt.capture.base.vm_frames import CREATED, Frame, Generator
from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.graph_breaks import await_breaks, generator_reconstruction, iterator_reconstruction
from smelt.capture.interpreter import interpreted_tracebacks
from smelt.capture.interpreter.opcodes import HANDLERS, unknown
from smelt.capture.reconstruction.traceback_reconstruction import users_part
from smelt.capture.semantics.calls import (
    arity,
    calls,
    class_construction,
    native_arguments,
    native_callbacks,
    python_functions,
    torch_function_overrides,
)
from smelt.capture.semantics.values import (
    container_constructors,
    container_methods,
    iteration,
    lengths,
    python_operators,
    subscripts,
)
from smelt.capture.semantics.values import raise_exceptions as raising
from smelt.capture.stdlib import (
    attribute_functions,
    class_functions,
    context_variables,
    copy_functions,
    descriptor_functions,
    eval_exec,
    exception_functions,
    functools_wrappers,
    itertools_functions,
    locale_settings,
    random_functions,
    special_methods,
    stack_frames,
    symbolic_range_calls,
    weak_references,
)
from smelt.capture.stdlib.output import logging_calls, print_calls, warnings_calls
from smelt.capture.stdlib.output.deferred_calls import defer
from smelt.capture.torch_calls import (
    asserted_values,
    backend_flag_calls,
    compiler_queries,
    control_flow,
    function_modes,
    function_transforms,
    higher_order_operators,
    numpy_conversions,
    optimizers,
    other_tracers,
    shape_functions,
    tensor_item,
    tensor_methods,
    torch_function_calls,
    triton_kernels,
    unbacked_reads,
    value_checks,
)
from smelt.capture.torch_calls.autograd import (
    backward_calls,
    checkpoints,
    custom_functions,
    gradients,
    hooks,
    tensor_state,
)
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import Contexts, Exceptions
from smelt.errors import Unsupported
from smelt.graph.ir import Line
from smelt.reasons import LONG_COMPUTATION, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT, Reason
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.symbolic_ranges import of_unknown_row

# Importing these modules fills the tables of `capture/base/call_handlers.py` and `rebuilding.kinds.KINDS`.
FILLING = (
    asserted_values, attribute_functions, await_breaks, backward_calls, value_checks, checkpoints, class_functions,
    compiler_queries, container_constructors, container_methods, context_variables, control_flow, copy_functions,
    custom_functions, unbacked_reads, descriptor_functions, eval_exec, exception_functions, function_modes,
    functools_wrappers, generator_reconstruction, gradients, higher_order_operators, hooks, iteration,
    itertools_functions, lengths, locale_settings, logging_calls, numpy_conversions, optimizers, other_tracers,
    print_calls, backend_flag_calls, random_functions, symbolic_range_calls, shape_functions, special_methods,
    stack_frames, subscripts, iterator_reconstruction, tensor_methods, tensor_state, torch_function_calls,
    triton_kernels, warnings_calls, weak_references,
)  # fmt: skip
arity.note((*BUILTINS, *(getattr(base, name) for base, name in METHODS if hasattr(base, name))))
_decoded: dict[int, tuple[Any, Code]] = {}  # id of a code object -> (weak reference, decoded)

_MUCH = 400_000  # instructions without a call of torch: about a second


def decoded(code: types.CodeType) -> Code:
    """The instructions of `code`; decoded once for as long as the code object lives."""
    entry = _decoded.get(id(code))
    if entry is None:
        key = id(code)
        entry = (weakref.ref(code, lambda _: _decoded.pop(key, None)), decode(code, HANDLERS, unknown))
        _decoded[key] = entry
    return entry[1]


class Stopped(BaseException):
    """Raised where capture is to stop; the frames stay as they are."""


class Interpreter(VM):
    """The machine itself: the loop over instructions, and where it stands."""

    def __init__(self) -> None:
        trace = Trace(self.where)
        super().__init__(
            trace,
            Environment(trace, self.where),
            Exceptions(host=sys.exception(), outer=raising.outer()),
            Contexts(transforms=function_transforms.open_transforms()),
        )
        trace.inputs.on_unknown = self._unknown_tensor
        trace.call.ask = functools.partial(torch_function_overrides.ask, self)
        trace.known.on_read = functools.partial(tensor_item.number, self)

    # ---- where

    def where(self) -> Line | None:
        """The user's line that runs: the innermost frame outside of torch and the standard library."""
        frame = self.frame or self.frames.root
        while frame is not None:
            if not is_library(frame.code.filename) or frame.parent is None:
                return frame.line
            frame = frame.parent
        return None

    def stack(self) -> tuple[Line, ...]:
        """The lines at which the frames stand, outermost first."""
        lines = []
        frame = self.frame or self.frames.root
        while frame is not None:
            lines.append(frame.line)
            frame = frame.parent
        return tuple(reversed(lines))

    def is_compiling(self) -> bool:
        """The answer to `torch.compiler.is_compiling()`."""
        self.disclosed.was_asked |= self.disclosed.compiling
        return self.disclosed.compiling

    def ended(self, frame: Frame) -> object:
        """The result of a frame that has returned or yielded; what it held and nobody else does is dropped."""
        result, frame.result = frame.result, None
        if not frame.yielded and not isinstance(result, Generator):
            frame.clear()
        return result

    def drop(self, generator: Generator) -> None:
        """A suspended generator that nobody holds any more, or a coroutine that was never awaited."""
        if generator.state is CREATED:
            self.locate(Unsupported(Reason(UNSUPPORTED_EFFECT, "a coroutine that is never awaited")))
            return
        raising, traceback = self.exceptions.raising, self.exceptions.traceback
        try:
            generator.close()
        except Unsupported as e:
            self.locate(e)
        except BaseException as e:
            self.locate(Unsupported(Reason(UNSUPPORTED_EFFECT, f"a generator that is dropped raises {e!r}")))
        finally:
            self.exceptions.raising, self.exceptions.traceback = raising, traceback

    def raise_again(self, error: BaseException) -> NoReturn:
        """Raises `error` as it was: with its context and, in this frame, its traceback."""
        self.exceptions.raising, self.exceptions.traceback = error, error.__traceback__
        raise error

    def handled_exception(self) -> BaseException | None:
        """What `sys.exception()` is for the program.

        Raises Unsupported where the caller of the captured function handles one, which no guard can tell."""
        frame = self.frame
        while frame is not None:
            if frame.handled is not None:
                return frame.handled
            frame = frame.parent
        if self.exceptions.outer is not None:
            raise Unsupported(
                Reason(UNSUPPORTED_EFFECT, "an exception is raised while the caller handles another")
            )
        self.env.facts.guard("eq", self.env.sources.const(sys.exception).child("call", None), None)
        return None

    # ---- the loop

    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Runs `frame` until it returns or yields. With `error`, it is raised where the frame stands."""
        self.frames.depth += 1
        if self.frames.depth > self.frames.depth_limit:
            self.frames.depth -= 1
            raise RecursionError("maximum recursion depth exceeded")
        frame.parent, self.frame = self.frame, frame
        instructions, stop = frame.instructions, frame.stop
        started, frame.nodes = frame.ticks, len(self.trace.tape.torch.graph.nodes)
        if self.work.ticks > self.work.limit:
            self.check_work()
        if frame.code.handlers:
            self.exceptions.some_handler = True
        try:
            while True:
                try:
                    if error is not None:
                        raised, error = error, None
                        if isinstance(raised, KeyboardInterrupt):
                            self.exceptions.own_interrupt = raised
                        if raised is self.exceptions.raising:  # by what a generator delegates to
                            raising.chain(raised, self.handled_exception())
                        raise raised
                    while True:
                        pc = frame.pc
                        frame.pc = pc + 1
                        frame.ticks = ticks = frame.ticks + 1
                        if ticks == stop:
                            self.check_stop(frame)
                        handler, arg = instructions[pc]
                        if handler(self, frame, arg):
                            return self.ended(frame) if self.frames.generators else frame.result
                except Unsupported as e:
                    self.locate(e)
                    raise
                except Stopped:
                    raise
                except BaseException as e:
                    unknown = of_unknown_row(e)
                    if unknown is not None:
                        self.locate(unknown)
                        raise unknown from e
                    if isinstance(e, KeyboardInterrupt) and e is not self.exceptions.own_interrupt:
                        raise  # the user's, of smelt: no handler of the program may see it
                    if self.failure is not None:
                        raise self.failure from e
                    self._note_passage(frame, e)
                    if not frame.unwind(e):
                        raise
                    self._note_caught(e)
        finally:
            self.frame = frame.parent
            self.frames.depth -= 1
            self.work.ticks += frame.ticks - started

    def _note_passage(self, frame: Frame, error: BaseException) -> None:
        """`error` is raised in `frame`, comes from what it called, or is raised there again."""
        state = self.exceptions
        places = interpreted_tracebacks.places(self, frame)
        if error is not state.raising:
            raising.without(error, state.host)
            raising.chain(error, self.handled_exception())
            state.before, state.passed = users_part(error.__traceback__), list(places)
        elif not isinstance(state.traceback, Sentinel):
            error.__traceback__ = state.before = state.traceback
            state.passed = []
            if id(error) in self.env.sources:
                state.original_tracebacks.setdefault(id(error), (error, state.traceback))
        else:
            state.passed += places
        state.raising, state.traceback = error, MISSING

    def _note_caught(self, error: BaseException) -> None:
        """A frame handles `error`."""
        state = self.exceptions
        error.__traceback__ = interpreted_tracebacks.made_of(state.passed, state.before)
        if state.passed and id(error) in self.env.sources:
            defer(self, interpreted_tracebacks.Passage(tuple(state.passed)), error)
        state.raising = None

    def locate(self, error: Unsupported) -> None:
        """Adds the user's line and stack to a reason, where it was raised first."""
        if self.failure is None:
            reason = error.reason
            error.reason = replace(reason, line=self.where() or reason.line, stack=self.stack())
            error.args = (str(error.reason),)
            self.failure = error
            error.breaks = error.breaks and not self._asks_for_frames()
            error.path = self._path(error) if error.breaks else ()

    def _asks_for_frames(self) -> bool:
        """Whether a function that the captured one has called asks for frames that a graph break would not show right."""
        frame = self.frame
        while frame is not None and frame.parent is not None:
            if stack_frames.keeps_frames(frame.code):
                return True
            frame = frame.parent
        return False

    def check_work(self) -> None:
        """Raises Unsupported where the program did much since the graph grew last: Python does that faster."""
        nodes = len(self.trace.tape.torch.graph.nodes)
        work = self.work
        if work.limit and nodes == work.nodes:
            raise Unsupported(Reason(LONG_COMPUTATION, f"{_MUCH} instructions"))
        work.nodes, work.limit = nodes, work.ticks + _MUCH

    # ---- stops

    def _path(self, error: Unsupported) -> tuple[int, ...]:
        """Where the graph may break for `error`: the moment of each frame, outermost first.

        What takes long is left as a whole: the outermost loop or call that began after the graph grew last."""
        frames = self._resumable_frames()
        ticks = tuple(f.moment(f.ticks) for f in frames)
        nodes = len(self.trace.tape.torch.graph.nodes)
        for i, frame in enumerate(frames if error.reason.kind is LONG_COMPUTATION else ()):
            outermost = min(
                (h for h, (_, n) in frame.loops.items() if n == nodes and _runs(frame, h)), default=-1
            )
            if outermost >= 0:
                return (*ticks[:i], frame.moment(frame.loops[outermost][0]))
            if i + 1 < len(frames) and frames[i + 1].nodes == nodes:
                return ticks[: i + 1]
        return ticks

    def _resumable_frames(self) -> list[Frame]:
        """The frames, from the root on, that can be left in the middle: each waits for the next one's result."""
        frames: list[Frame] = []
        frame = self.frame
        while frame is not None:
            frames.append(frame)
            frame = frame.parent
        frames.reverse()
        if not frames or frames[0] is not self.frames.root:
            return []
        count = next((i for i, f in enumerate(frames) if i and f.deliveries is None), len(frames))
        return frames[:count]

    def direct(self, frame: Frame) -> Frame:
        """`frame`, made for the instruction that is being carried out."""
        tail = self.frames.take_tail()
        if tail is not None and tail[0] is self.frame and tail[0].ticks == tail[1]:
            caller, tick, frame.deliveries = tail
            at, count = caller.callees
            frame.order = count + 1 if at == tick else 0
            caller.callees = tick, frame.order
            depth = len(self.stopping.frames)
            if caller.ticks == caller.stop and depth and self.stopping.frames[-1] is caller:
                frame.stop_at(self.stopping.path[depth])
        return frame

    def check_stop(self, frame: Frame) -> None:
        """`frame` is about to begin the instruction at which capture is to stop in it, or in what it calls."""
        self.stopping.frames.append(frame)
        if len(self.stopping.frames) == len(self.stopping.path):
            raise Stopped

    decode = staticmethod(decoded)

    # ---- calls

    call = calls.call
    call_function = python_functions.call_function
    instantiate = class_construction.instantiate
    native = native_callbacks.native
    keyed = native_callbacks.keyed
    called_back = native_callbacks.called_back
    native_callable = native_arguments.native_callable
    native_argument = native_arguments.native_argument

    # ---- operations

    binary = python_operators.binary
    truth = python_operators.truth
    same = python_operators.same
    contains = python_operators.contains
    subscript = subscripts.subscript
    item_value = subscripts.item_value
    store_item = subscripts.store_item
    delete_item = subscripts.delete_item
    get_iter = iteration.get_iter
    next = iteration.next_item
    iterable = iteration.iterable
    elements = iteration.elements

    def _unknown_tensor(self, real: torch.Tensor) -> FakeTensor:
        source = self.env.sources.get(id(real))
        if source is None:
            raise Unsupported(
                Reason(UNSUPPORTED_OBJECT, f"a tensor of shape {list(real.shape)} that native code holds")
            )
        return wrap_values.wrap(self.env, real, source)


def _runs(frame: Frame, head: int) -> bool:
    """Whether `frame` is in the loop that begins at `head`."""
    code = frame.code
    ends = (i for i, (_, arg) in enumerate(code.instructions) if arg == head and "BACKWARD" in code.names[i])
    return head < frame.pc <= max(ends) + 1


_STDLIB = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"


def is_library(filename: str) -> bool:
    """Files of the standard library and of torch: not the user's."""
    if filename.startswith(_STDLIB) and "site-packages" not in filename:
        return True
    return filename.startswith((_TORCH, "<frozen", "<string>", "<smelt")) or (
        "/smelt/capture/semantics/" in filename and filename.endswith("polyfills.py")
    )
