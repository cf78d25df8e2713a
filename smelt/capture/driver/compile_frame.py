"""The stages from a captured frame to a compiled frame: the backend compiles the graph, emit writes the frame."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType

import torch

from smelt import _native, events
from smelt._native import isinstance
from smelt.autograd.save_costs import Memory
from smelt.capture.driver.cache_entries import Backend, Graph
from smelt.capture.driver.capture_errors import summary
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.emit.compiled_frame import CompiledFrame, emit
from smelt.capture.emit.eager_fallback import eager_rerun_of
from smelt.capture.emit.effect_replay import stores_of
from smelt.capture.emit.torch_graph_overrides import EditedProgram
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.reconstruction.reconstruction_order import find_reachable
from smelt.config import Config
from smelt.errors import ArtifactError, BackendError, Unsupported
from smelt.graph.graph_overrides import edited
from smelt.tracing.record.traced import Traced


@contextmanager
def stage(name: str, frame: str) -> Iterator[None]:
    """Emit an event with the duration of a stage of compiling `frame`, in seconds."""
    start = time.perf_counter()
    yield
    events.emit("stage", name, frame=frame, seconds=time.perf_counter() - start)


def compiled_graph(
    backend: Backend, config: Config, captured: CapturedFrame, program: EditedProgram | None = None
) -> Graph:
    """Compile the graph with the backend, or return `program`. Raises BackendError, and Unsupported if it refuses."""
    start = time.perf_counter()
    events.emit("backend-start", captured.name, traced=captured.traced)
    try:
        if program is not None:
            return program
        if is_functional(backend):
            captured.traced = _edited(captured.traced)
        return _with_eager_semantics(backend(captured.traced, config), captured.traced)
    except (Unsupported, BackendError, ArtifactError):
        raise
    except Exception as e:
        raise BackendError(f"the backend failed on {captured.name}: {summary(e)}") from e
    finally:
        captured.traced.release_examples()
        events.emit("backend-end", captured.name, seconds=time.perf_counter() - start)


def is_functional(backend: Backend) -> bool:
    """Whether the backend compiles the aten level, and joint graphs where gradients are needed."""
    return getattr(backend, "differentiates", False)


def _edited(traced: Traced) -> Traced:
    """Replace the aten graph by the user's edited one, if the aten graph is what runs."""
    if traced.needs_grad:
        return traced
    graph = edited("aten", traced.aten_graph)
    return traced if graph is traced.aten_graph else replace(traced, aten_graph=graph)


def _with_eager_semantics(graph: Graph, traced: Traced) -> Graph:
    """Wrap `graph` so that version counters and views among its results are as in eager. A graph that runs eagerly under
    autograd needs no wrapper."""
    if traced.joint is None:
        if traced.needs_grad:
            return graph
        graph = traced.counters.preserve_input_counters(graph)
    return traced.views.restore(traced.counters.separate_output_counters(graph))


def compiled_frame(
    fn: FunctionType,
    captured: CapturedFrame,
    graph: Graph,
    resume_functions: ResumeFunctions,
    functional: bool,
) -> CompiledFrame:
    """Emit the function that replaces the frame; `functional`: the graph was compiled from the aten level. Raises
    Unsupported if it would have to construct an unsupported object."""
    traced = captured.traced
    code = fn.__code__
    with stage("emit", code.co_qualname):
        stores = stores_of(captured.effects)
        operands = [operand for store in stores for operand in store.operands]
        reachable = find_reachable([*captured.frame_exit.roots, *operands], captured.source_of)
        return emit(
            code,
            reachable,
            captured.frame_exit,
            stores,
            list(zip(traced.inputs, captured.input_sources, strict=True)),
            traced.outputs,
            graph if _is_needed(traced) else None,
            resume_functions,
            [n.symbol.expression for n in traced.numbers],
            fn,
            eager_rerun_of(traced, functional),
            captured.has_handlers,
            captured.user_modes,
            captured.draws,
            captured.lifetimes.sources,
            captured.env.trace.wrapper_gradients
            if traced.joint and captured.env.trace.wrapper_gradients.is_used
            else None,
            _saved_wrappers(captured),
        )


def _saved_wrappers(captured: CapturedFrame) -> list[torch.Tensor]:
    """The wrapper subclasses' tensors whose inner tensors eager's backward reads."""
    env, joint = captured.env, captured.traced.joint
    wrappers = env.trace.wrapper_gradients
    if joint is None or not wrappers.is_used:
        return []
    memory = Memory(joint)
    of_source = {env.sources[wrapper]: env.trace.call.wrappers[wrapper] for wrapper in wrappers.environment}
    found: dict[int, torch.Tensor] = {}
    for primal, i in memory.primals.items():
        at = captured.input_sources[i] if primal in memory.eager and i < len(captured.input_sources) else None
        while at is not None:
            if at in of_source:
                found[id(of_source[at])] = of_source[at]
            at = at.base
    outputs = joint.graph.output.args[0]
    values = {
        id(f): outputs[r.index] for f, r in zip(captured.traced.outputs, joint.results) if r.kind == "value"
    }
    for result, gradient in wrappers.results.values():
        if any(id(f) in values and memory.bases[values[id(f)]] in memory.eager for f in gradient.parts):
            found[id(result)] = result
    return list(found.values())


def direct_callee(frame: CompiledFrame) -> Graph | None:
    """The graph that can run in place of `frame`, if the frame only calls it: a plan that only launches kernels, so that no
    code can inspect the frame; or a SizeDispatch, which may have such a plan for the sizes of the call."""
    if isinstance(frame.direct_graph, _native.SizeDispatch):
        return frame.direct_graph
    forward = (
        frame.direct_graph.forward
        if isinstance(frame.direct_graph, _native.Differentiable)
        else frame.direct_graph
    )
    return frame.direct_graph if isinstance(forward, _native.Plan) and forward.launches_only else None


def _is_needed(traced: Traced) -> bool:
    has_calls = any(node.op.startswith("call") for node in traced.aten_graph)
    return has_calls or bool(traced.outputs) or traced.needs_grad
