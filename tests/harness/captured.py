"""Captures a call and runs what was captured: the reference that needs neither backend nor emission.

`capture(fn, *args)` gives the `CapturedFrame`; `replay(frame, slots)` runs its torch-level graph node by node on the tensors
that the sources name, and puts real tensors in place of the fakes in the result.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from smelt.capture.driver.capture_attempts import Attempt, FailedAttempt
from smelt.capture.driver.capture_frame import CapturedFrame, capture_frame
from smelt.capture.environment.side_effects import CacheHit
from smelt.graph.graph_interpreter import run
from smelt.graph.ir import Graph
from smelt.guards.guard import first_failing
from smelt.guards.read_source import Reader
from smelt.tracing.fake.fake_tensor import FakeTensor
from tests.harness.agreement import same


def slots_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Any, ...]:
    bound = inspect.signature(fn).bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    values = dict(bound.arguments)
    kinds = [(p.kind, n) for n, p in inspect.signature(fn).parameters.items()]
    order = {k: [n for kind, n in kinds if kind == k] for k in inspect._ParameterKind}
    names = [n for k in (0, 1, 3, 2, 4) for n in order[inspect._ParameterKind(k)]]
    return tuple(values[n] for n in names)


def capture(fn: Any, *args: Any, **kwargs: Any) -> CapturedFrame:
    captured = capture_frame(fn, slots_of(fn, args, kwargs), Attempt(), name=fn.__name__)
    if isinstance(captured, FailedAttempt):
        raise captured.error
    return captured


def substitute(value: Any, env: dict[int, Any]) -> Any:
    """`value` with real tensors for fakes; containers are copied."""
    if isinstance(value, FakeTensor):
        return env[id(value)]
    if isinstance(value, dict):
        made = type(value)()
        for k, v in dict.items(value):
            made[k] = substitute(v, env)
        return made
    if isinstance(value, list):
        return [substitute(v, env) for v in value]
    if isinstance(value, tuple):
        return tuple.__new__(type(value), [substitute(v, env) for v in value])
    return value


def replay(frame: CapturedFrame, slots: tuple[Any, ...], graph: Graph | None = None) -> Any:
    failing = first_failing(frame.guards, slots)
    assert failing is None, f"a guard fails right after capture: {failing.text}"
    read = Reader(slots)
    inputs = [read(o) for o in frame.input_sources]
    outputs = run(graph or frame.traced.torch_graph, inputs)
    env = {id(f): t for f, t in zip(frame.traced.inputs, inputs)}
    env.update({id(f): t for f, t in zip(frame.traced.outputs, outputs)})
    return substitute(frame.result, env)


def check_replay(fn: Any, *args: Any) -> CapturedFrame:
    """What was captured of `fn` gives eager's result when it is replayed, and changes nothing outside."""
    with torch.no_grad():
        want = fn(*args)  # first: `copy` caches what it learns of a class in the class
        frame = capture(fn, *args)
        same(replay(frame, slots_of(fn, args)), want)
        assert all(type(effect) is CacheHit for effect in frame.effects)  # of the caches of functions
        return frame
