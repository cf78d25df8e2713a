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

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType

from smelt.capture.breaks.endings import Ending
from smelt.capture.breaks.resume import Resumes
from smelt.capture.emit.replay import Store
from smelt.capture.emit.rerun import RANDOM_STATE, Repeat, guarded, rerun, rerun_for_handler
from smelt.capture.emit.writer import Writer, slot_names
from smelt.capture.rebuilding.names import NAMES
from smelt.capture.rebuilding.reach import Reach
from smelt.capture.rebuilding.source import compiled_source
from smelt.graph.numbers import Expression
from smelt.guards.origin import Origin
from smelt.runtime.recursion import deep_recursion
from smelt.trace.fake import FakeTensor


@dataclass(frozen=True)
class CompiledFrame:
    """`collect`: what the guard tree hands over as `inputs`, in order."""

    function: FunctionType
    source: str
    collect: tuple[Origin, ...]


@deep_recursion()  # objects may be nested deeper than the user's limit allows to write them
def emit(
    code: CodeType,
    found: Reach,
    ending: Ending,
    stores: Sequence[Store],
    inputs: Sequence[tuple[FakeTensor, Origin]],
    outputs: Sequence[FakeTensor],
    graph: Callable[[tuple[object, ...]], Sequence[object]] | None,
    resumes: Resumes,
    symbols: Sequence[Expression] = (),
    original: FunctionType | None = None,
    repeat: Repeat | None = None,
    handles: bool = False,
) -> CompiledFrame:
    """Writes and compiles the function that replaces a frame of `code`.

    Args:
        found: `reach` of the ending's roots and the operands of stores.
        inputs: the graph's inputs and where each is found.
        outputs: the fakes that `graph` returns; None for `graph` leaves out the call.
        resumes: makes the functions in which a frame goes on after a graph break.
        symbols: the numbers that `graph` takes after the tensors.
        original: runs the call where the graph raises before any store (`rerun.py`).
        repeat: how it does; None: the exception goes on.
        handles: the user's code may have a handler for it.
    """
    slots = slot_names(code)
    writer = Writer(found, slots, [_collected(origin) for _, origin in inputs])
    for i, (fake, origin) in enumerate(inputs):
        writer.bind(fake, slots[origin.index] if origin.kind == "arg" else _input_text(i, origin))
    for i, fake in enumerate(outputs):
        writer.bind(fake, writer.fresh_name(f"t{i}"))
    targets = [writer(fake) for fake in outputs]
    _bind_parameters(writer, outputs)
    last = ending.write(writer, resumes)
    statements = [store.text.format(*map(writer, store.operands)) for store in stores]
    writer.finish()
    call = _graph_call(writer, targets, [o for _, o in inputs], symbols) if graph is not None else []
    rest = [*writer.lines, *statements, *last]
    if call and original is not None and repeat is not None and (repeat.expected or statements or handles):
        name = writer.constant(original, f"original_{original.__name__}")
        body = [*writer.head, *guarded(call, rest, code, slots, name, repeat.draws)]
    else:
        body = [*writer.head, *call, *rest]
    again = rerun_for_handler if handles else rerun
    scope = {**writer.scope, "graph": graph, "rerun": again, **RANDOM_STATE}
    return _compiled(code, slots, body, scope, tuple(writer.collect))


def _bind_parameters(writer: Writer, outputs: Sequence[FakeTensor]) -> None:
    """What left the graph as a tensor and is an nn.Parameter of the user's."""
    for fake in outputs:
        if getattr(fake, "_is_param", False):
            given, name = writer(fake), writer.fresh_name("parameter")
            writer.lines.append(f"{name} = as_parameter({given}, {fake.requires_grad})")
            writer.bind(fake, name)


def _collected(origin: Origin) -> Origin:
    """What the guard tree hands over for a graph input: of a NumPy array, the array."""
    if origin.kind == "array" and origin.base is not None:
        return origin.base
    return origin


def _input_text(index: int, origin: Origin) -> str:
    return f"from_numpy(inputs[{index}])" if origin.kind == "array" else f"inputs[{index}]"


def _graph_call(
    writer: Writer, targets: Sequence[str], origins: Sequence[Origin], symbols: Sequence[Expression]
) -> list[str]:
    n_inputs = len(origins)
    given = [writer.expression(e) for e in symbols]
    argument = "inputs" if len(writer.collect) == n_inputs else f"inputs[:{n_inputs}]"
    if any(origin.kind == "array" for origin in origins):
        argument = f"({', '.join(_input_text(i, origin) for i, origin in enumerate(origins))},)"
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
    collect: tuple[Origin, ...],
) -> CompiledFrame:
    name = "compiled_" + re.sub(r"\W+", "_", code.co_name).strip("_")
    lines = [f"def {name}({', '.join((*slots, 'inputs'))}):  # {code.co_filename}:{code.co_firstlineno}"]
    lines += [f"    {line}" for line in body]
    source = "\n".join(lines) + "\n"
    scope = {"__builtins__": __builtins__, "__name__": "smelt.compiled", **NAMES, **scope}
    return CompiledFrame(compiled_source(source, name, code.co_qualname, scope), source, collect)
