"""Eager fallback for graphs that raise: the original function reruns the call, for its exception and its earlier effects.

The compiled frame runs all tensor operations first and then the stores. If an operator raises (an index out of range), eager
has done the stores and writes before it, and runs the handler around it. A graph that mutates inputs only after the last
operation that may raise has no effects when it raises, so the call can be rerun; the states of torch's random number
generators, of the CPU and of GPUs, are restored for that.

A checkpoint around the call raises an exception of its own when the graph saves the last value that the backward needs,
after its writes. smelt passes that exception on.
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
from smelt.errors import FEW_STEPS, ArtifactError, OtherSizes
from smelt.graph.graph_passes import has_effect
from smelt.graph.ir import Node, TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.unbacked_sizes import unbacked_sizes_of
from smelt.ops.functional_variants import may_act
from smelt.ops.may_raise import may_raise
from smelt.torch_private import StopRecomputation
from smelt.tracing.record.traced import Traced

log = logging.getLogger("smelt")

CPU = torch.device("cpu")


@dataclass(frozen=True)
class EagerRerun:
    """How a call is rerun eagerly after its graph raises. `draws`: the devices whose random numbers the graph draws;
    `expected`: the graph contains an operator that may raise."""

    draws: tuple[torch.device, ...]
    expected: bool


def eager_rerun_of(traced: Traced, functional: bool) -> EagerRerun | None:
    """How calls of the graph can be rerun eagerly; None if a graph that raises may have had effects. `functional`: the aten
    graph is what was compiled, which mutates inputs at its end."""
    graph = traced.aten_graph
    last = functional and (traced.joint is not None or not traced.needs_grad)
    effective = [node for node in graph if has_effect(node)]
    draws = [node for node in effective if effects(node.target).random]
    writes = [node for node in effective if node not in draws]
    if not all(last and _writes_input(node) for node in writes) or not all(map(_draws_from_default, draws)):
        return None
    devices = dict.fromkeys(spec.device for node in draws for spec in _specs(node))
    expected = traced.unbacked is not None or any(map(may_raise, graph))
    return EagerRerun(tuple(devices) or ((CPU,) if draws else ()), expected)


def repeats_effects(traced: Traced, checks_at_end: bool) -> bool:
    """Whether a rerun after a failed check would run an operator of the program with effects once more. `checks_at_end`: the
    graph checks a condition on a tensor when it has run; it checks sizes as soon as their operators have run."""
    nodes = traced.aten_graph.nodes
    acting = (i for i, node in enumerate(nodes) if may_act(node.target))
    sized = (i for i, node in enumerate(nodes) if unbacked_sizes_of(node))
    return next(acting, len(nodes)) < (len(nodes) if checks_at_end else max(sized, default=-1))


def _writes_input(node: Node) -> bool:
    return isinstance(node.args[0], Node) and node.args[0].op == "placeholder"


def _draws_from_default(node: Node) -> bool:
    """Whether a node draws from the default generator of a CPU or a CUDA device, and mutates nothing."""
    known = all(spec.device.type in ("cpu", "cuda") for spec in _specs(node))
    return known and node.kwargs.get("generator") is None and not effects(node.target).writes


def _specs(node: Node) -> list[TensorSpec]:
    specs = node.spec if isinstance(node.spec, tuple) else (node.spec,)
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def rerun_eagerly(
    original: Callable[..., object], failure: Exception, *args: object, **kwargs: object
) -> object:
    """Call `original` for the exception that eager raises, after the graph raised `failure`. Logs a warning if it does not
    raise: the graph was wrong, unless it was compiled for other sizes."""
    if isinstance(failure, StopRecomputation):
        raise failure
    if isinstance(failure, OtherSizes) or FEW_STEPS in str(failure):
        return _rerun_other_sizes(original, failure, args, kwargs)
    result = original(*args, **kwargs)
    log.warning(
        "smelt: the graph of %s raised %r, the function itself did not", original.__qualname__, failure
    )
    return result


def _rerun_other_sizes(
    original: Callable[..., object], failure: Exception, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    events.emit("unbacked-mismatch", original.__qualname__, failure=failure)
    return original(*args, **kwargs)


def rerun_with_handlers(
    original: Callable[..., object], failure: Exception, *args: object, **kwargs: object
) -> object:
    """Call `original`, whose exception handlers may handle the graph's exception."""
    if isinstance(failure, StopRecomputation):
        raise failure
    if isinstance(failure, OtherSizes):
        return _rerun_other_sizes(original, failure, args, kwargs)
    return original(*args, **kwargs)


def rerun_edited(has_handlers: bool) -> Callable[..., object]:
    """The fallback of a frame whose graph the user has replaced: it calls `original` for the exception that eager raises and
    for its handlers. If there is neither, it raises the exception of the user's graph."""

    def rerun(original: Callable[..., object], failure: Exception, *args: object, **kwargs: object) -> object:
        if isinstance(failure, (ArtifactError, StopRecomputation)):
            raise failure
        result = original(*args, **kwargs)
        if not has_handlers:
            raise failure
        return result

    return rerun


def with_eager_rerun(
    call: Sequence[str],
    rest: Sequence[str],
    code: CodeType,
    slots: Sequence[str],
    original: str,
    draws: bool,
    restore: Sequence[str],
) -> list[str]:
    """The lines of `call` and then of `rest`, which returns. If `call` raises, the original function reruns after the lines
    of `restore`; if the graph draws random numbers, the states of torch's generators are restored."""
    rerun = f"return rerun_eagerly({', '.join((original, 'failure', *arguments_source(code, slots)))})"
    return [
        *(["saved_state = random_state()"] if draws else []),
        "try:",
        *(f"    {line}" for line in call),
        "except Exception as error:",
        "    failure = error.with_traceback(None)",
        "else:",
        *(f"    {line}" for line in rest),
        *(["set_random_state(saved_state)"] if draws else []),
        *restore,
        rerun,
    ]
