"""`len`, as the machine asks it of tensors, containers and the user's classes."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sized
from typing import SupportsIndex, cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, builtin, hands_on
from smelt.capture.base.value_kinds import CONTAINER_BASES
from smelt.capture.base.vm_frames import through
from smelt.capture.environment import container_contents
from smelt.capture.semantics import attributes, number_semantics, result_polyfills
from smelt.capture.semantics.attributes import python_method
from smelt.capture.semantics.attributes.method_lookup import may_define_operators
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.symbolic_ranges import ROWS, SymbolicList, SymbolicRange


@builtin(len)
@hands_on
def _len(vm: VM, args: Args, kwargs: Kwargs) -> int:
    (obj,) = args
    tail = vm.frames.take_tail()
    if type(obj) is FakeTensor and is_handled(vm.trace.call, (obj,)):
        return checked_len(vm.native(torch.Tensor.__len__, (obj,)))
    if type(obj) is FakeTensor:
        if not obj.spec.shape:
            raise TypeError("len() of a 0-d tensor")
        return attributes.shape_of(obj)[0]
    if type(obj) in ROWS:
        length: int = number_semantics.listed(cast("SymbolicRange | SymbolicList", obj)).length
        return length
    found = python_method(vm, obj, "__len__")
    if found is not None:
        vm.frames.tail = through(tail, result_polyfills.length)
        return checked_len(vm.call_function(found, (obj,)))
    return container_len(vm, obj)


def checked_len(found: object) -> int:
    """What `__len__` returned, as a length. Raises TypeError or ValueError as the interpreter would."""
    length = operator.index(cast(SupportsIndex, found))
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return length


def container_len(vm: VM, obj: object) -> int:
    """`len(obj)` where no Python code is behind it; that of an outside container is guarded."""
    env = vm.env
    env.facts.check_readable(obj, "__len__")
    if env.opened.stale:
        container_contents.update_copies(env)
    if isinstance(obj, CONTAINER_BASES) and id(obj) in env.sources:
        env.facts.guard("len", env.sources[id(obj)], env.log.length(obj))
    return len(cast(Sized, env.overlay.now(obj)))


def ask_length(vm: VM, obj: object) -> None:
    """What `operator.length_hint(obj)` runs of the user's code."""
    if type(obj) is FakeTensor:
        if is_handled(vm.trace.call, (obj,)):
            vm.native(torch.Tensor.__len__, (obj,))
        return
    if not may_define_operators(type(obj)):
        return
    for name in ("__len__", "__length_hint__"):
        found = python_method(vm, obj, name)
        if found is not None:
            with contextlib.suppress(TypeError):
                checked_len(vm.call_function(found, (obj,)))
            return
