"""Storages: those of the environment's tensors, and their sizes, which are guarded."""

from __future__ import annotations

import torch

from smelt.capture.base.call_handlers import TENSOR_METHODS, function, method
from smelt.capture.environment import wrap_values
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor

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
    source = vm.env.sources.find(storage)
    if source is None:
        return storage.nbytes()
    return wrap_values.wrap(vm.env, storage.nbytes(), source.child("member", "nbytes").child("call", None))


function(_Storage.size)(lambda vm, args, kwargs: _size(vm, *args, **kwargs))
