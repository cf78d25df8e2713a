"""Functions traced once with symbols for sizes, whose graphs must do at all sizes what eager does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.graph.graph_interpreter import run
from smelt.graph.verify_graph import verify
from smelt.shapes.expr import Expression, Sym, evaluate_with
from smelt.tracing.backward.joint import Joint
from smelt.tracing.record.traced import Traced
from tests.harness.symbolic import at
from tests.harness.traced import copy_inputs, flatten, trace


def check_sizes(
    function: Callable[..., Any],
    make: Callable[..., Sequence[torch.Tensor]],
    symbolic: Mapping[int, Sequence[int]],
    sizes: Sequence[tuple[int, ...]],
    close: tuple[float, float] = (0, 0),
) -> tuple[Traced, list[tuple[Expression, Any]]]:
    """`function`, traced once on `make(*sizes[0])` with symbols (see `trace`), must do at all `sizes` what eager does: at
    those that fulfil the guards, of which there must be one besides the first. Gives the trace and its guards."""
    guards: list[tuple[Expression, Any]] = []
    inputs = make(*sizes[0])
    recorder, traced = trace(function, inputs, symbolic=symbolic, guards=guards)
    verify(traced.aten_graph, functional=True)
    verify(traced.torch_graph)
    position = {id(t): i for i, t in enumerate(inputs)}
    reals = [recorder.real(f) for f in traced.inputs]
    checked = 0
    for numbers in sizes:
        given = make(*numbers)
        values = {s: given[i].size(d) for s, (i, d) in _places(inputs, symbolic).items()}
        leaf = {s.name: n for s, n in values.items()}
        if any(not _holds(guard, leaf) for guard in guards):
            continue
        checked += 1
        for graph in (traced.aten_graph, traced.torch_graph):
            eager_in, graph_in = copy_inputs(given), copy_inputs(given)
            with torch.no_grad():
                torch.manual_seed(7)
                want = flatten(function(*eager_in))
                torch.manual_seed(7)
                tensors = [graph_in[position[id(r)]] if id(r) in position else r for r in reals]
                tensors += [
                    evaluate_with(n.symbol.expression, lambda k: leaf[f"s{k.index}"]) for n in traced.numbers
                ]
                got = run(at(graph, values), tensors)
            assert len(got) == len(want)
            for g, w in zip([*got, *graph_in], [*want, *eager_in]):
                torch.testing.assert_close(
                    g, w, rtol=close[0], atol=close[1], equal_nan=True, check_stride=True
                )
            specs = at(graph, values).output.spec
            for spec, w in zip(specs, want):
                assert (spec.shape, spec.stride, spec.dtype) == (w.shape, w.stride(), w.dtype)
    assert checked > 1, f"no other sizes fulfil {guards}"
    return traced, guards


def _places(
    inputs: Sequence[torch.Tensor], symbolic: Mapping[int, Sequence[int]]
) -> dict[Sym, tuple[int, int]]:
    """The input and dimension that each symbol is the size of."""
    found: dict[int, tuple[int, int]] = {}
    for i, t in enumerate(inputs):
        for dim in symbolic.get(i, ()):
            found.setdefault(t.size(dim), (i, dim))
    return {Sym(f"s{k}", 2): place for k, place in enumerate(found.values())}


def _holds(guard: tuple[Expression, Any], leaf: Mapping[str, int]) -> bool:
    expression, expected = guard
    value = evaluate_with(expression, lambda key: leaf[f"s{key.index}"])
    return type(value) is expected if isinstance(expected, type) else value == expected


def check_gradients(
    function: Callable[..., Any],
    make: Callable[..., Sequence[torch.Tensor]],
    symbolic: Mapping[int, Sequence[int]],
    sizes: Sequence[tuple[int, ...]],
    close: tuple[float, float] = (1e-4, 1e-4),
) -> Joint:
    """The joint graph of `function`, of whose inputs the floating ones require gradients, must give at all `sizes` that
    fulfil the guards what eager gives: results and gradients."""
    guards: list[tuple[Expression, Any]] = []

    def results(
        *given: torch.Tensor,
    ) -> list[torch.Tensor]:  # none is a view, which a joint graph would not give
        return [t * 2 for t in flatten(function(*given)) if t.requires_grad]

    inputs = _requiring(make(*sizes[0]))
    recorder, traced = trace(results, inputs, grad=True, symbolic=symbolic, guards=guards, joint=True)
    joint = traced.joint
    assert joint is not None
    verify(joint.graph, functional=True)
    position = {id(t): i for i, t in enumerate(inputs)}
    reals = [recorder.real(f) for f in traced.inputs]
    checked = 0
    for numbers in sizes:
        given = _requiring(make(*numbers))
        values = {s: given[i].size(d) for s, (i, d) in _places(inputs, symbolic).items()}
        leaf = {s.name: n for s, n in values.items()}
        if any(not _holds(guard, leaf) for guard in guards):
            continue
        checked += 1
        torch.manual_seed(7)
        want = results(*given)
        primals = [given[position[id(r)]] if id(r) in position else r for r in reals]
        needed = [want[k] for k in joint.tangents]
        tangents = [torch.randn_like(t) for t in needed]
        wanted = torch.autograd.grad(needed, [primals[i] for i in joint.gradients], tangents)
        plain = [evaluate_with(n.symbol.expression, lambda k: leaf[f"s{k.index}"]) for n in traced.numbers]
        torch.manual_seed(7)
        with torch.no_grad():
            got = run(at(joint.graph, values), [*(p.detach() for p in primals), *plain, *tangents])
        for g, w in zip(got, [*want, *wanted], strict=True):
            torch.testing.assert_close(g, w.detach(), rtol=close[0], atol=close[1])
    assert checked > 1, f"no other sizes fulfil {guards}"
    return joint


def _requiring(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
