"""Functions traced on example tensors: their graphs, and whether these do all that eager does as a caller can see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.graph_interpreter import run
from smelt.graph.graph_printer import code
from smelt.graph.ir import Graph
from smelt.shapes.expr import Expression, Sym
from smelt.tracing.record.trace import Trace
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.symbolic_layouts import SymbolicLayout
from smelt.tracing.symbolic.symbolic_numbers import Symbols


def trace(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    grad: bool = False,
    symbolic: Mapping[int, Sequence[int]] | None = None,
    guards: list[tuple[Expression, Any]] | None = None,
    joint: bool = False,
) -> tuple[Trace, Traced]:
    """Traces `function` on fakes of `inputs`; tensors that it closes over become inputs, too.

    `symbolic`: dimensions, by the position of their input, whose sizes are symbols: s0, s1, ... in this order, one for each
    size that there is. What is required of them goes into `guards`; a pinned one raises NeedsFixedSize.
    `joint`: with a joint graph.
    """
    required: list[tuple[Expression, Any]] = [] if guards is None else guards
    symbols = Symbols(_pinned, lambda expression, expected: required.append((expression, expected)))
    by_number: dict[int, Any] = {}
    with torch.set_grad_enabled(grad):
        recorder = Trace()
        recorder.inputs.on_unknown_tensor = recorder.fake
        recorder.autograd.wants_joint = joint
        with recorder:
            fakes = []
            for i, t in enumerate(inputs):
                sizes = {}
                for dim in (symbolic or {}).get(i, ()):
                    n = t.size(dim)
                    if n not in by_number:
                        by_number[n] = symbols.size_leaf(Leaf(len(by_number)), n)
                    sizes[dim] = by_number[n]
                shape = [sizes.get(d, n) for d, n in enumerate(t.shape)]
                fakes.append(recorder.fake(t, "", SymbolicLayout.row_major(shape) if sizes else None))
            out = function(*fakes)
            if joint:
                return recorder, recorder.finish(flatten(out))
        return recorder, recorder.finish(flatten(out))


@dataclass(eq=False)
class Leaf:
    """Where symbol number `index` is found."""

    index: int

    @property
    def key(self) -> str:
        """What graphs call it."""
        return f"size_{self.index}"


def _pinned(leaf: Leaf, value: Any) -> None:
    raise NeedsFixedSize("a size is read", frozenset({Sym(f"s{leaf.index}", 2)}))


def traced(f: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    """(aten graph, the real tensors of its placeholders)"""
    recorder, record = trace(f, inputs)
    return record.aten_graph, [recorder.real(fake) for fake in record.inputs]


def traced_module(
    module: torch.nn.Module,
    kwargs: dict[str, torch.Tensor],
    outputs_of: Callable[[Any], list[Any]] | None = None,
) -> tuple[Graph, list[torch.Tensor]]:
    """(aten graph, the real tensors of its placeholders) of a module called with tensors as keyword arguments."""
    stores = [store for m in module.modules() for store in (m._parameters, m._buffers)]
    saved = [dict(store) for store in stores]
    with torch.no_grad():
        trace = Trace()
        with trace:
            fakes = {k: trace.fake(v) for k, v in kwargs.items()}
            for store in stores:
                store.update({k: trace.fake(v) for k, v in store.items() if v is not None})
            try:
                outputs = (outputs_of or flatten)(module(**fakes))
            finally:
                for store, old in zip(stores, saved):
                    store.update(old)
        record = trace.finish(outputs)
        return record.aten_graph, [trace.real(fake) for fake in record.inputs]


def flatten(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, dict):
        out = list(out.values())
    return [t for item in out for t in flatten(item)] if isinstance(out, (list, tuple)) else []


def copy_inputs(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides, and aliasing among them kept."""
    storages: dict[int, torch.Tensor] = {}
    copies = []
    for t in inputs:
        key = t.untyped_storage()._cdata
        if key not in storages:
            flat = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
            storages[key] = flat.clone()
        copy = torch.empty(0, dtype=t.dtype).set_(
            storages[key].untyped_storage(), t.storage_offset(), t.size(), t.stride()
        )
        copies.append(copy.requires_grad_(t.requires_grad))
    return copies


def check(
    function: Callable[..., Any], *inputs: torch.Tensor, rtol: float = 0, atol: float = 0, seed: int = 7
) -> Traced:
    """Both graphs of `function` must give eager's outputs (values, dtypes, strides, aliasing) and write what it writes."""
    recorder, traced = trace(function, inputs)
    position = {id(t): i for i, t in enumerate(inputs)}
    for graph in (traced.torch_graph, traced.aten_graph):
        eager_in, graph_in = copy_inputs(inputs), copy_inputs(inputs)
        torch.manual_seed(seed)
        with torch.no_grad():
            want = flatten(function(*eager_in))
            reals = [recorder.real(f) for f in traced.inputs]
            torch.manual_seed(seed)
            got = run(graph, [graph_in[position[id(r)]] if id(r) in position else r for r in reals])
        close = {"rtol": rtol, "atol": atol, "equal_nan": True, "check_stride": True}
        assert len(got) == len(want)
        for g, w in zip(got, want):
            torch.testing.assert_close(g, w, **close)
        for g, w in zip(graph_in, eager_in):
            torch.testing.assert_close(g, w, **close)
        assert _aliasing([*graph_in, *got]) == _aliasing([*eager_in, *want]), code(graph)
    return traced


def _aliasing(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor, the first one that shares its storage."""
    keys = [t.untyped_storage()._cdata for t in tensors]
    return [keys.index(k) for k in keys]
