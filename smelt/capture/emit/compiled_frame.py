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

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MappingProxyType
from typing import cast

from smelt._native import isinstance
from smelt.capture.base.bytecode import FUTURE
from smelt.capture.base.vm_frames import COMPILED_SCOPE
from smelt.capture.emit.eager_fallback import (
    Repeat,
    guarded,
    random_state,
    rerun,
    rerun_beside_edited,
    rerun_for_handler,
)
from smelt.capture.emit.effect_replay import Store
from smelt.capture.emit.frame_writer import Writer, slot_names
from smelt.capture.emit.random_statements import kept_states, write_draws
from smelt.capture.emit.torch_graph_overrides import EditedProgram
from smelt.capture.environment.python_random import Draw
from smelt.capture.graph_breaks.frame_exits import Ending
from smelt.capture.graph_breaks.resume_functions import Resumes
from smelt.capture.reconstruction.frame_globals import NAMES
from smelt.capture.reconstruction.generated_source import compiled_source, identifier
from smelt.capture.reconstruction.reconstruction_order import Reach
from smelt.guards.source import Source
from smelt.runtime.recursion_limit import deep_recursion
from smelt.shapes.expr import Expression
from smelt.torch_private import DisableTorchFunctionSubclass
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.record.torch_function_handlers import has_handler

GraphCall = Callable[[tuple[object, ...]], Sequence[object]]


@dataclass(frozen=True)
class CompiledFrame:
    """`collect`: what the guard tree hands over as `inputs`, in order. `only`: all that the function does is to call this
    graph with them and to return its one result."""

    function: FunctionType
    source: str
    collect: tuple[Source, ...]
    only: GraphCall | None


@deep_recursion()  # objects may be nested deeper than the user's limit allows to write them
def emit(
    code: CodeType,
    found: Reach,
    ending: Ending,
    stores: Sequence[Store],
    inputs: Sequence[tuple[FakeTensor, Source]],
    outputs: Sequence[FakeTensor],
    graph: GraphCall | None,
    resumes: Resumes,
    symbols: Sequence[Expression] = (),
    original: FunctionType | None = None,
    repeat: Repeat | None = None,
    handles: bool = False,
    draws: Sequence[Draw] = (),
    brought: Mapping[int, Source] = MappingProxyType({}),
) -> CompiledFrame:
    """Writes and compiles the function that replaces a frame of `code`.

    Args:
        found: `reach` of the ending's roots and the operands of stores.
        inputs: the graph's inputs and where each is found.
        outputs: the fakes that `graph` returns; None for `graph` leaves out the call.
        resumes: makes the functions in which a frame goes on after a graph break.
        symbols: the numbers that `graph` takes after the tensors.
        original: runs the call where the graph raises before any store (`eager_fallback.py`).
        repeat: how it does; None: the exception goes on.
        handles: the user's code may have a handler for it.
        draws: random numbers that are drawn before the graph is called.
        brought: by id, the objects that are not kept alive, and where each call has them.
    """
    slots = slot_names(code)
    sources = [source for _, source in inputs]
    writer = Writer(found, slots, [_collected(o) for o in sources if not _is_drawn(o)], resumes, brought)
    drawing = write_draws(writer, draws)
    given = _input_texts(writer, sources)
    for (fake, source), text in zip(inputs, given):
        writer.bind(fake, slots[source.index] if source.kind == "arg" else text)
    for i, fake in enumerate(outputs):
        writer.bind(fake, writer.fresh_name(f"t{i}"))
    targets = [writer(fake) for fake in outputs]
    _bind_parameters(writer, outputs)
    if any(fake.subclass for fake in (*outputs, *(fake for fake, _ in inputs))):
        _bind_instances(writer, outputs)
    last = ending.write(writer, resumes)
    statements = [store.text.format(*map(writer, store.operands)) for store in stores]
    writer.finish()
    call = _graph_call(writer, targets, given, symbols) if graph is not None else []
    rest = [*writer.lines, *statements, *last]
    if call and original is not None and repeat is not None and (repeat.expected or statements or handles):
        name = writer.constant(original, f"original_{original.__name__}")
        keep, put_back = kept_states(writer, draws)
        again_lines = guarded(call, rest, code, slots, name, bool(repeat.draws), put_back)
        body = [*writer.head, *keep, *drawing, *again_lines]
    else:
        body = [*writer.head, *drawing, *call, *rest]
    again: Callable[..., object] = rerun_for_handler if handles else rerun
    if isinstance(graph, EditedProgram):
        again = rerun_beside_edited(handles)
    if graph is not None and any(has_handler(fake) for fake, _ in inputs):
        graph = _unhandled(graph)
    scope = {**writer.scope, "graph": graph, "rerun": again}
    if repeat is not None and repeat.draws:
        scope |= random_state(repeat.draws)
    if ending.places:
        scope.update(ending.places[0].warned())
    is_all = len(targets) == 1 and body == [f"{targets[0]}, = graph(inputs)", f"return {targets[0]}"]
    made = _compiled(code, slots, body, scope, writer, graph if is_all else None)
    if ending.places:
        ending.places[0].stands_for(made.function)
    return made


def _unhandled(graph: GraphCall) -> GraphCall:
    """`graph`, which carries out what the handlers of its inputs made of the program: they are not asked again."""

    def run(inputs: tuple[object, ...]) -> Sequence[object]:
        with DisableTorchFunctionSubclass():
            return graph(inputs)

    return run


def _bind_parameters(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """What left the graph as a tensor and is an nn.Parameter of the user's."""
    for fake in outputs:
        if getattr(fake, "_is_param", False):
            given, name = writer(fake), writer.fresh_name("parameter")
            writer.lines.append(f"{name} = as_parameter({given}, {fake.requires_grad})")
            writer.bind(fake, name)


def _bind_instances(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """What left the graph, of the class that the program sees. A graph that autograd runs operator by operator gives results
    of the subclass of its inputs."""
    for fake in outputs:
        cls = class_of_fake(fake)
        given, name = writer(fake), writer.fresh_name("instance")
        writer.lines.append(f"{name} = as_instance({given}, {writer.constant(cls, cls.__name__)})")
        writer.bind(fake, name)


def _collected(source: Source) -> Source:
    """What the guard tree hands over for a graph input: of a NumPy array, the array."""
    if source.kind == "array" and source.base is not None:
        return source.base
    return source


def _is_drawn(source: Source) -> bool:
    """Whether a graph input is an array of random numbers, which the compiled frame draws."""
    return source.base is not None and source.base.kind == "drawn"


def _input_texts(writer: Writer, sources: Sequence[Source]) -> list[str]:
    """The graph's input tensors: what the guard tree hands over, in order, and what is drawn."""
    collected = (f"inputs[{i}]" for i in itertools.count())
    return [
        writer.expression_at(source)
        if _is_drawn(source)
        else f"from_numpy({next(collected)})"
        if source.kind == "array"
        else next(collected)
        for source in sources
    ]


def _graph_call(
    writer: Writer, targets: Sequence[str], inputs: Sequence[str], symbols: Sequence[Expression]
) -> list[str]:
    n_inputs = len(inputs)
    given = [writer.expression(e) for e in symbols]
    if list(inputs) != [f"inputs[{i}]" for i in range(n_inputs)]:
        argument = f"({', '.join(inputs)},)"
    else:
        argument = "inputs" if len(writer.collect) == n_inputs else f"inputs[:{n_inputs}]"
    if given:
        argument = f"({', '.join([f'*{argument}'] * (n_inputs > 0) + given)},)"
    if not targets:
        return [f"graph({argument})"]
    return [f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = graph({argument})"]


def _compiled(
    code: CodeType,
    slots: Sequence[str],
    body: Sequence[str],
    scope: dict[str, object],
    writer: Writer,
    only: GraphCall | None,
) -> CompiledFrame:
    name = "compiled_" + identifier(code.co_name)
    lines = [line for _, _, function in writer.functions for line in function]
    lines += [f"def {name}({', '.join((*slots, 'inputs'))}):  # {code.co_filename}:{code.co_firstlineno}"]
    lines += [f"    {line}" for line in body]
    source = "\n".join(lines) + "\n"
    scope = {
        "__builtins__": __builtins__,
        "__name__": "smelt.compiled",
        COMPILED_SCOPE: True,
        **NAMES,
        **scope,
    }
    function = compiled_source(source, name, code.co_qualname, scope)
    own = function.__code__
    function.__code__ = own.replace(co_flags=own.co_flags | code.co_flags & FUTURE)
    for inner, place, _ in writer.functions:  # innermost first: each is called by the next
        made = cast(FunctionType, function.__globals__[inner])
        if place.scope.get("__name__") != function.__globals__["__name__"]:
            made = FunctionType(made.__code__, {**function.__globals__, **place.warned()}, inner)
            function.__globals__[inner] = made
        place.stands_for(made)
    return CompiledFrame(function, source, tuple(writer.collect), only)
