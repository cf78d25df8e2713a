"""Storages: those of the environment's tensors, and their sizes, which are guarded. A storage is resized after the graph,
which does not use its tensors any more then."""

from __future__ import annotations

import torch

from smelt.capture.base.call_handlers import TENSOR_METHODS, function, method, unsupported
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.stdlib.output.deferred_calls import defer
from smelt.capture.vm.vm import VM
from smelt.graph.ir import argument_nodes
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.symbolic.sym_numbers import specialize

_Storage = torch.UntypedStorage


def _storage_of(vm: VM, tensor: FakeTensor) -> object:
    """The storage of a tensor of the environment: an object of the environment. No other tensor's can be read."""
    real = vm.trace.real(tensor)
    if real is None or tensor.subclass is not None:
        return run_native(vm, torch.Tensor.untyped_storage, (tensor,), {})
    source = vm.env.sources.find_or_const(tensor).child("member", "untyped_storage").child("call", None)
    with vm.trace.paused():
        storage = real.untyped_storage()
    return wrap_values.wrap(vm.env, storage, source)


TENSOR_METHODS["untyped_storage"] = _storage_of


@method(_Storage, "nbytes", "__len__")
def _size(vm: VM, storage: torch.UntypedStorage) -> object:
    resized = [size for other, _, size in vm.held.resized if other is storage]
    if resized:
        return resized[-1]
    source = vm.env.sources.find(storage)
    if source is None:
        return storage.nbytes()
    return wrap_values.wrap(vm.env, storage.nbytes(), source.child("member", "nbytes").child("call", None))


function(_Storage.size)(lambda vm, args, kwargs: _size(vm, *args, **kwargs))


@method(_Storage, "resize_")
def _resize(vm: VM, storage: torch.UntypedStorage, size: object) -> object:
    """Resize the storage after the graph. Where the graph may break, it breaks here, so that later operators may use it."""
    size, is_known = specialize(size), vm.env.sources.find(storage) is not None and storage.resizable()
    if vm.assumptions.may_break or not is_known or type(size) is not int or size < 0:
        raise unsupported("UntypedStorage.resize_", UNSUPPORTED_EFFECT)
    vm.held.resized.append((storage, len(vm.trace.tape.entries), size))
    defer(vm, _Storage.resize_, storage, size)
    return storage


def check_resized(vm: VM) -> None:
    """Raise Unsupported where an operator uses a tensor of a storage that was resized before, or a backward may."""
    for storage, count, _ in vm.held.resized:
        with vm.trace.paused():
            reals = ((f, vm.trace.real(f)) for f in vm.trace.inputs)
            keys = {f.storage_key for f, x in reals if x is not None and x.untyped_storage() is storage}
        records = vm.trace.tape.entries
        fakes = (*vm.trace.inputs, *(f for record in records for f in fakes_in(record.out)))
        nodes = {f.aten_node for f in fakes if f.storage_key in keys}
        is_used = any(node in nodes for record in records[count:] for node in argument_nodes(record.node))
        if is_used or any(f.requires_grad for f in vm.trace.inputs):
            raise unsupported(
                "a storage that is resized before it is used, or under gradients", UNSUPPORTED_EFFECT
            )
