"""The compiled frame: an ordinary Python function, written as source, that replaces a captured frame.

    def compiled_forward(self, x, inputs):
        t0, t1 = graph(inputs)
        return {'logits': t0, 'states': (t1, self)}

It takes the frame's argument slots and the objects that the guard tree collects: the graph's input tensors first, then other
environment objects that the result or a store needs. It calls the graph, constructs all values, then runs all stores in
program order; iterators over what the stores change are made after them. An object that was reached twice is again one
object, cycles included; an input tensor among the results is the input itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MappingProxyType
from typing import cast

import torch

from smelt._native import isinstance
from smelt.autograd.wrapper_nodes import GradientBuilder
from smelt.capture.base.bytecode import FUTURE
from smelt.capture.emit.eager_fallback import (
    EagerRerun,
    rerun_eagerly,
    rerun_edited,
    rerun_with_handlers,
    with_eager_rerun,
)
from smelt.capture.emit.effect_replay import Store
from smelt.capture.emit.frame_writer import Writer, slot_names
from smelt.capture.emit.random_statements import save_generator_states, write_draws
from smelt.capture.emit.torch_graph_overrides import EditedProgram
from smelt.capture.environment.python_random import Draw
from smelt.capture.graph_breaks.frame_exits import FrameExit
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.reconstruction.frame_globals import CONVERSIONS, FRAME_NAMES
from smelt.capture.reconstruction.reconstruction_order import ReachableObjects
from smelt.guards.global_state import without_modes
from smelt.guards.source import Source
from smelt.runtime.generated_source import COMPILED_SCOPE, compile_source, identifier
from smelt.runtime.generator_states import GeneratorStates
from smelt.runtime.recursion_limit import deep_recursion
from smelt.shapes.expr import Expression
from smelt.torch_private import DisableTorchFunctionSubclass
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.record.torch_function_handlers import has_handler
from smelt.tracing.record.wrapper_gradients import ResultGradient, WrapperGradients
from smelt.user_lines import is_own

GraphCall = Callable[[tuple[object, ...]], Sequence[object]]


@dataclass(frozen=True)
class CompiledFrame:
    """`collect`: the sources of `inputs`, in order, which the guard tree collects. `direct_graph`: set if the function only
    calls this graph with `inputs` and returns its one result."""

    function: FunctionType
    source: str
    collect: tuple[Source, ...]
    direct_graph: GraphCall | None


@deep_recursion()  # writing deeply nested objects may exceed the user's recursion limit
def emit(
    code: CodeType,
    reachable: ReachableObjects,
    frame_exit: FrameExit,
    stores: Sequence[Store],
    inputs: Sequence[tuple[FakeTensor, Source]],
    outputs: Sequence[FakeTensor],
    graph: GraphCall | None,
    resume_functions: ResumeFunctions,
    symbols: Sequence[Expression] = (),
    original: FunctionType | None = None,
    rerun: EagerRerun | None = None,
    has_handlers: bool = False,
    user_modes: int = 0,
    draws: Sequence[Draw] = (),
    call_objects: Mapping[int, Source] = MappingProxyType({}),
    wrapper_gradients: WrapperGradients | None = None,
    saved_wrappers: Sequence[torch.Tensor] = (),
) -> CompiledFrame:
    """Write and compile the function that replaces a frame of `code`.

    Args:
        reachable: `find_reachable` of the exit's roots and the operands of stores.
        inputs: the graph's inputs and their sources.
        outputs: the fakes that `graph` returns; None for `graph` omits the call.
        resume_functions: creates the functions that continue a frame after a graph break.
        symbols: the numbers that `graph` takes after the tensors.
        original: reruns the call if the graph raises before any store (`eager_fallback.py`).
        rerun: how it is rerun; None: the exception propagates.
        has_handlers: the user's code has exception handlers.
        user_modes: the number of innermost torch-function modes of the call, whose handlers capture has called.
        draws: random numbers that are drawn before the call of the graph.
        call_objects: by id, the sources of objects that are not kept alive.
        wrapper_gradients: the gradients of wrapper subclasses, if there are any.
        saved_wrappers: the wrappers whose inner tensors the backward reads.
    """
    slots = slot_names(code)
    sources = [source for _, source in inputs]
    collect = [collected(source) for source in sources if not is_created(source)]
    results = {} if wrapper_gradients is None else wrapper_gradients.results
    writer = Writer(reachable, slots, collect, resume_functions, call_objects, results)
    draw_lines = write_draws(writer, draws)
    if wrapper_gradients is not None:
        draw_lines += _gradient_inputs(writer, inputs, wrapper_gradients)
    input_texts = _input_texts(writer, sources)
    for (fake, source), text in zip(inputs, input_texts):
        writer.bind(fake, slots[source.index] if source.kind == "arg" else text)
    for i, fake in enumerate(outputs):
        writer.bind(fake, writer.fresh_name(f"t{i}"))
    targets = [writer(fake) for fake in outputs]
    for _, gradient in results.values():
        _detach_inner(writer, gradient)
    _bind_parameters(writer, outputs)
    if any(fake.subclass for fake in (*outputs, *(fake for fake, _ in inputs))):
        _bind_instances(writer, outputs)
    bound: set[int] = set()
    for fake in outputs:
        _bind_alternatives(writer, fake, bound)
    writer.stored_to = frozenset(reachable.source_of(store.operands[0]) for store in stores if store.operands)
    exit_lines = frame_exit.write(writer, resume_functions)
    statements = [store.text.format(*map(writer, store.operands)) for store in stores]
    if wrapper_gradients is not None and targets:
        _protect_wrappers(writer, targets, saved_wrappers)
    writer.finish()
    call = _graph_call(writer, targets, input_texts, symbols) if graph is not None else []
    before, after = writer.split_lines(statements)
    rest = [*before, *statements, *after, *exit_lines]
    if user_modes:
        draw_lines, rest = (_under_no_modes(lines, user_modes) for lines in (draw_lines, rest))
    if call and original is not None and rerun is not None and (rerun.expected or statements or has_handlers):
        name = writer.constant(original, f"original_{original.__name__}")
        save, restore = save_generator_states(writer, draws)
        guarded = with_eager_rerun(call, rest, code, slots, name, bool(rerun.draws), restore)
        body = [*writer.head, *save, *draw_lines, *guarded]
    else:
        body = [*writer.head, *draw_lines, *call, *rest]
    fallback: Callable[..., object] = rerun_with_handlers if has_handlers else rerun_eagerly
    if isinstance(graph, EditedProgram):
        fallback = rerun_edited(has_handlers)
    if graph is not None and (user_modes or any(has_handler(fake) for fake, _ in inputs)):
        graph = _without_torch_function(graph, user_modes)
    scope = {
        **writer.scope,
        "graph": graph,
        "rerun_eagerly": fallback,
        "without_modes": without_modes,
    }
    if rerun is not None and rerun.draws:
        states = GeneratorStates(rerun.draws)
        scope |= {"random_state": states.read, "set_random_state": states.restore}
    if frame_exit.positions:
        scope.update(frame_exit.positions[0].warning_globals())
    is_direct = len(targets) == 1 and body == [f"{targets[0]}, = graph(inputs)", f"return {targets[0]}"]
    shown = _shown_code(code, original)
    frame = _compiled(code, shown, slots, body, scope, writer, graph if is_direct else None)
    if frame_exit.positions:
        frame_exit.positions[0].disguise(frame.function)
    return frame


def _gradient_inputs(
    writer: Writer, inputs: Sequence[tuple[FakeTensor, Source]], gradients: WrapperGradients
) -> list[str]:
    """The statements that create the gradient inputs of wrappers, which the graph takes."""
    sources = {id(fake): source for fake, source in inputs}
    lines = []
    for wrapper, gradient in gradients.recorded_inputs():
        names = [writer.fresh_name("gradient") for _ in gradient.used]
        for path, name in zip(gradient.used, names):
            writer.bind_source(sources[id(gradient.inputs[path])], name)
        builder = writer.constant(GradientBuilder.of(gradient), "gradient_builder")
        lines.append(f"{', '.join(names)}, = gradient_inputs({writer.before_graph(wrapper)}, {builder})")
    return lines


def _protect_wrappers(writer: Writer, targets: Sequence[str], wrappers: Sequence[torch.Tensor]) -> None:
    names = [f"{writer(x)}," for x in wrappers]
    writer.lines.append(f"protect(({', '.join(targets)},), ({' '.join(names)}))")


def _detach_inner(writer: Writer, gradient: ResultGradient) -> None:
    """Separate the inner tensors of a wrapper, which require no gradients, from the outputs that have its history."""
    for fake, edge in zip(gradient.parts, gradient.edges):
        output, name = writer(fake), writer.fresh_name("inner")
        writer.bind(edge, output)
        writer.lines.append(f"{name} = {output}.detach()")
        writer.bind(fake, name)


def _without_torch_function(graph: GraphCall, user_modes: int) -> GraphCall:
    """`graph` run without `__torch_function__`: capture has already called the handlers of its inputs and modes."""

    def run(inputs: tuple[object, ...]) -> Sequence[object]:
        with DisableTorchFunctionSubclass(), without_modes(user_modes):
            return graph(inputs)

    return run


def _under_no_modes(lines: Sequence[str], user_modes: int) -> list[str]:
    return [f"with without_modes({user_modes}):", *(f"    {line}" for line in lines)] if lines else []


def _bind_parameters(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """Convert the graph's outputs that are nn.Parameters in the program."""
    for fake in outputs:
        if getattr(fake, "_is_param", False):
            tensor, name = writer(fake), writer.fresh_name("parameter")
            writer.lines.append(f"{name} = as_parameter({tensor}, {fake.requires_grad})")
            writer.bind(fake, name)


def _bind_alternatives(writer: Writer, fake: FakeTensor, bound: set[int]) -> None:
    """Bind `fake` to an expression that selects the existing tensor where eager has one. `bound`: the ids of the tensors
    that are bound; alternatives may have alternatives."""
    if not fake.alternatives or id(fake) in bound:
        return
    bound.add(id(fake))
    for _, tensor in fake.alternatives:
        _bind_alternatives(writer, tensor, bound)
    name = writer.fresh_name("selected")
    choices = [f"{writer(tensor)} if {writer(condition)} else " for condition, tensor in fake.alternatives]
    writer.lines.append(f"{name} = {''.join(choices)}{writer(fake)}")
    writer.bind(fake, name)


def _bind_instances(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """Convert the graph's outputs to the classes that they have in the program. A graph that runs eagerly under autograd
    returns instances of the subclass of its inputs."""
    for fake in outputs:
        cls = class_of_fake(fake)
        tensor, name = writer(fake), writer.fresh_name("instance")
        writer.lines.append(f"{name} = as_instance({tensor}, {writer.constant(cls, cls.__name__)})")
        writer.bind(fake, name)


def collected(source: Source) -> Source:
    """The source that the guard tree collects for a graph input: for one that a NumPy array or a nested tensor is converted
    to, that object."""
    if source.kind in CONVERSIONS and source.base is not None:
        return source.base
    return source


def is_created(source: Source) -> bool:
    """Whether the compiled frame creates a graph input: an array of random numbers that it draws, or a gradient input."""
    return source.kind == "gradient" or (source.base is not None and source.base.kind == "drawn")


def _input_texts(writer: Writer, sources: Sequence[Source]) -> list[str]:
    """The expressions of the graph's input tensors: collected objects, in order, and drawn arrays."""
    collected = (f"inputs[{i}]" for i in itertools.count())
    return [
        writer.expression_at(source)
        if is_created(source)
        else f"{CONVERSIONS[source.kind]}({next(collected)})"
        if source.kind in CONVERSIONS
        else next(collected)
        for source in sources
    ]


def _graph_call(
    writer: Writer, targets: Sequence[str], inputs: Sequence[str], symbols: Sequence[Expression]
) -> list[str]:
    n_inputs = len(inputs)
    numbers = [writer.expression(e) for e in symbols]
    if list(inputs) != [f"inputs[{i}]" for i in range(n_inputs)]:
        argument = f"({', '.join(inputs)},)"
    else:
        argument = "inputs" if len(writer.collect) == n_inputs else f"inputs[:{n_inputs}]"
    if numbers:
        argument = f"({', '.join([f'*{argument}'] * (n_inputs > 0) + numbers)},)"
    if not targets:
        return [f"graph({argument})"]
    return [f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = graph({argument})"]


def _shown_code(code: CodeType, original: FunctionType | None) -> CodeType:
    """The code that the compiled frame is named after: the `forward` of a module, which smelt's own code calls."""
    wrapped = getattr(getattr(original, "__wrapped__", None), "__code__", None)
    return wrapped if is_own(code.co_filename) and type(wrapped) is CodeType else code


def _compiled(
    code: CodeType,
    shown: CodeType,
    slots: Sequence[str],
    body: Sequence[str],
    scope: dict[str, object],
    writer: Writer,
    direct_graph: GraphCall | None,
) -> CompiledFrame:
    name = "compiled_" + identifier(shown.co_name)
    lines = [line for _, _, function in writer.functions for line in function]
    lines += [f"def {name}({', '.join((*slots, 'inputs'))}):  # {shown.co_filename}:{shown.co_firstlineno}"]
    lines += [f"    {line}" for line in body]
    source = "\n".join(lines) + "\n"
    scope = {
        "__builtins__": __builtins__,
        "__name__": "smelt.compiled",
        COMPILED_SCOPE: True,
        **FRAME_NAMES,
        **scope,
    }
    function = compile_source(source, name, code.co_qualname, scope)
    compiled_code = function.__code__
    function.__code__ = compiled_code.replace(co_flags=compiled_code.co_flags | code.co_flags & FUTURE)
    for inner, position, _ in writer.functions:  # innermost first: each is called by the next
        inner_function = cast(FunctionType, function.__globals__[inner])
        if position.scope.get("__name__") != function.__globals__["__name__"]:
            inner_function = FunctionType(
                inner_function.__code__, {**function.__globals__, **position.warning_globals()}, inner
            )
            function.__globals__[inner] = inner_function
        position.disguise(inner_function)
    return CompiledFrame(function, source, tuple(writer.collect), direct_graph)
