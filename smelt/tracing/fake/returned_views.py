"""How results without gradients look at memory, to autograd: as views, which history they share, and who may write them.

A graph gives views as it happens to lay out its results. In eager what `detach()` gives is no view, so that it may be
written with gradients without a trace in what it looks at; and one of several results of `unbind` or `split`, or a view
that was taken without gradients, may not be written with gradients at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from smelt.graph.graph_callable import Compiled
from smelt.torch_private import CreationMeta, get_creation_meta, set_creation_meta
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.fake.memory_aliases import alias_like, whole
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.trace_parts import TraceParts

_INPUT: Literal["input"] = "input"
_ALONE: Literal["alone"] = "alone"
_At = Literal["input", "alone"] | int


@dataclass(frozen=True)
class OutputView:
    """How one output is had from what the graph gives.

    `at`: the output that it is a view of; a negative number: a view of memory that no output is, with the others that have
    the number; "alone": no view of what others can see; "input": as the graph gives it. `creation`: how torch says
    that the view was taken, if not as one is under the grad mode.
    """

    output: int
    at: _At
    creation: Any


@dataclass(frozen=True)
class Views:
    """`looks`: of outputs that a graph may give otherwise; what others are views of comes first."""

    views: tuple[OutputView, ...] = ()

    @classmethod
    def of(cls, parts: TraceParts, outputs: Sequence[FakeTensor], joint: bool) -> Views:
        """Those of a trace. `joint`: it has a joint graph, whose caller takes each result by itself, under gradients
        (`smelt.autograd.mutation_view_epilogue`). Call it with the recording modes out of the way."""
        with_gradients = joint or parts.torch_recorder.first_state[0]
        usual = CreationMeta.DEFAULT if with_gradients else CreationMeta.NO_GRAD_MODE
        by_storage: dict[int, list[int]] = {}
        for i, fake in enumerate(outputs):
            if not parts.inputs.holds(fake) and not fake.is_inference() and not fake.requires_grad:
                by_storage.setdefault(fake.storage_key, []).append(i)
        found: list[OutputView] = []
        for key, positions in by_storage.items():
            differ = len(positions) > 1 if joint else bool(parts.inputs.in_storage(key))
            found += _looks(parts.inputs, outputs, positions, differ, usual)
        return cls(tuple(sorted(found, key=lambda look: type(look.at) is int)))

    def kept(self, graph: Compiled) -> Compiled:
        """`graph`, whose outputs are to autograd what eager's are."""
        views = self.views
        if not views:
            return graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            results = list(graph(tensors))
            bases: dict[int, torch.Tensor] = {}
            for look in views:
                given = results[look.output]
                made = _seen(look.at, given, results, bases)
                if look.creation is not None:
                    if not made._is_view() or any(made is t for t in tensors):
                        made = made[...]
                    set_creation_meta(made, look.creation)
                results[look.output] = made
            return results

        return call


NO_VIEWS = Views()


def _root(fake: FakeTensor) -> torch.Tensor:
    base = fake._base if fake._is_view() else None
    return fake if base is None else base


def _looks(
    inputs: Inputs, outputs: Sequence[FakeTensor], positions: Sequence[int], differ: bool, usual: Any
) -> Iterator[OutputView]:
    """Of the outputs at `positions`, which share memory; none where any graph gives them so, unless they `differ` in any
    case: they share it with an input, or each is taken by itself."""
    roots = {i: _root(outputs[i]) for i in positions}
    creations = {i: get_creation_meta(outputs[i]) for i in positions if roots[i] is not outputs[i]}
    told = {i: c for i, c in creations.items() if c != usual}
    # Of each the first output that looks at it, so that no two roots of a trace have one number.
    numbers: dict[int, int] = {}
    for i, root in roots.items():
        numbers.setdefault(id(root), -1 - i)
    places = {id(outputs[i]): i for i in positions}
    if not differ and not told and (len(positions) == 1 or set(numbers) <= {id(outputs[positions[0]])}):
        return
    for i, root in roots.items():
        shared = sum(r is root for r in roots.values()) > 1
        at: _At = _ALONE if root is outputs[i] or not shared else places.get(id(root), numbers[id(root)])
        if type(root) is FakeTensor and inputs.holds(root):
            at = _INPUT
        if at is not _INPUT or i in told:
            yield OutputView(i, at, told.get(i))


def _seen(
    at: _At, given: torch.Tensor, results: Sequence[Any], bases: dict[int, torch.Tensor]
) -> torch.Tensor:
    if at == _INPUT:
        return given
    if at == _ALONE:
        return given.detach() if given._is_view() else given
    assert isinstance(at, int)
    if at >= 0:
        base = results[at]
    elif (base := bases.get(at)) is None:
        base = bases[at] = whole(given)
    return alias_like(base, given)


def allow_inplace_writes(results: Sequence[Any], inputs: Sequence[object]) -> Sequence[Any]:
    """Results of a graph that ran beneath autograd, as if it had run with gradients on: views may be written."""
    for tensor in results:
        if isinstance(tensor, torch.Tensor) and tensor._is_view() and not any(tensor is t for t in inputs):
            if get_creation_meta(tensor) == CreationMeta.NO_GRAD_MODE:
                set_creation_meta(tensor, CreationMeta.DEFAULT)
    return results
