"""Method lookup on classes: the VM executes methods written in Python, native code the others."""

from __future__ import annotations

import operator
from typing import TypeVar, cast

from smelt.capture.base.type_lookup import FUNCTION, type_find
from smelt.capture.base.value_kinds import CONTAINER_TYPES, LEAF_TYPES, FunctionType
from smelt.capture.base.vm_frames import VM_ITERABLES, Coroutine, Generator, VMCallable
from smelt.capture.proxies.array_proxy import ArrayProxy
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.tracing.symbolic.symbolic_ranges import PROXY_EXAMPLES

T = TypeVar("T")
_VM_TYPES = (
    FakeTensor, Generator, Coroutine, VMCallable, NumberProxy, *VM_ITERABLES, *NUMBERS, *PROXY_EXAMPLES
)  # fmt: skip
SIMPLE_TYPES = LEAF_TYPES | {FakeTensor, tuple, FunctionType, type}


def may_define_operators(kind: type) -> bool:
    """Whether instances of the class may have operators written in Python."""
    return kind not in SIMPLE_TYPES and kind not in CONTAINER_TYPES


def python_method(vm: VM, obj: object, name: str) -> FunctionType | None:
    """The special method `name` of the class of `obj` if it is written in Python, else None. Either result is guarded."""
    cls = type(obj)
    if cls in LEAF_TYPES or cls in _VM_TYPES or cls in CONTAINER_TYPES:
        return None
    vm.env.facts.use_lookups(cls)
    how, found, _ = vm.type_info(cls).find(name)
    return found if how is FUNCTION else None


def plain_index(vm: VM, value: T) -> T | int:
    """`value` as C code reads an index: the number that an `__index__` in Python returns, or `value` itself."""
    kind = type(value)
    if not may_define_operators(kind) or kind is ArrayProxy or python_method(vm, value, "__index__") is None:
        return value
    return cast(int, vm.call_native(operator.index, (value,)))


def descriptor_method(vm: VM, descriptor: object, name: str) -> object:
    """Method `name` (`__get__`, `__set__`) of a descriptor's class, guarded; MISSING if there is none."""
    vm.env.facts.use_lookups(type(descriptor))
    return type_find(type(descriptor), name)
