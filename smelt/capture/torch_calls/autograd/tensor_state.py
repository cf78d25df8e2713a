"""The autograd state of tensors that a program sets: parameters, `requires_grad`, `grad`, `data`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.utils.checkpoint
from torch import nn

from smelt.capture.base.call_handlers import TENSOR_METHODS, TENSOR_SETTERS, unsupported
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchDispatch
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class
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
    if vm.trace.is_input(tensor) and wanted == tensor.requires_grad:
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
    if vm.trace.is_input(tensor):
        vm.env.log.set_tensor_attribute(tensor, "grad", value)
    else:
        vm.held.with_grad.append(tensor)


def check_left(vm: VM, fakes: Iterable[FakeTensor]) -> None:
    """Raise Unsupported if a tensor that the program created, and whose `grad` it set, is among the tensors that leave."""
    leaving = {id(fake) for fake in fakes}
    if any(id(fake) in leaving for fake in vm.held.with_grad):
        raise unsupported("a tensor with a gradient is returned", UNSUPPORTED_EFFECT)


def set_data(vm: VM, tensor: FakeTensor, value: object) -> None:
    """Refuse `tensor.data = value`."""
    raise unsupported("the data of a tensor is set", UNSUPPORTED_EFFECT)


def set_flag(vm: VM, tensor: FakeTensor, value: object) -> None:
    """`tensor.requires_grad = value`."""
    set_requires_grad(vm, tensor, value)


TENSOR_SETTERS.update(grad=set_grad, data=set_data, requires_grad=set_flag)
