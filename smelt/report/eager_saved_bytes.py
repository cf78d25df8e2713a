"""Memory that eager's autograd saves for a graph's backward, measured by running its torch-level calls once, on
synthetic inputs."""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any

import torch

from smelt.capture.driver.cache_entries import Entry
from smelt.graph.graph_callable import GraphFunction
from smelt.graph.graph_printer import target_text
from smelt.graph.ir import Graph, NumberSpec, TensorSpec
from smelt.graph.tensor_specs import empty_like_spec
from smelt.report.kernel_costs import nbytes
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_at_sizes import traced_at
from smelt.tracing.record.traced import Traced

MOST = 1 << 31  # bytes of inputs, beyond which no copy is made of them


def eager_saved_bytes(entry: Entry) -> int | None:
    """Bytes of the distinct storages that autograd saves when the recorded calls run under it, excluding those of
    inputs (parameters included) and results, which the program holds anyway. None if it was not measured.

    The user's function does not run, and none of its tensors take part: inputs are synthetic (0 for ints, so that they
    are valid indices), and the state of the random generators is restored.
    """
    traced = entry.traced
    if traced.joint is None or traced.unbacked is not None or any(fake.subclass for fake in traced.inputs):
        return None
    try:
        if traced.sizes:
            traced = traced_at(traced, traced.hints)
        if (
            _calls_others(traced.torch_graph)
            or sum(nbytes(p.spec) for p in traced.torch_graph.placeholders) > MOST
        ):
            return None
        devices = {fake.device for fake in traced.inputs if fake.device.type != "cpu"}
        with torch.random.fork_rng(devices), torch.inference_mode(False), torch.enable_grad():
            return _measured(traced)
    except Exception:  # numbers that stand for nothing may be refused, as by a Cholesky factorization
        return None


def _calls_others(graph: Graph) -> bool:
    """Whether the graph calls functions that are not torch's, such as a custom `autograd.Function`, which is user
    code. All captured C functions are torch's."""
    names: dict[str, Any] = {}
    for node in graph:
        if node.op == "call_function" and not isinstance(node.target, BuiltinFunctionType):
            target_text(node.target, names)
    return bool(names)


def _measured(traced: Traced) -> int:
    numbers = iter(n.symbol.value for n in traced.numbers)
    fakes = iter(traced.inputs)
    inputs: list[Any] = [
        next(numbers) if isinstance(p.spec, NumberSpec) else _input(p.spec, next(fakes))
        for p in traced.torch_graph.placeholders
    ]
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = GraphFunction(traced.torch_graph)(*inputs)
    own = {_storage(t) for t in (*inputs, *outputs) if isinstance(t, torch.Tensor)}
    found = {_storage(t): t.untyped_storage().nbytes() for t in saved if t.layout is torch.strided}
    return sum(size for storage, size in found.items() if storage not in own)


def _storage(tensor: torch.Tensor) -> int:
    """A key for storages that are alive at the same time."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)


_DRAWN = (
    1 << 16
)  # elements that are random; more repeat them, since random numbers of a large model take seconds


def _fill(tensor: torch.Tensor) -> None:
    if tensor.numel() <= _DRAWN or not tensor.is_contiguous():
        tensor.normal_() if tensor.numel() else tensor
        return
    drawn = torch.randn(_DRAWN, dtype=tensor.dtype, device=tensor.device)
    flat, rest = tensor.view(-1), tensor.numel() % _DRAWN
    # One call: on a busy machine each of many small ones waits for its threads, in all for longer than the graph takes.
    flat[: flat.numel() - rest].view(-1, _DRAWN).copy_(drawn)
    flat[flat.numel() - rest :].copy_(drawn[:rest])


def _input(spec: TensorSpec, fake: FakeTensor) -> torch.Tensor:
    """A tensor with the metadata of an input. An input that requires a gradient and is not a leaf is not one here
    either: leaves must not be written in place."""
    made = empty_like_spec(spec, fake.device).detach()
    if spec.dtype.is_floating_point or spec.dtype.is_complex:
        _fill(made)
    else:
        made.zero_()
    if not fake.requires_grad:
        return made
    leaf = made.requires_grad_()
    return leaf if fake.is_leaf else leaf.clone()
