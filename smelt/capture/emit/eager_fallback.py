"""A graph that raises: the call is made again by the original function, for its exception and the effects before it.

The compiled frame runs all tensor operations first and then the stores. Where an operator raises (an index out of range),
eager would have done the stores and the writes that come before it, and gone to the handler around it. A graph that writes
inputs only when nothing can raise any more leaves nothing behind, so the call can start again; the state of torch's random
numbers, of the CPU and of GPUs, is put back for that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType

import torch

from smelt import events
from smelt._native import isinstance
from smelt.capture.semantics.calls.argument_binding import arguments_source
from smelt.errors import ArtifactError, OtherSizes
from smelt.graph.graph_passes import has_effect
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.ops.may_raise import may_raise
from smelt.tracing.record.traced import Traced

log = logging.getLogger("smelt")

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Repeat:
    """How a call is made again after its graph has raised. `draws`: the devices whose random numbers the graph draws;
    `expected`: it holds an operator that may raise."""

    draws: tuple[torch.device, ...]
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
    devices = dict.fromkeys(spec.device for node in draws for spec in _specs(node))
    expected = traced.unbacked is not None or any(map(may_raise, graph))
    return Repeat(tuple(devices) or ((CPU,) if draws else ()), expected)


def _writes_input(node: Node) -> bool:
    return isinstance(node.args[0], Node) and node.args[0].op == "placeholder"


def _draws_from_default(node: Node) -> bool:
    """Whether it draws from the generator of a device that is known here, and writes nothing."""
    known = all(spec.device.type in ("cpu", "cuda") for spec in _specs(node))
    return known and node.kwargs.get("generator") is None and not effects(node.target).writes


def _specs(node: Node) -> list[TensorSpec]:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def random_state(devices: Sequence[torch.device]) -> dict[str, Callable[..., object]]:
    """`random_state()`, where the generators of these devices stand, and `set_random_state(restart)`, which puts them back
    there: of a GPU only how far its generator has come, since nothing else of it is changed by draws."""
    gpus = [torch.cuda.default_generators[d.index] for d in devices if _has_generator(d)]
    cpu = torch.default_generator
    if not gpus:
        return {"random_state": cpu.get_state, "set_random_state": cpu.set_state}
    on_cpu = len(gpus) < len(devices)

    def state() -> object:
        if torch.cuda.is_current_stream_capturing():  # whose generator is the graph's
            return None
        return cpu.get_state() if on_cpu else None, [generator.get_offset() for generator in gpus]

    def put_back(restart: tuple[torch.Tensor | None, list[int]] | None) -> None:
        if restart is None:
            return
        drawn, offsets = restart
        if drawn is not None:
            cpu.set_state(drawn)
        for generator, offset in zip(gpus, offsets, strict=True):
            generator.set_offset(offset)

    return {"random_state": state, "set_random_state": put_back}


def _has_generator(device: torch.device) -> bool:
    """Whether it draws from one of its own (a simulated GPU draws from the CPU's)."""
    return device.type == "cuda" and bool(torch.cuda.default_generators)


def rerun(original: Callable[..., object], failure: Exception, *args: object, **kwargs: object) -> object:
    """Calls `original` for the exception that eager raises, after the graph has raised `failure`. If it does not raise, the
    graph was wrong, and a warning says so; unless it was made for other sizes."""
    if isinstance(failure, OtherSizes):
        return _of_other_sizes(original, failure, args, kwargs)
    result = original(*args, **kwargs)
    log.warning(
        "smelt: the graph of %s raised %r, the function itself did not", original.__qualname__, failure
    )
    return result


def _of_other_sizes(
    original: Callable[..., object], failure: OtherSizes, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    events.emit("other-sizes", original.__qualname__, failure=failure)
    return original(*args, **kwargs)


def rerun_for_handler(
    original: Callable[..., object], failure: Exception, *args: object, **kwargs: object
) -> object:
    """Calls `original`, which has handlers, and so may handle what the graph has raised."""
    if isinstance(failure, OtherSizes):
        return _of_other_sizes(original, failure, args, kwargs)
    return original(*args, **kwargs)


def rerun_beside_edited(handles: bool) -> Callable[..., object]:
    """What is done where a program of the user's stands in for the graph and raises: `original` is called for the
    exception that eager raises, and for its handlers; what the program raised is raised where there is neither."""

    def rerun(original: Callable[..., object], failure: Exception, *args: object, **kwargs: object) -> object:
        if isinstance(failure, ArtifactError):
            raise failure
        result = original(*args, **kwargs)
        if not handles:
            raise failure
        return result

    return rerun


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
    again = f"return rerun({', '.join((original, 'failure', *arguments_source(code, slots)))})"
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
