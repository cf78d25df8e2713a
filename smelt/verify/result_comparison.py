"""Comparison of eager and compiled results.

Numbers are equal if they differ by rounding: relative to the largest of their tensor; or if the compiled result is
about as near to the float64 result as eager's is, or as results with random rounding are (`_SLACK`). Non-finite values
and integers must be equal: to eager's, to float64's, or to one with random rounding. Strides must be eager's if they
locate an element: the program may query them, and rely on them for views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from smelt.graph.graph_callable import Compiled
from smelt.graph.graph_interpreter import run
from smelt.graph.ir import Graph, Node
from smelt.graph.operator_effects import effects
from smelt.torch_private import OpOverload
from smelt.verify.float64_reference import run_wide
from smelt.verify.isolated_state import Generators, States, isolated_inputs, written

ROUNDING = {
    torch.float16: 1e-3,
    torch.bfloat16: 1.6e-2,
    torch.float32: 1.3e-6,
    torch.float64: 1e-13,
    torch.complex64: 1.3e-6,
    torch.complex128: 1e-13,
}
_SLACK = 8.0  # times eager's error against float64, or that of random rounding
_SAMPLES = 3


@dataclass(frozen=True)
class Outcome:
    """A run: results, the inputs that it writes, and the states of generators afterwards; or its exception."""

    results: Sequence[Any] = ()
    inputs: Sequence[Any] = ()
    states: States = ()
    error: Exception | None = None


def outcome(call: Compiled, inputs: tuple[Any, ...], generators: Generators) -> Outcome:
    """Run `call` with these inputs, which it may write."""
    try:
        results = list(call(inputs))
    except Exception as error:
        return Outcome(error=error)
    return Outcome(results, inputs, generators.states())


@dataclass(frozen=True)
class Before:
    """The state that a graph ran on: inputs that no run has written, and the states of generators."""

    inputs: tuple[Any, ...]
    states: States
    generators: Generators

    def run_inputs(self, copied: frozenset[int]) -> tuple[Any, ...]:
        """Inputs for another run, which may write those at the positions `copied`; restores generator states."""
        self.generators.restore(self.states)
        return isolated_inputs(self.inputs, copied)


def difference_between(graph: Graph, before: Before, compiled: Compiled) -> str | None:
    """The difference between runs of `compiled` and of `graph`; None if they are equal."""
    copied = written(graph)
    actual = outcome(compiled, before.run_inputs(copied), before.generators)
    expected = outcome(lambda tensors: run(graph, tensors), before.run_inputs(copied), before.generators)
    return difference(graph, before, expected, actual)


def difference(graph: Graph, before: Before, expected: Outcome, actual: Outcome) -> str | None:
    """The difference between two outcomes of a graph, in words; None if they are equal."""
    if expected.error is not None or actual.error is not None:
        return _of_errors(expected.error, actual.error)

    @cache
    def wide() -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        noise = torch.Generator().manual_seed(0)
        runs = []
        for generator in (None, *[noise] * _SAMPLES):
            before.generators.restore(before.states)
            runs.append(run_wide(graph, before.inputs, generator))
        return runs

    outputs = graph.output.args[0]
    for i, (want, got) in enumerate(zip(expected.results, actual.results, strict=True)):
        if outputs[i] is not None and _is_unfilled(outputs[i]):
            continue
        found = _of_values(want, got, lambda i=i: [r[0][i] for r in wide()])  # type: ignore[misc]
        if found is not None:
            return f"result {i}: {found}"
    for i in sorted(written(graph)):
        found = _of_values(expected.inputs[i], actual.inputs[i], lambda i=i: [r[1][i] for r in wide()])  # type: ignore[misc]
        if found is not None:
            return f"input {i} afterwards: {found}"
    if not all(map(torch.equal, expected.states, actual.states)):
        return "the state of the random generator afterwards"
    return None


def _is_unfilled(node: Node) -> bool:
    """Whether the memory of a result holds no values, in whole or in part."""
    call, index = node.args if node.target is operator.getitem else (node, 0)
    return isinstance(call.target, OpOverload) and effects(call.target).unfilled == index


def _of_errors(expected: Exception | None, actual: Exception | None) -> str | None:
    if type(expected) is type(actual):
        return None
    return f"eager raises {_named(expected)}, compiled code {_named(actual)}"


def _named(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {error}"


def _of_values(want: Any, got: Any, wide: Callable[[], list[Any]]) -> str | None:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return None if want is got or want == got else f"eager gives {want!r}, compiled code {got!r}"
    if want.shape != got.shape or want.dtype != got.dtype or want.device != got.device:
        return f"eager gives {_kind(want)}, compiled code {_kind(got)}"
    if not want.numel() or want.layout is not torch.strided:
        return None
    if _steps(want) != _steps(got):
        return f"eager gives strides {list(want.stride())}, compiled code {list(got.stride())}"
    want, got = want.detach().resolve_conj().resolve_neg(), got.detach().resolve_conj().resolve_neg()
    if torch.equal(got, want) or bool(_near(got, want).all()):
        return None
    try:
        exact, *rounded = wide()
    except Exception:  # there is nothing to measure by
        exact, rounded = want, []
    if not isinstance(exact, torch.Tensor) or exact.shape != want.shape:
        exact, rounded = want, []
    far = ~_near(got, want)
    for right in (exact, *rounded):
        far &= ~_near(got, right.to(want.dtype))
    if not bool(far.any()) or (want.dtype in ROUNDING and _as_exact(got, exact, (want, *rounded), far)):
        return None
    return _shown(want, got, far)


def _steps(tensor: torch.Tensor) -> list[int]:
    """The strides that locate elements: those of dimensions with more than one."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1]


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of {list(tensor.shape)} on {tensor.device}"


def _near(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where both are equal within rounding."""
    rounding = ROUNDING.get(want.dtype)
    if rounding is None:
        return got == want
    scale = _largest(want)
    return torch.isclose(_double(got), _double(want), rtol=rounding, atol=rounding * scale, equal_nan=True)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _largest(tensor: torch.Tensor) -> float:
    finite = tensor[torch.isfinite(tensor)]
    return float(_double(finite).abs().max()) if finite.numel() else 0.0


def _as_exact(
    got: torch.Tensor, exact: torch.Tensor, others: Sequence[torch.Tensor], far: torch.Tensor
) -> bool:
    """Whether errors of the compiled result are of the size of those of `others`."""
    unit = torch.finfo(others[0].dtype).eps
    got, exact, others = _double(got), _double(exact), [_double(o) for o in others]
    finite = torch.isfinite(got) & torch.isfinite(exact)
    for other in others:
        finite &= torch.isfinite(other)
    if bool((far & ~finite).any()):
        return False
    theirs = max(float((other - exact)[finite].abs().max()) for other in others)
    return float((got - exact)[finite].abs().max()) <= _SLACK * max(theirs, unit * _largest(exact))


def _shown(want: torch.Tensor, got: torch.Tensor, far: torch.Tensor) -> str:
    distance = torch.where(far, (_double(want) - _double(got)).abs().nan_to_num(torch.inf), -1.0)
    at = [int(i) for i in torch.unravel_index(distance.argmax(), want.shape)]
    where = tuple(at)
    both = f"eager gives {want[where].item()}, compiled code {got[where].item()}"
    return f"{int(far.sum())} of {far.numel()} elements differ; at {at} {both}"
