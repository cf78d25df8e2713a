"""`len` of tensors, containers and user classes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sized
from typing import SupportsIndex, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import METHODS, Args, Kwargs, breakable, builtin
from smelt.capture.base.value_kinds import CONTAINER_BASES, MISSING
from smelt.capture.base.vm_frames import with_result_handler
from smelt.capture.environment import container_contents
from smelt.capture.semantics import attributes, number_semantics, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.method_lookup import may_define_operators
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.symbolic_ranges import SEQUENCE_PROXIES, SymbolicList, SymbolicRange


@builtin(len)
@breakable
def _len(vm: VM, args: Args, kwargs: Kwargs) -> int:
    (obj,) = args
    call_site = vm.frames.take_call_site()
    if type(obj) is FakeTensor and is_handled(vm.trace.call, (obj,)):
        return checked_length(vm.call_native(torch.Tensor.__len__, (obj,)))
    if type(obj) is FakeTensor:
        if not obj.spec.shape:
            raise TypeError("len() of a 0-d tensor")
        return attributes.shape_of(obj)[0]
    if type(obj) in SEQUENCE_PROXIES:
        length: int = number_semantics.as_symbolic_list(cast("SymbolicRange | SymbolicList", obj)).length
        return length
    found = python_method(vm, obj, "__len__")
    if found is not None:
        vm.frames.call_site = with_result_handler(call_site, result_polyfills.checked_length)
        return checked_length(vm.call_function(found, (obj,)))
    handler = METHODS.get((type(obj), "__len__"))
    return container_len(vm, obj) if handler is None else cast(int, handler(vm, obj))


def checked_length(found: object) -> int:
    """Result of `__len__` as a length. Raises TypeError or ValueError as the interpreter would."""
    length = operator.index(cast(SupportsIndex, found))
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return length


def container_len(vm: VM, obj: object) -> int:
    """`len(obj)` without Python code; guarded for an environment container."""
    env = vm.env
    env.facts.check_readable(obj, "__len__")
    if env.native_views.stale:
        container_contents.refresh_copies(env)
    if isinstance(obj, CONTAINER_BASES) and id(obj) in env.sources:
        source = env.sources[id(obj)]
        env.facts.guard("len", source, env.log.length(obj))
        for key in env.log.written_keys(obj) if isinstance(obj, dict) else ():
            present = env.log.original_entry(obj, key) is not MISSING  # decides whether a store added it
            env.facts.guard("contains", source, (key, present), key=key)
    return len(cast(Sized, env.overlay.now(obj)))


def call_length_hint(vm: VM, obj: object) -> None:
    """Run the user code of `operator.length_hint(obj)`."""
    if type(obj) is FakeTensor:
        if is_handled(vm.trace.call, (obj,)):
            vm.call_native(torch.Tensor.__len__, (obj,))
        return
    if not may_define_operators(type(obj)):
        return
    for name in ("__len__", "__length_hint__"):
        found = python_method(vm, obj, name)
        if found is not None:
            with contextlib.suppress(TypeError):
                checked_length(vm.call_function(found, (obj,)))
            return
