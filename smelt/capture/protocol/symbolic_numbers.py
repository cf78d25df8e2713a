"""Symbolic numbers in the VM: what an operator or a native call does that is given one.

Operators of tensors take them as they are, functions on numbers give expressions (`trace.symbols.FUNCTIONS`), and whatever
else runs natively gets the plain number, pinned: code of C and of the standard library looks at exact types.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from smelt.capture.base.values import FunctionType
from smelt.capture.machine.vm import VM
from smelt.trace import symbols
from smelt.trace.fake import FakeTensor
from smelt.trace.symbols import NUMBERS, Int, plain, plain_parts

_OPERANDS = NUMBERS | {int, float, bool, FakeTensor}
_OPERATORS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)


def binary(vm: VM, fn: Any, left: Any, right: Any) -> Any:
    """`fn(left, right)` of which one is a symbolic number: with numbers and tensors an expression or an operator, with
    anything else on the plain number."""
    if type(left) in _OPERANDS and type(right) in _OPERANDS:
        return fn(left, right)
    return vm.binary(fn, plain(left), plain(right))


def native_call(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Any:
    """What a function on numbers gives for symbolic ones; NotImplemented where there is no expression for it."""
    if not any(type(a) in NUMBERS for a in args):
        return NotImplemented
    if fn in (torch.tensor, torch.as_tensor) and len(args) == 1:
        return _tensor(*args, **(kwargs or {}))
    try:
        return symbols.apply(fn, args, kwargs)
    except TypeError:  # unhashable
        return NotImplemented


def _tensor(number: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    """`torch.tensor(number)`, whose value the graph computes."""
    if options:
        return NotImplemented
    own = torch.int64 if type(number) is Int else torch.get_default_dtype()
    return torch.full((), number, dtype=dtype or own, device=device)


def native_arguments(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
    """The arguments as native code may see them."""
    if takes_symbols(fn):
        return args, kwargs
    return [plain_parts(a) for a in args], kwargs and {k: plain_parts(v) for k, v in kwargs.items()}


def takes_symbols(fn: Any) -> bool:
    """Whether `fn` is a function of torch written in C: those know symbolic numbers, or ask them for their value."""
    kind = type(fn)
    if kind in _OPERATORS:
        return True
    if kind is functools.partial:
        return takes_symbols(fn.func)
    if isinstance(fn, type):
        return issubclass(fn, _HOLDERS)
    if kind is types.BuiltinFunctionType and fn in _HOLDING:
        return True
    if kind in _UNBOUND:
        return issubclass(torch.Tensor, fn.__objclass__) and fn.__objclass__ is not object
    if kind in _BOUND:
        owner = fn.__self__
        if owner is None:
            return getattr(torch._C._VariableFunctions, fn.__name__, None) is fn
        return isinstance(owner, (torch.Tensor, *_HOLDERS)) or _module(owner).startswith("torch")
    return kind is FunctionType and (fn.__module__ == "torch._tensor" or fn in _FUNCTIONAL)


# Functions in Python that hand the number on to one of C and at most compare it, or ask for its class.
_FUNCTIONAL = frozenset({F.leaky_relu, F.elu, F.celu, F.hardtanh, F.threshold, torch.is_tensor})


# Methods of containers that look their first argument up, or hash it.
LOOKUPS = frozenset(
    (
        "get", "pop", "setdefault", "__getitem__", "__setitem__", "__delitem__", "__contains__", "insert", "index",
        "count", "remove", "add", "discard", "rotate",
    )
)  # fmt: skip
_HOLDERS = (list, dict, tuple, collections.deque)  # hold what they are given, and compare it at most
_HOLDING: frozenset[Any] = frozenset({sorted, len, bool, iter, next})


def is_number(value: Any) -> bool:
    return type(value) in NUMBERS or type(value) is int or type(value) is float


def _module(owner: Any) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return str(getattr(owner, "__module__", None) or type(owner).__module__)


def load_attr(vm: VM, number: Any, name: str) -> Any:
    """`number.name`."""
    if name == "real":
        return number
    if name == "__class__":
        return vm.class_of(number)
    return getattr(plain(number), name)
