"""Captures a call and runs what was captured: the reference that needs neither backend nor emission.

`capture(fn, *args)` gives the `CapturedFrame`; `replay(frame, slots)` evaluates its torch-level graph node by node on the
tensors that the origins name, and puts real tensors in place of the fakes in the result.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from smelt.capture.driver.run import CapturedFrame, capture_frame
from smelt.config import DEFAULT
from smelt.graph.ir import Graph, Node
from smelt.guards.evaluate import Reader, first_failing, format_guard
from smelt.trace.fake import FakeTensor


def slots_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[Any, ...]:
    bound = inspect.signature(fn).bind(*args, **(kwargs or {}))
    bound.apply_defaults()
    values = dict(bound.arguments)
    kinds = [(p.kind, n) for n, p in inspect.signature(fn).parameters.items()]
    order = {k: [n for kind, n in kinds if kind == k] for k in inspect._ParameterKind}
    names = [n for k in (0, 1, 3, 2, 4) for n in order[inspect._ParameterKind(k)]]
    return tuple(values[n] for n in names)


def capture(fn: Any, *args: Any, **kwargs: Any) -> CapturedFrame:
    return capture_frame(fn, slots_of(fn, args, kwargs), DEFAULT, name=fn.__name__)


def evaluate(graph: Graph, inputs: list[torch.Tensor]) -> tuple[Any, ...]:
    env: dict[Node, Any] = {}
    remaining = iter(inputs)

    def value(a: Any) -> Any:
        if isinstance(a, Node):
            return env[a]
        if isinstance(a, (list, tuple)) and type(a) is not torch.Size:
            return type(a)(map(value, a))
        if isinstance(a, dict):
            return {k: value(v) for k, v in a.items()}
        return slice(value(a.start), value(a.stop), value(a.step)) if isinstance(a, slice) else a

    for node in graph:
        if node.op == "placeholder":
            env[node] = next(remaining)
        elif node.op == "get_attr":
            env[node] = graph.constants[node.target]
        elif node.op == "output":
            return value(node.args[0])
        else:
            args, kwargs = value(node.args), value(node.kwargs)
            target = node.target if node.op == "call_function" else getattr(type(args[0]), node.target)
            env[node] = target(*args, **kwargs)
    raise AssertionError("a graph without output")


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
    assert failing is None, f"a guard fails right after capture: {format_guard(failing)}"
    read = Reader(slots)
    inputs = [read(o) for o in frame.input_origins]
    outputs = evaluate(graph or frame.traced.torch_graph, inputs)
    env = {id(f): t for f, t in zip(frame.traced.inputs, inputs)}
    env.update({id(f): t for f, t in zip(frame.traced.outputs, outputs)})
    return substitute(frame.result, env)


def same(got: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and got.dtype == want.dtype
            and torch.allclose(got, want, equal_nan=True)
        )
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[k], want[k]) for k in want)
    if isinstance(want, (list, tuple)):
        return type(got) is type(want) and len(got) == len(want) and all(map(same, got, want))
    return bool(got == want)
