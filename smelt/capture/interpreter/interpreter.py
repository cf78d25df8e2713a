"""The interpreter: it runs a frame's bytecode over real objects, with fakes in place of tensors.

One `Interpreter` serves one capture (`capture/driver/capture_frame.py`). Its class body binds the operations that the
semantics packages implement as functions of a VM.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
import weakref
from dataclasses import replace
from typing import Any, NoReturn

import torch

from smelt._native import isinstance
from smelt.capture.base.bytecode import Code, decode
from smelt.capture.base.call_handlers import BUILTINS, METHODS, unsupported
from smelt.capture.base.value_kinds import MISSING, NULL, Sentinel
from smelt.capture.base.vm_frames import CREATED, Frame, Generator
from smelt.capture.environment import wrap_values
from smelt.capture.environment.environment import Environment
from smelt.capture.graph_breaks import await_breaks, generator_reconstruction, iterator_reconstruction
from smelt.capture.graph_breaks.profitability import has_tensors
from smelt.capture.interpreter import interpreted_tracebacks
from smelt.capture.interpreter.opcodes import HANDLERS, unknown
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import Unreadable, unreadable
from smelt.capture.reconstruction.traceback_reconstruction import without_smelt_frames
from smelt.capture.semantics import attributes
from smelt.capture.semantics.calls import (
    arity,
    calls,
    class_construction,
    native_arguments,
    native_callbacks,
    nested_polyfills,
    python_functions,
    torch_function_overrides,
    torch_polyfills,
)
from smelt.capture.semantics.values import (
    container_constructors,
    container_methods,
    iteration,
    lengths,
    python_operators,
    raise_exceptions,
    subscripts,
)
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
    locks,
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
    attention_parameters,
    backend_flag_calls,
    compiler_queries,
    control_flow,
    function_modes,
    function_transforms,
    higher_order_operators,
    item_calls,
    nested_compiles,
    nested_tensors,
    numpy_conversions,
    optimizers,
    other_tracers,
    random_seeds,
    shape_functions,
    storages,
    tensor_constructors,
    tensor_item,
    tensor_methods,
    torch_function_calls,
    triton_kernels,
    unbacked_reads,
    unknown_lengths,
    value_checks,
    wrapper_calls,
)
from smelt.capture.torch_calls.autograd import (
    backward_calls,
    checkpoints,
    compiled_autograd,
    custom_functions,
    gradients,
    hooks,
    tensor_state,
)
from smelt.capture.vm.vm import VM
from smelt.capture.vm.vm_state import Contexts, Exceptions
from smelt.errors import RefusedOperator, Unsupported
from smelt.graph.ir import Line
from smelt.reasons import DEBUGGER, LONG_COMPUTATION, UNSUPPORTED_EFFECT, UNSUPPORTED_OBJECT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace import Trace
from smelt.tracing.symbolic.symbolic_ranges import needs_fixed_length
from smelt.user_lines import is_own

# Importing these modules fills the tables of `capture/base/call_handlers.py` and `capture/reconstruction/`.
REGISTERED = (
    asserted_values, attention_parameters, attribute_functions, await_breaks, backward_calls, value_checks, checkpoints,
    class_functions, compiled_autograd, compiler_queries, container_constructors, container_methods, context_variables,
    control_flow, copy_functions, custom_functions, unbacked_reads, descriptor_functions, eval_exec, exception_functions,
    function_modes, functools_wrappers, generator_reconstruction, gradients, higher_order_operators, hooks, item_calls,
    iteration, itertools_functions, lengths, locale_settings, locks, logging_calls, nested_compiles, nested_tensors,
    numpy_conversions, optimizers, other_tracers, unknown_lengths, print_calls, backend_flag_calls, random_functions,
    random_seeds, symbolic_range_calls, shape_functions, special_methods, stack_frames, storages, subscripts,
    iterator_reconstruction, tensor_constructors, tensor_methods, tensor_state, torch_function_calls, triton_kernels,
    warnings_calls, weak_references, wrapper_calls,
)  # fmt: skip
arity.record_arities((*BUILTINS, *(getattr(base, name) for base, name in METHODS if hasattr(base, name))))
_decoded: dict[int, tuple[Any, Code]] = {}  # id of a code object -> (weak reference, decoded)

_LONG = 400_000  # instructions without a torch call: about a second


def decoded(code: types.CodeType) -> Code:
    """Decode `code`; the result is cached as long as the code object lives."""
    entry = _decoded.get(id(code))
    if entry is None:
        key = id(code)
        entry = (weakref.ref(code, lambda _: _decoded.pop(key, None)), decode(code, HANDLERS, unknown))
        _decoded[key] = entry
    return entry[1]


_COMPREHENSIONS = frozenset(("<listcomp>", "<setcomp>", "<dictcomp>"))


def _is_comprehension_of_numbers(frame: Frame) -> bool:
    """Whether `frame` runs a comprehension that reaches no tensors: CPython runs it faster than its guards would take."""
    code = frame.user_code
    if code.co_name not in _COMPREHENSIONS or not all(hasattr(builtins, name) for name in code.co_names):
        return False
    return not has_tensors(value for value in (*frame.locals, *frame.stack) if value is not NULL)


class Stopped(BaseException):
    """Raised at the instruction at which capture stops; the frames keep their state."""


class Interpreter(VM):
    """The loop over instructions, and the current position in the program."""

    def __init__(self) -> None:
        trace = Trace(self.current_line)
        super().__init__(
            trace,
            Environment(trace, self.current_line),
            Exceptions(host=sys.exception(), outer=raise_exceptions.caller_exception()),
            Contexts(transforms=function_transforms.open_transforms()),
        )
        trace.inputs.on_unknown_tensor = self._unknown_tensor
        trace.call.call_handlers = functools.partial(torch_function_overrides.dispatch_handlers, self)
        trace.call.call_dispatch = functools.partial(torch_function_overrides.call_dispatch, self)
        for fn in (nested_polyfills.unbind, nested_polyfills.longest):
            trace.nested.polyfills[fn.__name__] = functools.partial(
                torch_function_overrides.call_polyfill, self, fn
            )
        trace.call.load_attributes = functools.partial(attributes.wrapper_attributes, self)
        trace.constants.on_read = functools.partial(tensor_item.number, self)

    # ---- position

    def current_line(self) -> Line | None:
        """The user's current line: that of the innermost frame outside of torch and the standard library. None in
        smelt's own code, which calls a module."""
        frame = self.frame or self.frames.root
        while frame is not None:
            if not is_library(frame.code.filename) or frame.parent is None:
                return None if is_own(frame.code.filename) else frame.line
            frame = frame.parent
        return None

    def stack(self) -> tuple[Line, ...]:
        """The current lines of the frames, outermost first."""
        lines = []
        frame = self.frame or self.frames.root
        while frame is not None:
            lines.append(frame.line)
            frame = frame.parent
        return tuple(reversed(lines))

    def is_compiling(self) -> bool:
        """The value of `torch.compiler.is_compiling()` in the program."""
        self.assumptions.was_queried |= self.assumptions.compiling
        return self.assumptions.compiling

    def ended(self, frame: Frame) -> object:
        """The result of a frame that has returned or yielded; a frame that has returned drops its locals and its stack,
        unless a traceback holds it."""
        result, frame.result = frame.result, None
        if not frame.yielded and not isinstance(result, Generator) and not frame.in_traceback:
            frame.clear()
        return result

    def drop_generator(self, generator: Generator) -> None:
        """Close a suspended generator whose last reference is gone. Raises Unsupported for a coroutine that never ran."""
        if generator.state is CREATED:
            self.locate(unsupported("a coroutine that is never awaited", UNSUPPORTED_EFFECT))
            return
        state = self.exceptions
        in_flight, traceback = state.in_flight, state.reraised_traceback
        try:
            generator.close()
        except Unsupported as e:
            self.locate(e)
        except BaseException as e:
            self.locate(unsupported(f"a generator that is dropped raises {e!r}", UNSUPPORTED_EFFECT))
        finally:
            state.in_flight, state.reraised_traceback = in_flight, traceback

    def reraise(self, error: BaseException) -> NoReturn:
        """Raise `error` with its context and, in this frame, its traceback unchanged."""
        self.exceptions.in_flight, self.exceptions.reraised_traceback = error, error.__traceback__
        raise error

    def handled_exception(self) -> BaseException | None:
        """The value of `sys.exception()` in the program.

        Raises Unsupported if the caller of the captured function handles an exception, which no guard can check."""
        frame = self.frame
        while frame is not None:
            if frame.handled is not None:
                return frame.handled
            frame = frame.parent
        if self.exceptions.outer is not None:
            raise unsupported("an exception is raised while the caller handles another", UNSUPPORTED_EFFECT)
        self.env.facts.guard("eq", self.env.sources.const(sys.exception).child("call", None), None)
        return None

    # ---- the loop

    def run(self, frame: Frame, error: BaseException | None = None) -> object:
        """Run `frame` until it returns or yields. With `error`, raise that at the frame's current instruction."""
        self.frames.depth += 1
        if self.frames.depth > self.frames.depth_limit:
            self.frames.depth -= 1
            raise RecursionError("maximum recursion depth exceeded")
        caller = frame.parent = self.frame
        self.frame = frame
        instructions, stop = frame.instructions, frame.stop
        started, frame.nodes = frame.ticks, len(self.trace.tape.torch.graph.nodes)
        if self.work.ticks > self.work.limit:
            self.check_long_computation()
        if frame.code.has_handlers:
            self.exceptions.has_handlers = True
        try:
            while True:
                try:
                    if error is not None:
                        raised, error = error, None
                        if isinstance(raised, KeyboardInterrupt):
                            self.exceptions.program_interrupt = raised
                        if self.exceptions.traceback_in_flight(raised) is not MISSING:
                            # raised by the iterator of a `yield from`
                            raise_exceptions.chain(raised, self.handled_exception())
                        raise raised
                    while True:
                        pc = frame.pc
                        frame.pc = pc + 1
                        frame.ticks = ticks = frame.ticks + 1
                        if ticks == stop:
                            self.check_stop(frame)
                        handler, arg = instructions[pc]
                        if handler(self, frame, arg):
                            return self.ended(frame)
                except Unsupported as e:
                    self.locate(e)
                    raise
                except Stopped:
                    raise
                except BaseException as e:
                    unknown = needs_fixed_length(e)
                    if unknown is not None:
                        self.locate(unknown)
                        raise unknown from e
                    if isinstance(e, KeyboardInterrupt) and e is not self.exceptions.program_interrupt:
                        raise  # a signal for smelt's user: no handler of the program may catch it
                    if self.failure is not None:
                        raise self.failure from e
                    self._record_propagation(frame, e)
                    if not frame.unwind(e):
                        frame.stack.clear()
                        raise
                    self._record_catch(e)
        finally:
            self.frame = caller
            if frame.in_traceback and caller is not None:
                caller.in_traceback = True  # by `f_back`
            self.frames.depth -= 1
            self.work.ticks += frame.ticks - started

    def _record_propagation(self, frame: Frame, error: BaseException) -> None:
        """Set the context and traceback entries of `error`, raised or reraised in `frame`, or propagating from a callee."""
        state = self.exceptions
        traceback, is_environment = state.traceback_in_flight(error), id(error) in self.env.sources
        if isinstance(traceback, Sentinel):
            raise_exceptions.remove_context(error, state.host)
            raise_exceptions.chain(error, self.handled_exception())
            traceback = without_smelt_frames(error.__traceback__)
            state.traceback_entries = []
        if isinstance(state.reraised_traceback, Sentinel):
            entries = tuple(interpreted_tracebacks.traceback_entries(self, frame))
            traceback = interpreted_tracebacks.extended(traceback, entries, frame)
            state.traceback_entries += entries if is_environment else ()
        else:
            state.traceback_entries = []
            if is_environment:
                state.original_tracebacks.setdefault(id(error), (error, state.reraised_traceback))
        error.__traceback__ = traceback
        state.propagate(error)

    def _record_catch(self, error: BaseException) -> None:
        """Replay the traceback of `error`, an exception of the environment that a frame handles."""
        state = self.exceptions
        if isinstance(error, (TypeError, AttributeError)) and self.env.wrapped.has_opaque:
            unknown = unreadable("the program handles an error that an object which changes may cause")
            self.locate(unknown)
            raise unknown
        entries = tuple(state.traceback_entries)
        if entries and id(error) in self.env.sources:
            defer(self, interpreted_tracebacks.ExtendTraceback(entries), error)
        state.in_flight = None

    def locate(self, error: Unsupported) -> None:
        """Add the user's line and stack to the reason of `error` where it is first raised."""
        if self.failure is None:
            reason, stack = error.reason, self.stack()
            line = self.current_line() or reason.line or (stack[-1] if stack else None)
            error.reason = replace(reason, line=line, stack=stack)
            error.args = (str(error.reason),)
            if isinstance(error, Unreadable):
                if not error.values and self.frame is not None:
                    error.values = tuple(self.frame.stack)  # the operands are among these
                # A use of an object whose class is not known would break for each class.
                error.breaks = all(type(v) is not OpaqueProxy or v.has_class for v in error.values)
            self.failure = error
            # A debugger shows the variables and lines of the user's frames: the call runs eagerly from its start.
            shows_frames = reason.kind is DEBUGGER or self._inspects_frames()
            error.breaks = error.breaks and not shows_frames
            error.path = self._path(error) if error.breaks else ()

    def _inspects_frames(self) -> bool:
        """Whether a callee of the captured function inspects stack frames, which a graph break would not reproduce."""
        frame = self.frame
        while frame is not None and frame.parent is not None:
            if stack_frames.retains_frames(frame.code):
                return True
            frame = frame.parent
        return False

    def check_long_computation(self) -> None:
        """Raise Unsupported after many instructions without a new graph node: CPython runs those faster."""
        nodes = len(self.trace.tape.torch.graph.nodes)
        work = self.work
        if work.limit and nodes == work.nodes:
            raise unsupported(f"{_LONG} instructions", LONG_COMPUTATION)
        work.nodes, work.limit = nodes, work.ticks + _LONG

    # ---- stops

    def _path(self, error: Unsupported) -> tuple[int, ...]:
        """Where the graph may break for `error`: the position of each frame, outermost first.

        A long computation breaks before the outermost loop or call that began after the graph last grew, a refused
        higher-order operator before the call of its polyfill, and a comprehension of numbers as a whole."""
        frames = self._resumable_frames()
        ticks = tuple(f.position(f.ticks) for f in frames)
        if isinstance(error, RefusedOperator):
            whole = torch_polyfills.call_operator.__code__
            return ticks[: next((i for i, f in enumerate(frames) if f.user_code is whole), len(frames))]
        while len(ticks) > 1 and _is_comprehension_of_numbers(frames[len(ticks) - 1]):
            ticks = ticks[:-1]
        nodes = len(self.trace.tape.torch.graph.nodes)
        for i, frame in enumerate(frames if error.reason.kind is LONG_COMPUTATION else ()):
            outermost = min(
                (h for h, (_, n) in frame.loops.items() if n == nodes and _runs(frame, h)), default=-1
            )
            if outermost >= 0:
                return (*ticks[:i], frame.position(frame.loops[outermost][0]))
            if i + 1 < len(frames) and frames[i + 1].nodes == nodes:
                return ticks[: i + 1]
        return ticks

    def _resumable_frames(self) -> list[Frame]:
        """The frames at which the graph can break, from the root on: each is suspended at the call of the next."""
        frames: list[Frame] = []
        frame = self.frame
        while frame is not None:
            frames.append(frame)
            frame = frame.parent
        frames.reverse()
        if not frames or frames[0] is not self.frames.root:
            return []
        count = next((i for i, f in enumerate(frames) if i and f.result_handlers is None), len(frames))
        return frames[:count]

    def attach_call_site(self, frame: Frame) -> Frame:
        """Link the new `frame` to the instruction being executed, which receives its result; return `frame`."""
        call_site = self.frames.take_call_site()
        if call_site is not None and call_site[0] is self.frame and call_site[0].ticks == call_site[1]:
            caller, tick, frame.result_handlers = call_site
            last_tick, count = caller.calls
            frame.call_index = count + 1 if last_tick == tick else 0
            caller.calls = tick, frame.call_index
            depth = len(self.stop_point.frames)
            if caller.ticks == caller.stop and depth and self.stop_point.frames[-1] is caller:
                frame.stop_at(self.stop_point.path[depth])
        return frame

    def check_stop(self, frame: Frame) -> None:
        """Raise Stopped if `frame` is the innermost frame of the stop point; it is about to begin its stop instruction."""
        self.stop_point.frames.append(frame)
        if len(self.stop_point.frames) == len(self.stop_point.path):
            raise Stopped

    decode = staticmethod(decoded)

    # ---- calls

    call = calls.call
    call_function = python_functions.call_function
    instantiate = class_construction.instantiate
    call_native = native_callbacks.call_native
    native_lookup = native_callbacks.native_lookup
    call_from_native = native_callbacks.call_from_native
    native_callable = native_arguments.native_callable
    native_argument = native_arguments.native_argument

    # ---- operations

    binary = python_operators.binary
    truth = python_operators.truth
    is_same = python_operators.same
    contains = python_operators.contains
    subscript = subscripts.subscript
    wrap_item = subscripts.wrap_item
    store_item = subscripts.store_item
    delete_item = subscripts.delete_item
    get_iter = iteration.get_iter
    next = iteration.next_item
    iterable = iteration.iterable
    elements = iteration.elements

    def _unknown_tensor(self, real: torch.Tensor) -> FakeTensor:
        source = self.env.sources.get(id(real))
        if source is None:
            raise unsupported(
                f"a tensor of shape {list(real.shape)} that native code holds", UNSUPPORTED_OBJECT
            )
        return wrap_values.wrap(self.env, real, source)


def _runs(frame: Frame, head: int) -> bool:
    """Whether `frame` is inside the loop that begins at `head`."""
    code = frame.code
    ends = (i for i, (_, arg) in enumerate(code.instructions) if arg == head and "BACKWARD" in code.names[i])
    return head < frame.pc <= max(ends) + 1


_STDLIB = types.__file__.rsplit("/", 1)[0] + "/"
_TORCH = torch.__file__.rsplit("/", 1)[0] + "/"


def is_library(filename: str) -> bool:
    """Whether a file belongs to the standard library, to torch or to smelt's polyfills."""
    if filename.startswith(_STDLIB) and "site-packages" not in filename:
        return True
    return filename.startswith((_TORCH, "<frozen", "<string>", "<smelt")) or (
        "/smelt/capture/semantics/" in filename and filename.endswith("polyfills.py")
    )
