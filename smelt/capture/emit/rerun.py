"""A graph that raises: the call is made again by the original function, for its exception and the effects before it.

The compiled frame runs all tensor operations first and then the stores. Where an operator raises (an index out of range),
eager would have done the stores and the writes that come before it, and gone to the handler around it. A graph that writes
inputs only when nothing can raise any more leaves nothing behind, so the call can start again; the state of torch's random
numbers is put back for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType

import torch

from smelt._native import isinstance
from smelt.capture.protocol.binding import arguments_text
from smelt.graph.effects import effects
from smelt.graph.ir import Node
from smelt.graph.passes import has_effect
from smelt.ops.raising import may_raise
from smelt.trace.traced import Traced

log = logging.getLogger("smelt")

_random = torch.default_generator
RANDOM_STATE = {"random_state": _random.get_state, "set_random_state": _random.set_state}


@dataclass(frozen=True)
class Repeat:
    """How a call is made again after its graph has raised. `draws`: the graph draws random numbers; `expected`: it holds an
    operator that may raise."""

    draws: bool
    expected: bool


def repeat_of(traced: Traced, functional: bool) -> Repeat | None:
    """How calls of the graph can be made again; None where a graph that raises may have changed something. `functional`:
    what runs is made of the aten graph, which writes inputs at its end."""
    graph = traced.aten_graph
    last = functional and (traced.joint is not None or not traced.needs_grad)
    effective = [node for node in graph if has_effect(node)]
    draws = [node for node in effective if effects(node.target).random]
    writes = [node for node in effective if node not in draws]
    if not all(last and _writes_input(node) for node in writes) or not all(map(_draws_from_default, draws)):
        return None
    return Repeat(bool(draws), any(map(may_raise, graph)))


def _writes_input(node: Node) -> bool:
    return isinstance(node.args[0], Node) and node.args[0].op == "placeholder"


def _draws_from_default(node: Node) -> bool:
    """Whether it draws from the generator of the CPU, and writes nothing."""
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    on_cpu = all(s is None or s.device.type == "cpu" for s in specs)
    return on_cpu and node.kwargs.get("generator") is None and not effects(node.target).writes


def rerun(original: Callable[..., object], failure: Exception, *args: object, **kwargs: object) -> object:
    """Calls `original` for the exception that eager raises, after the graph has raised `failure`. If it does not raise, the
    graph was wrong, and a warning says so."""
    result = original(*args, **kwargs)
    log.warning(
        "smelt: the graph of %s raised %r, the function itself did not", original.__qualname__, failure
    )
    return result


def rerun_for_handler(
    original: Callable[..., object], failure: Exception, *args: object, **kwargs: object
) -> object:
    """Calls `original`, which has handlers, and so may handle what the graph has raised."""
    return original(*args, **kwargs)


def guarded(
    call: Sequence[str],
    rest: Sequence[str],
    code: CodeType,
    slots: Sequence[str],
    original: str,
    draws: bool,
    put_back: Sequence[str],
) -> list[str]:
    """The lines of `call` and then of `rest`, which returns; and what happens when `call` raises: the original function,
    after the lines of `put_back` and, if the graph draws random numbers, with torch's generator as it was."""
    again = f"return rerun({', '.join((original, 'failure', *arguments_text(code, slots)))})"
    return [
        *(["restart = random_state()"] if draws else []),
        "try:",
        *(f"    {line}" for line in call),
        "except Exception as error:",
        "    failure = error.with_traceback(None)",
        "else:",
        *(f"    {line}" for line in rest),
        *(["set_random_state(restart)"] if draws else []),
        *put_back,
        again,
    ]
