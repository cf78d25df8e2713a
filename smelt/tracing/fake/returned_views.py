"""View relations of results without gradients, as autograd sees them: which are views, of which base, and which may be
written.

A compiled graph returns views as its memory layout happens to need them. In eager, the result of `detach()` is no
view, so that it may be written with gradients without effect on its source; and one of several results of `unbind` or
`split`, or a view created without gradients, may not be written with gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from smelt.graph.graph_callable import Compiled
from smelt.torch_private import CreationMeta, get_creation_meta, set_creation_meta
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.fake.memory_aliases import alias_like, full_storage
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.trace_parts import TraceParts

_INPUT: Literal["input"] = "input"
_NO_VIEW: Literal["alone"] = "alone"
_Base = Literal["input", "alone"] | int


@dataclass(frozen=True)
class OutputView:
    """How autograd sees one output.

    `base`: the output that it is a view of; a negative number: a view of memory that no output is, shared with the
    other outputs that have this number; "alone": no view of anything visible; "input": unchanged. `creation`: torch's
    creation metadata of the view, if it is not the usual one for the grad mode.
    """

    output: int
    base: _Base
    creation: Any


@dataclass(frozen=True)
class Views:
    """`views`: the outputs that a compiled graph may return with other view relations; bases of others come first."""

    views: tuple[OutputView, ...] = ()

    @classmethod
    def of(cls, parts: TraceParts, outputs: Sequence[FakeTensor], joint: bool) -> Views:
        """The views of a trace. `joint`: it has a joint graph, whose caller applies each view by itself, under
        gradients (`smelt.autograd.mutation_view_epilogue`). Call it with the recording modes disabled."""
        with_gradients = joint or parts.torch_recorder.first_state[0]
        usual = CreationMeta.DEFAULT if with_gradients else CreationMeta.NO_GRAD_MODE
        by_storage: dict[int, list[int]] = {}
        for i, fake in enumerate(outputs):
            if not parts.inputs.holds(fake) and not fake.is_inference() and not fake.requires_grad:
                by_storage.setdefault(fake.storage_key, []).append(i)
        views: list[OutputView] = []
        for key, positions in by_storage.items():
            differ = len(positions) > 1 if joint else bool(parts.inputs.in_storage(key))
            views += _output_views(parts.inputs, outputs, positions, differ, usual)
        return cls(tuple(sorted(views, key=lambda view: type(view.base) is int)))

    def restore(self, graph: Compiled) -> Compiled:
        """`graph` with outputs that autograd sees as it sees eager's."""
        views = self.views
        if not views:
            return graph

        def call(tensors: tuple[Any, ...]) -> Sequence[Any]:
            results = list(graph(tensors))
            storages: dict[int, torch.Tensor] = {}
            for view in views:
                result = _as_view(view.base, results[view.output], results, storages)
                if view.creation is not None:
                    if not result._is_view() or any(result is t for t in tensors):
                        result = result[...]
                    set_creation_meta(result, view.creation)
                results[view.output] = result
            return results

        return call


NO_VIEWS = Views()


def _root(fake: FakeTensor) -> torch.Tensor:
    base = fake._base if fake._is_view() else None
    return fake if base is None else base


def _output_views(
    inputs: Inputs, outputs: Sequence[FakeTensor], positions: Sequence[int], differ: bool, usual: Any
) -> Iterator[OutputView]:
    """The views of the outputs at `positions`, which share memory. None where any graph returns them so, unless they
    `differ`: they share memory with an input, or each is derived by itself."""
    roots = {i: _root(outputs[i]) for i in positions}
    creations = {i: get_creation_meta(outputs[i]) for i in positions if roots[i] is not outputs[i]}
    unusual = {i: c for i, c in creations.items() if c != usual}
    # From the first output that is a view of the root, so that no two roots of a trace have the same number.
    numbers: dict[int, int] = {}
    for i, root in roots.items():
        numbers.setdefault(id(root), -1 - i)
    position_of = {id(outputs[i]): i for i in positions}
    if not differ and not unusual and (len(positions) == 1 or set(numbers) <= {id(outputs[positions[0]])}):
        return
    for i, root in roots.items():
        shared = sum(r is root for r in roots.values()) > 1
        base: _Base = _NO_VIEW
        if root is not outputs[i] and shared:
            base = position_of.get(id(root), numbers[id(root)])
        if type(root) is FakeTensor and inputs.holds(root):
            base = _INPUT
        if base is not _INPUT or i in unusual:
            yield OutputView(i, base, unusual.get(i))


def _as_view(
    base: _Base, result: torch.Tensor, results: Sequence[Any], storages: dict[int, torch.Tensor]
) -> torch.Tensor:
    if base == _INPUT:
        return result
    if base == _NO_VIEW:
        return result.detach() if result._is_view() else result
    assert isinstance(base, int)
    if base >= 0:
        tensor = results[base]
    elif (tensor := storages.get(base)) is None:
        tensor = storages[base] = full_storage(result)
    return alias_like(tensor, result)


def allow_inplace_writes(results: Sequence[Any], inputs: Sequence[object]) -> Sequence[Any]:
    """Results of a graph that ran beneath autograd, as if gradients had been enabled: views may be written."""
    for tensor in results:
        if isinstance(tensor, torch.Tensor) and tensor._is_view() and not any(tensor is t for t in inputs):
            if get_creation_meta(tensor) == CreationMeta.NO_GRAD_MODE:
                set_creation_meta(tensor, CreationMeta.DEFAULT)
    return results
