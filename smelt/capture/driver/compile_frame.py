"""The stages from a captured frame to a compiled one: the backend compiles the graph, the compiled frame is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType

from smelt import _native, events
from smelt._native import isinstance
from smelt.capture.driver.cache_entries import Backend, Graph
from smelt.capture.driver.capture_attempts import summary
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.emit.compiled_frame import CompiledFrame, emit
from smelt.capture.emit.eager_fallback import repeat_of
from smelt.capture.emit.effect_replay import stores_of
from smelt.capture.emit.torch_graph_overrides import EditedProgram
from smelt.capture.graph_breaks.resume_functions import Resumes
from smelt.capture.reconstruction.reconstruction_order import reach
from smelt.config import Config
from smelt.errors import ArtifactError, BackendError, Unsupported
from smelt.graph.graph_overrides import edited
from smelt.tracing.record.traced import Traced


@contextmanager
def stage(name: str, frame: str) -> Iterator[None]:
    """Emits the event that a stage of compiling `frame` has ended, with its seconds."""
    start = time.perf_counter()
    yield
    events.emit("stage", name, frame=frame, seconds=time.perf_counter() - start)


def compiled_graph(
    backend: Backend, config: Config, captured: CapturedFrame, program: EditedProgram | None = None
) -> Graph:
    """What the backend makes of the graph; `program`, where that stands in for it. Raises BackendError, and Unsupported
    where the backend refuses the graph."""
    start = time.perf_counter()
    events.emit("backend-start", captured.name, traced=captured.traced)
    try:
        if program is not None:
            return program
        if is_functional(backend):
            captured.traced = _edited(captured.traced)
        return _counting(backend(captured.traced, config), captured.traced)
    except (Unsupported, BackendError, ArtifactError):
        raise
    except Exception as e:
        raise BackendError(f"the backend failed on {captured.name}: {summary(e)}") from e
    finally:
        captured.traced.forget_examples()
        events.emit("backend-end", captured.name, seconds=time.perf_counter() - start)


def is_functional(backend: Backend) -> bool:
    """Whether the backend compiles the aten level, and joint graphs where gradients are needed."""
    return getattr(backend, "differentiates", False)


def _edited(traced: Traced) -> Traced:
    """With the aten graph that a user has edited, where that is what runs."""
    if traced.needs_grad:
        return traced
    graph = edited("aten", traced.aten_graph)
    return traced if graph is traced.aten_graph else replace(traced, aten_graph=graph)


def _counting(graph: Graph, traced: Traced) -> Graph:
    """`graph`, where versions are counted and results are views as in eager. Where it runs under autograd, call by call,
    they are."""
    if traced.joint is None:
        if traced.needs_grad:
            return graph
        graph = traced.counters.kept_by_inputs(graph)
    return traced.views.kept(traced.counters.kept_by_outputs(graph))


def compiled_frame(
    fn: FunctionType, captured: CapturedFrame, graph: Graph, resumes: Resumes, functional: bool
) -> CompiledFrame:
    """The function that replaces the frame; `functional`: the graph was compiled from the aten level. Raises Unsupported
    where it would have to make an object that it cannot make."""
    traced = captured.traced
    code = fn.__code__
    with stage("emit", code.co_qualname):
        stores = stores_of(captured.effects)
        operands = [operand for store in stores for operand in store.operands]
        found = reach([*captured.ending.roots, *operands], captured.source_of)
        return emit(
            code,
            found,
            captured.ending,
            stores,
            list(zip(traced.inputs, captured.input_sources, strict=True)),
            traced.outputs,
            graph if _does_something(traced) else None,
            resumes,
            [n.symbol.expression for n in traced.numbers],
            fn,
            repeat_of(traced, functional),
            captured.handles,
            captured.draws,
            captured.lifetimes.brought,
        )


def without_frame(frame: CompiledFrame) -> Graph | None:
    """What answers calls in place of `frame` where that only calls a graph: a plan of nothing but kernels, which asks nobody
    who could look at the frame; a SizeDispatch where it has such a plan for the sizes of the call."""
    if isinstance(frame.only, _native.SizeDispatch):
        return frame.only
    forward = frame.only.forward if isinstance(frame.only, _native.Differentiable) else frame.only
    return frame.only if isinstance(forward, _native.Plan) and forward.launches_only else None


def _does_something(traced: Traced) -> bool:
    called = any(node.op.startswith("call") for node in traced.aten_graph)
    return called or bool(traced.outputs) or traced.needs_grad
