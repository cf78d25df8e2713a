"""`backward()` within the compiled function.

Autograd's engine computes the gradients on fakes, and the trace records them. The accumulation into `.grad` is a store of
the program, which the compiled frame replays, or an in-place write.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch.autograd.graph import Node

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function, unsupported
from smelt.capture.environment import container_contents
from smelt.capture.semantics import attributes
from smelt.capture.torch_calls.autograd.gradients import check_leaf, history, run_engine
from smelt.capture.torch_calls.autograd.hooks import hook_registered, reaches_hooks
from smelt.capture.torch_calls.autograd.tensor_state import set_grad
from smelt.capture.vm.vm import VM
from smelt.torch_private import DisableTorchFunction, are_transforms_active, set_grad_enabled
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class, fakes_in
from smelt.tracing.record.opaque_call_recorder import OpaqueCall

_Gradients = Sequence[torch.Tensor | None]
_TENSOR_BACKWARD = inspect.signature(torch.Tensor.backward)
_BACKWARD = inspect.signature(torch.autograd.backward)


@function(torch.Tensor.backward)
def _tensor_backward(vm: VM, args: Args, kwargs: Kwargs) -> None:
    arguments = _TENSOR_BACKWARD.bind(*args, **kwargs).arguments
    arguments["tensors"], arguments["grad_tensors"] = arguments.pop("self"), arguments.pop("gradient", None)
    _backward(vm, (), arguments)


@function(torch.autograd.backward)
def _backward(vm: VM, args: Args, kwargs: Kwargs) -> None:
    call = _BACKWARD.bind(*args, **kwargs)
    call.apply_defaults()
    arguments = call.arguments
    if vm.trace.call.node is not None:
        raise unsupported("backward() inside of a backward")
    transformed = are_transforms_active()
    if transformed or arguments["grad_variables"] is not None or vm.truth(arguments["create_graph"]):
        raise unsupported("backward() inside a transform, with create_graph or with grad_variables")
    roots = _tensors(vm, arguments["tensors"])
    nodes = history(roots)
    leaves = _leaves(roots, nodes)
    if arguments["inputs"] is not None:
        leaves = _selected(_tensors(vm, arguments["inputs"]), leaves)
    _check(vm, roots, leaves)
    start = len(vm.trace.tape.entries)
    options = {"retain_graph": arguments["retain_graph"], "allow_unused": True}
    gradients = run_engine(vm, (roots, leaves or roots, arguments["grad_tensors"]), options, nodes)
    _accumulate_all(vm, leaves, cast(_Gradients, gradients), _unshared(vm, start, nodes))


def _tensors(vm: VM, argument: object) -> list[FakeTensor]:
    """The tensors of an argument: one tensor, several, or the values of a dictionary."""
    view = container_contents.native_view(vm.env, argument)
    if not isinstance(view, (torch.Tensor, list, tuple, dict)):
        raise unsupported(f"backward() with a {type(argument).__qualname__}")
    several = view.values() if isinstance(view, dict) else view
    found = [view] if isinstance(view, torch.Tensor) else list(several)
    if any(type(t) is not FakeTensor for t in found) or not found:
        raise unsupported("backward() of objects that are not tensors")
    return cast("list[FakeTensor]", found)


def _leaves(roots: Sequence[FakeTensor], nodes: Sequence[Node]) -> list[FakeTensor]:
    """The leaves among `roots`, and those of the autograd `nodes`."""
    found: list[object] = [root for root in roots if root.requires_grad and root.grad_fn is None]
    found += [getattr(node, "variable") for node in nodes if hasattr(node, "variable")]  # noqa: B009
    if any(type(leaf) is not FakeTensor for leaf in found):
        raise unsupported("backward() through a tensor that was computed before the call")
    return cast("list[FakeTensor]", list({id(leaf): leaf for leaf in found}.values()))


def _selected(inputs: Sequence[FakeTensor], leaves: Sequence[FakeTensor]) -> list[FakeTensor]:
    reached = set(map(id, leaves))
    if any(id(t) not in reached for t in inputs):
        raise unsupported("backward() with `inputs` that are not reachable leaves")
    return list({id(t): t for t in inputs}.values())


def _check(vm: VM, roots: Sequence[FakeTensor], leaves: Sequence[FakeTensor]) -> None:
    """Raise Unsupported where eager calls Python code between nodes, or recomputes values that the graph would save."""
    for fake in (*roots, *leaves):
        check_class(fake, "the gradient")
    if hook_registered(vm) and reaches_hooks(vm, roots):
        raise unsupported("backward() through a tensor with a hook")
    recorded = (f for entry in vm.trace.tape.entries for f in fakes_in(entry.out))
    if any(f.retains_grad for f in recorded):
        raise unsupported("backward() with a tensor that retains its gradient")
    if any(type(n.target) is OpaqueCall and n.target.is_checkpoint for n in vm.trace.tape.torch.graph):
        raise unsupported("backward() after a checkpoint")
    for leaf in leaves:
        if vm.trace.is_input(leaf):
            check_leaf(vm, leaf)


# ---------------------------------------------------------------------------------------- accumulation into leaves


def _unshared(vm: VM, start: int, nodes: Sequence[Node]) -> set[int]:
    """The ids of the tensors, in the tape from entry `start` on, that only the engine refers to. The backward of a custom
    function may have stored any of them."""
    if any(hasattr(type(node), "_forward_cls") for node in nodes):
        return set()
    return {id(f) for entry in vm.trace.tape.entries[start:] for f in fakes_in(entry.out)}


def _accumulate_all(vm: VM, leaves: Sequence[FakeTensor], gradients: _Gradients, unshared: set[int]) -> None:
    with _without_gradients():
        for leaf, gradient in zip(leaves, gradients):
            if gradient is not None:
                _accumulate(vm, leaf, gradient, id(gradient) in unshared)
                unshared.discard(id(gradient))


@contextmanager
def _without_gradients() -> Iterator[None]:
    before = torch.is_grad_enabled()
    _set_grad_mode(False)
    try:
        yield
    finally:
        _set_grad_mode(before)


def _set_grad_mode(enabled: bool) -> None:
    with DisableTorchFunction():
        set_grad_enabled(enabled)


def _accumulate(vm: VM, leaf: FakeTensor, gradient: torch.Tensor, is_unshared: bool) -> None:
    """Accumulate a gradient as `AccumulateGrad` does (torch/csrc/autograd/functions/accumulate_grad.h). `is_unshared`: the
    leaf may take the gradient without a copy."""
    before = attributes.load_attr(vm, leaf, "grad")
    if isinstance(before, torch.Tensor):
        before.add_(gradient)
    else:
        steals = is_unshared and _has_layout_of(gradient, leaf)
        set_grad(vm, leaf, gradient.detach() if steals else _copy(gradient, leaf))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a contiguous block of memory without overlap."""
    covered = 1
    for stride, size in sorted((st, n) for n, st in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != covered:
            return tensor.numel() == 0
        covered *= size
    return True


def _has_layout_of(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    if not _is_dense(leaf):
        return gradient.is_contiguous()
    dims = zip(gradient.shape, gradient.stride(), leaf.stride())
    return all(size == 1 or stride == leaf_stride for size, stride, leaf_stride in dims)


def _copy(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    if not _is_dense(leaf):
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)
