"""The autograd state of tensors that a program sets: parameters, `requires_grad`, `grad`, `data`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.utils.checkpoint
from torch import nn

from smelt.capture.base.call_handlers import TENSOR_METHODS, TENSOR_SETTERS, unsupported
from smelt.capture.environment.side_effects import Call
from smelt.capture.vm.vm import VM
from smelt.errors import SharesCounter
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.torch_private import DisableTorchDispatch
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class, fakes_in
from smelt.tracing.record.opaque_call_recorder import OpaqueCall


def make_parameter(vm: VM, data: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """`nn.Parameter(data, requires_grad)`: a leaf that shares the memory of `data`."""
    check_class(data, "a parameter")

    def run() -> torch.Tensor:
        parameter = data.detach().requires_grad_(requires_grad)
        parameter._is_param = True  # type: ignore[attr-defined]
        return parameter

    if vm.trace.numbers.symbols is not None:
        return run()
    parameter: FakeTensor = vm.trace.torch_recorder.run_opaque(
        OpaqueCall(nn.Parameter, (data, requires_grad), {}, lambda f: False), run
    )
    return parameter


def set_requires_grad(vm: VM, tensor: FakeTensor, requires_grad: object = True) -> torch.Tensor:
    """`tensor.requires_grad_(requires_grad)`, which the torch-level graph records."""
    wanted = vm.truth(requires_grad)
    if vm.trace.is_environment(tensor) and wanted == tensor.requires_grad:
        return tensor
    return tensor.requires_grad_(wanted)


TENSOR_METHODS["requires_grad_"] = set_requires_grad


def set_grad(vm: VM, tensor: FakeTensor, value: object) -> None:
    """`tensor.grad = value`; for an environment tensor it is an effect, which the compiled frame replays."""
    for part in (tensor, value):
        check_class(part, "the gradient")
    if value is not None and type(value) is not FakeTensor:
        raise TypeError(
            f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__!r}"
        )
    with vm.trace.paused(), DisableTorchDispatch():
        tensor.grad = value
    if vm.trace.is_environment(tensor):
        vm.env.log.set_tensor_attribute(tensor, "grad", value)
    else:
        vm.held.with_grad.append(tensor)


def check_left(vm: VM, fakes: Iterable[FakeTensor]) -> None:
    """Raise Unsupported if a tensor that the program created, and whose `grad` it set, is among the tensors that leave."""
    leaving = {id(fake) for fake in fakes}
    if any(id(fake) in leaving for fake in vm.held.with_grad):
        raise unsupported("a tensor with a gradient is returned", UNSUPPORTED_EFFECT)


def set_data(vm: VM, tensor: FakeTensor, value: object) -> None:
    """`tensor.data = value`: from here on, `tensor` has the memory and metadata of `value`, and its own autograd state.
    The compiled frame assigns the data after the graph."""
    for part in (tensor, value):
        check_class(part, "the data")
    if type(value) is not FakeTensor:
        raise unsupported(f"the data of a tensor is set to a {type(value).__qualname__}", UNSUPPORTED_EFFECT)
    _check_rebindable(vm, tensor, value)
    data, view = value.data, value.data
    with vm.trace.paused(), DisableTorchDispatch():
        tensor.data = view
        before = vm.trace.inputs.rebind(tensor, cast(FakeTensor, view))
    vm.env.sources.register(before, vm.env.sources[id(tensor)])
    vm.env.log.defer_call(Call(_assign_data, (tensor, data)))


def _check_rebindable(vm: VM, tensor: FakeTensor, value: FakeTensor) -> None:
    """Raise Unsupported for tensors whose `data` cannot be assigned after the graph: those that the program created, or
    wrote before, and those that autograd may have saved."""
    trace, rebound = vm.trace, vm.trace.inputs.rebound
    with trace.paused():
        computed = (f for entry in trace.tape.entries for f in fakes_in(entry.out) if id(f) not in rebound)
        if (
            not vm.assumptions.assigns_data
            or not trace.is_environment(tensor)
            or tensor.is_inference()
            or value.is_inference()
            or trace.inputs.sets_requires_grad(tensor)
            or (id(tensor) not in rebound and tensor.storage_key in trace.writes.storages)
            or (vm.env.log.is_set_on_tensor(tensor, "grad") and tensor.spec != value.spec)
            or (tensor.requires_grad and (not tensor.is_leaf or any(map(_has_history, computed))))
        ):
            raise unsupported("the data of a tensor is set", UNSUPPORTED_EFFECT)


def _has_history(fake: FakeTensor) -> bool:
    """Whether `fake` has a history. True for a view whose history autograd refuses to tell."""
    try:
        return fake.grad_fn is not None
    except RuntimeError:
        return True


def _assign_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


def replay_versions(vm: VM) -> None:
    """Add the writes since then to the version counters of tensors whose `data` was set: the graph writes another tensor."""
    with vm.trace.paused():
        for fake, _ in vm.trace.inputs.rebound.values():
            if fake._version:
                vm.env.log.defer_call(Call(_increment_version, (fake, fake._version)))


def _increment_version(tensor: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.autograd.graph.increment_version([tensor])


def check_counters(vm: VM, fakes: Iterable[FakeTensor]) -> None:
    """Raise SharesCounter if a tensor that leaves is a view of one whose `data` was set, whose version counter it shares."""
    with vm.trace.paused():
        counted = [fake for fake in fakes if not fake.is_inference()]
        before = [fake._version for fake in counted]
        torch.autograd.graph.increment_version([fake for fake, _ in vm.trace.inputs.rebound.values()])
        if before != [fake._version for fake in counted]:
            raise SharesCounter(Reason(UNSUPPORTED_EFFECT, "a view of a tensor whose data was set leaves"))


def set_flag(vm: VM, tensor: FakeTensor, value: object) -> None:
    """`tensor.requires_grad = value`. Unlike the method, it accepts leaves only, and no other value than a bool."""
    if not tensor.is_leaf or type(value) is not bool:
        tensor.requires_grad = value  # type: ignore[assignment] # raises eager's error
    set_requires_grad(vm, tensor, value)


TENSOR_SETTERS.update(grad=set_grad, data=set_data, requires_grad=set_flag)
