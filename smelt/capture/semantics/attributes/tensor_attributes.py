"""Attributes of tensors: metadata from the fake, other state of an environment tensor from the real one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from smelt.capture.base.call_handlers import TENSOR_SETTERS, unsupported
from smelt.capture.base.type_lookup import CLASS_METHOD, FUNCTION, PROPERTY, STATIC_METHOD, VALUE
from smelt.capture.environment import wrap_values
from smelt.capture.environment.side_effects import Call
from smelt.capture.semantics.attributes.instance_attributes import (
    CLASS_LOADERS,
    bind_class_method,
    load_property,
)
from smelt.capture.vm.vm import VM
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class, class_of_fake, fake_shape
from smelt.tracing.fake.plain_tensor_classes import PLAIN_TYPES
from smelt.tracing.record.torch_function_handlers import is_handled, overridable_member

# what branches may decide of a tensor with alternatives
_DECIDED = frozenset(
    ("requires_grad", "storage_offset", "is_conj", "is_neg", "is_inference", "untyped_storage", "data_ptr")
)


def load_tensor_attr(vm: VM, tensor: FakeTensor, name: str) -> object:
    """`tensor.name`. An AttributeError names the class that the user sees."""
    if tensor.subclass is not None or vm.trace.call.modes:
        overridden = _overridden_member(vm, tensor, name, "__get__")
        if overridden is not None:
            return vm.trace.call.call_handlers(overridden, (tensor,), None)
    fast = TENSOR_METADATA.get(name)
    if fast is not None:
        return fast(tensor)
    if tensor.subclass is not None and vm.type_info(tensor.subclass).find(name)[2] not in PLAIN_MROS:
        return load_subclass_attr(vm, tensor, tensor.subclass, name)
    own = tensor.__dict__
    if name in own and name != "_is_param":
        return own[name]
    vm.env.facts.use_class(torch.Tensor)
    real = vm.trace.real(vm.trace.inputs.former(tensor))
    if real is None and vm.trace.autograd.reentrant and name in HISTORY_ATTRIBUTES:
        raise refuse(
            f"Tensor.{name} inside of a reentrant checkpoint, whose forward eager runs without gradients"
        )
    if name in TENSOR_STATE or (
        tensor.alternatives and (name in _DECIDED or not hasattr(torch.Tensor, name))
    ):
        vm.trace.copies.record_query(tensor)
    if name in TENSOR_STATE:
        if name != "grad" and id(tensor) in vm.trace.inputs.rebound:
            raise unsupported(f"Tensor.{name} of a tensor whose data was set")
    if real is not None and name in TENSOR_STATE:
        return TENSOR_STATE[name](vm, tensor, real, name)
    if real is not None and name in real.__dict__:
        return wrap_values.wrap(
            vm.env, real.__dict__[name], vm.env.sources.find_or_const(tensor).child("attr", name)
        )
    if real is not None and not hasattr(torch.Tensor, name):
        vm.env.facts.guard("not_in_dict", vm.env.sources.find_or_const(tensor), name, key=name)
    if real is not None and name == "requires_grad":
        vm.env.facts.read_requires_grad(vm.env.sources.find_or_const(tensor), tensor.requires_grad)
    cls = class_of_fake(tensor)
    if name in OF_FAKES:
        for owner in cls.__mro__:
            if name in vars(owner):
                source = vm.env.sources.const(owner).child("attr", name)
                return wrap_values.wrap(vm.env, vars(owner)[name], source)
        raise AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=tensor)
    try:
        return getattr(tensor, name)
    except AttributeError as e:
        text = str(e).replace(f"{FakeTensor.__name__!r}", f"{cls.__name__!r}")
    raise AttributeError(text, name=name, obj=tensor)


# What the class of fakes has, unlike the class that the program sees.
OF_FAKES = frozenset(name for name in vars(FakeTensor) if not hasattr(torch.Tensor, name)) | {
    "__doc__",
    "__module__",
    "__annotations__",
}


def _overridden_member(vm: VM, tensor: FakeTensor, name: str, method: str) -> Callable[..., object] | None:
    """`__get__` or `__set__` of the C member `name` if torch dispatches it to handlers, else None."""
    if not is_handled(vm.trace.call, (tensor,)):
        return None
    if vm.type_info(tensor.subclass or torch.Tensor).find(name)[2] not in PLAIN_MROS:
        return None
    return overridable_member(name, method)


def load_subclass_attr(vm: VM, tensor: FakeTensor, subclass: type, name: str) -> object:
    """Attribute `name` of the subclass that a fake represents, or of the tensor itself."""
    vm.env.facts.use_class(subclass)
    how, found, owner = vm.type_info(subclass).find(name)
    if how is PROPERTY:
        return load_property(vm, tensor, found)
    if how not in _METHOD_KINDS:
        check_class(tensor, name)
    own, real = tensor.__dict__, vm.trace.real(tensor)
    if name in own:
        return own[name]
    if real is not None and name in real.__dict__:
        source = vm.env.sources.find_or_const(tensor).child("attr", name)
        return wrap_values.wrap(vm.env, real.__dict__[name], source)
    if real is not None:
        vm.env.facts.guard("not_in_dict", vm.env.sources.find_or_const(tensor), name, key=name)
    if how is CLASS_METHOD:
        return bind_class_method(vm, found, subclass, owner, name)
    return CLASS_LOADERS[how](vm, tensor, name, found, owner)


_METHOD_KINDS = (FUNCTION, CLASS_METHOD, STATIC_METHOD, VALUE)
PLAIN_MROS = (None, *dict.fromkeys(base for cls in PLAIN_TYPES for base in cls.__mro__))


def tensor_member(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    """State of an environment tensor other than its metadata, guarded as an attribute of any other object."""
    with DisableTorchFunction(), DisableTorchDispatch(), warnings.catch_warnings():
        # eager warns once
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        value = getattr(real, name)
    return wrap_values.wrap(vm.env, value, vm.env.sources.find_or_const(tensor).child("member", name))


def _tensor_grad(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    if vm.env.log.is_set_on_tensor(tensor, name):
        return tensor.grad
    return tensor_member(vm, tensor, real, name)


def _tensor_is_leaf(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    before = tensor_member(vm, tensor, real, name)
    return tensor.is_leaf if vm.trace.writes.happened else before


def _tensor_retains(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    read = _refuse if vm.trace.autograd.flag_calls else tensor_member
    return read(vm, tensor, real, name)


def _tensor_history(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    """None can be guarded; anything else belongs to another autograd graph."""
    if getattr(real, name) is None and not (vm.trace.writes.happened and tensor.requires_grad):
        return tensor_member(vm, tensor, real, name)
    return _refuse(vm, tensor, real, name)


def _tensor_offset(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    """The method `storage_offset`, guarded where it returns zero. Other offsets (of rows) change between calls and
    are refused."""
    if real.storage_offset():
        return _refuse(vm, tensor, real, name)
    source = vm.env.sources.find_or_const(tensor).child("member", name).child("call", None)
    vm.env.facts.guard("eq", source, real.storage_offset())
    return tensor.storage_offset


def _refuse(vm: VM, tensor: FakeTensor, real: torch.Tensor, name: str) -> object:
    raise unsupported(f"Tensor.{name} of a tensor of the environment")


# Attributes that depend on whether a tensor was computed with gradients.
HISTORY_ATTRIBUTES = frozenset((
    "requires_grad", "grad_fn", "_grad_fn", "is_leaf", "requires_grad_", "retain_grad", "retains_grad",
    "register_hook",
))  # fmt: skip

# Tensor attributes that metadata guards do not cover.
TENSOR_STATE: dict[str, Callable[[VM, FakeTensor, torch.Tensor, str], object]] = {
    "grad": _tensor_grad,
    "is_leaf": _tensor_is_leaf,
    "retains_grad": _tensor_retains,
    "storage_offset": _tensor_offset,
    **dict.fromkeys(("grad_fn", "_grad_fn", "_base", "_backward_hooks"), _tensor_history),
    **dict.fromkeys(
        (
            "_version", "output_nr", "names", "is_shared", "is_pinned", "storage",
            "_typed_storage", "_storage", "is_view", "_is_view", "is_set_to", "_cdata", "_post_accumulate_grad_hooks",
            "has_names", "__reduce_ex__", "__reduce__", "__deepcopy__", "__setstate__", "name", "volatile", "_grad",
            "__dict__", "__cuda_array_interface__", "__array_interface__", "__dlpack__", "_is_zerotensor",
        ),
        _refuse,
    ),
}  # fmt: skip


def shape_of(tensor: FakeTensor) -> torch.Size:
    """`tensor.shape`, with symbolic sizes."""
    return torch.Size(fake_shape(tensor))


TENSOR_METADATA: dict[str, Callable[[FakeTensor], object]] = {
    "shape": shape_of, "dtype": lambda t: t.spec.dtype, "device": lambda t: t.spec.device,
    "ndim": lambda t: len(t.spec.shape), "__class__": class_of_fake,
    "_python_dispatch": lambda t: False,
    "is_cuda": lambda t: t.spec.device.type == "cuda", "is_meta": lambda t: t.spec.device.type == "meta",
    "is_sparse": lambda t: False, "is_quantized": lambda t: False, "is_nested": lambda t: False,
    "layout": lambda t: torch.strided,
}  # fmt: skip


def store_tensor_attr(vm: VM, tensor: FakeTensor, name: str, value: object) -> None:
    """`tensor.name = value`. Raises Unsupported for one of torch's attributes on an environment tensor."""
    vm.class_of(value)  # raises for an unknown class: the class may decide where torch stores the value
    if tensor.subclass is not None or vm.trace.call.modes:
        overridden = _overridden_member(vm, tensor, name, "__set__")
        if overridden is not None:
            vm.trace.call.call_handlers(overridden, (tensor, value), None)
            return None
    setter = TENSOR_SETTERS.get(name)
    if setter is not None:
        return setter(vm, tensor, value)
    if tensor.subclass is not None:
        how, _, owner = vm.type_info(tensor.subclass).find(name)
        vm.env.facts.use_class(tensor.subclass)
        if owner not in PLAIN_MROS and how not in _METHOD_KINDS:
            check_class(tensor, name)
    if name in OF_FAKES:
        raise unsupported(f"attribute {name!r} of a tensor is set, a name that fake tensors reserve")
    if vm.trace.is_environment(tensor):
        if hasattr(torch.Tensor, name):
            raise unsupported(f"attribute {name!r} of a tensor of the environment is set", UNSUPPORTED_EFFECT)
        vm.env.log.set_tensor_attribute(tensor, name, value)
    else:
        vm.env.log.defer_call(Call(setattr, (tensor, name, value)))
    setattr(tensor, name, value)
