"""`backward()` inside of the function.

Autograd's engine computes the gradients on fakes, where the trace records them. What eager's engine does to `.grad` is done
as the program would do it: a store, which the compiled frame replays, or a write.
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
_OF_TENSOR = inspect.signature(torch.Tensor.backward)
_OF_TENSORS = inspect.signature(torch.autograd.backward)


@function(torch.Tensor.backward)
def _of_tensor(vm: VM, args: Args, kwargs: Kwargs) -> None:
    given = _OF_TENSOR.bind(*args, **kwargs).arguments
    given["tensors"], given["grad_tensors"] = given.pop("self"), given.pop("gradient", None)
    _of_tensors(vm, (), given)


@function(torch.autograd.backward)
def _of_tensors(vm: VM, args: Args, kwargs: Kwargs) -> None:
    call = _OF_TENSORS.bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    if vm.trace.call.node is not None:
        raise unsupported("backward() inside of a backward")
    transformed = are_transforms_active()
    if transformed or given["grad_variables"] is not None or vm.truth(given["create_graph"]):
        raise unsupported("backward() inside a transform, with create_graph or with grad_variables")
    ends = _tensors(vm, given["tensors"])
    met = history(ends)
    leaves = _leaves(ends, met)
    if given["inputs"] is not None:
        leaves = _chosen(_tensors(vm, given["inputs"]), leaves)
    _check(vm, ends, leaves)
    known = len(vm.trace.tape.entries)
    options = {"retain_graph": given["retain_graph"], "allow_unused": True}
    gradients = run_engine(vm, (ends, leaves or ends, given["grad_tensors"]), options, met)
    _accumulate_all(vm, leaves, cast(_Gradients, gradients), _only_here(vm, known, met))


def _tensors(vm: VM, given: object) -> list[FakeTensor]:
    """One tensor, several, or those in a dictionary."""
    seen = container_contents.native_view(vm.env, given)
    if not isinstance(seen, (torch.Tensor, list, tuple, dict)):
        raise unsupported(f"backward() with a {type(given).__qualname__}")
    several = seen.values() if isinstance(seen, dict) else seen
    found = [seen] if isinstance(seen, torch.Tensor) else list(several)
    if any(type(t) is not FakeTensor for t in found) or not found:
        raise unsupported("backward() of other things than tensors")
    return cast("list[FakeTensor]", found)


def _leaves(ends: Sequence[FakeTensor], met: Sequence[Node]) -> list[FakeTensor]:
    """The leaves among `ends`, and those that the nodes `met` lead to."""
    found: list[object] = [end for end in ends if end.requires_grad and end.grad_fn is None]
    found += [getattr(node, "variable") for node in met if hasattr(node, "variable")]  # noqa: B009
    if any(type(leaf) is not FakeTensor for leaf in found):
        raise unsupported("backward() through a tensor computed outside")
    return cast("list[FakeTensor]", list({id(leaf): leaf for leaf in found}.values()))


def _chosen(inputs: Sequence[FakeTensor], leaves: Sequence[FakeTensor]) -> list[FakeTensor]:
    reached = set(map(id, leaves))
    if any(id(t) not in reached for t in inputs):
        raise unsupported("backward() with `inputs` that are not leaves which it reaches")
    return list({id(t): t for t in inputs}.values())


def _check(vm: VM, ends: Sequence[FakeTensor], leaves: Sequence[FakeTensor]) -> None:
    """Raises Unsupported where eager would call Python code between nodes, or where the graph would keep what the program
    wants computed again."""
    for fake in (*ends, *leaves):
        check_class(fake, "the gradient")
    if hook_registered(vm) and reaches_hooks(vm, ends):
        raise unsupported("backward() through a tensor with a hook")
    made = (f for entry in vm.trace.tape.entries for f in fakes_in(entry.out))
    if any(f.retains_grad for f in made):
        raise unsupported("backward() with a tensor that retains its gradient")
    if any(type(n.target) is OpaqueCall and n.target.is_checkpoint for n in vm.trace.tape.torch.graph):
        raise unsupported("backward() after a checkpoint")
    for leaf in leaves:
        if vm.trace.is_input(leaf):
            check_leaf(vm, leaf)


# ---------------------------------------------------------------------------------------------- what reaches a leaf


def _only_here(vm: VM, known: int, met: Sequence[Node]) -> set[int]:
    """Ids of what the engine has made, and nobody else has: of the entries of the tape from `known` on. What the user's
    code gave it may hold."""
    if any(hasattr(type(node), "_forward_cls") for node in met):
        return set()
    return {id(f) for entry in vm.trace.tape.entries[known:] for f in fakes_in(entry.out)}


def _accumulate_all(vm: VM, leaves: Sequence[FakeTensor], gradients: _Gradients, new: set[int]) -> None:
    with _without_gradients():
        for leaf, gradient in zip(leaves, gradients):
            if gradient is not None:
                _accumulate(vm, leaf, gradient, id(gradient) in new)
                new.discard(id(gradient))


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


def _accumulate(vm: VM, leaf: FakeTensor, gradient: torch.Tensor, is_new: bool) -> None:
    """What `AccumulateGrad` does with a gradient that arrives at a leaf (torch/csrc/autograd/functions/accumulate_grad.h).
    `is_new`: nobody else has it, so that it need not be copied."""
    before = attributes.load_attr(vm, leaf, "grad")
    if isinstance(before, torch.Tensor):
        before.add_(gradient)
    else:
        keeps = is_new and _is_laid_out_as(gradient, leaf)
        set_grad(vm, leaf, gradient.detach() if keeps else _copy(gradient, leaf))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one piece of memory, each a place of its own."""
    covered = 1
    for stride, size in sorted((st, n) for n, st in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != covered:
            return tensor.numel() == 0
        covered *= size
    return True


def _is_laid_out_as(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    if not _is_dense(leaf):
        return gradient.is_contiguous()
    places = zip(gradient.shape, gradient.stride(), leaf.stride())
    return all(n == 1 or mine == other for n, mine, other in places)


def _copy(gradient: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    if not _is_dense(leaf):
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)
