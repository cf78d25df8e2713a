"""Symbolic numbers in the VM: what an operator or a native call does that is given one.

Operators of tensors take them as they are, functions on numbers give expressions (`trace.number_functions.FUNCTIONS`), and
whatever else runs natively gets the plain number, pinned: code of C and of the standard library looks at exact types.
"""

from __future__ import annotations

import collections
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F

from smelt._native import isinstance
from smelt.capture.base.value_kinds import FunctionType
from smelt.capture.vm.vm import VM
from smelt.torch_private import OpOverload, OpOverloadPacket, enter_vmap, leave_batch, variable_functions
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic import number_functions, numpy_ints
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, plain_parts
from smelt.tracing.symbolic.numpy_ints import NumpyInt
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, plain
from smelt.tracing.symbolic.symbolic_ranges import ROWS, SymbolicList, SymbolicRange, settled

_OPERANDS = NUMBERS | {int, float, bool, FakeTensor}
_NESTED = (list, tuple, torch.Size)  # what `torch.tensor` takes for rows
_OPERATORS = (OpOverloadPacket, OpOverload)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)


def binary(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` of which one is a symbolic number: with numbers and tensors an expression or an operator, with
    anything else on the plain number."""
    if type(left) in _OPERANDS and type(right) in _OPERANDS:
        return fn(left, right)
    if np.int64 in (type(left), type(right)):
        return of_numpy(vm, fn, left, right)
    return vm.binary(fn, plain(left), plain(right))


def of_numpy(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """The same where one is a `numpy.int64`: such a number too, or on the plain numbers. Tensors take it as an int."""
    if type(left) is FakeTensor or type(right) is FakeTensor:
        return vm.binary(fn, numpy_ints.numbers_in(left), numpy_ints.numbers_in(right))
    found = numpy_ints.operate(fn, left, right)
    return vm.binary(fn, settled(plain(left)), settled(plain(right))) if found is NotImplemented else found


def native_call(fn: object, args: Sequence[object], kwargs: Mapping[str, object] | None) -> object:
    """What a function on numbers gives for symbolic ones; NotImplemented where there is no expression for it."""
    if len(args) == 1 and _makes_tensor(fn) and _is_of_rows(args[0]):
        return _tensor_of_rows(args[0], kwargs or {})
    if len(args) == 1 and type(args[0]) in _NESTED and has_symbols(args[0]) and _makes_tensor(fn):
        return _tensor_of(args[0], kwargs or {})
    if fn is math.prod and len(args) == 1 and isinstance(args[0], (list, tuple)) and not kwargs:
        factors = list(args[0])
        known = has_symbols(factors) and all(map(is_number, factors))
        return functools.reduce(operator.mul, factors) if known else NotImplemented
    if len(args) == 1 and not kwargs and _is_numpys(fn):
        return numpy_ints.FUNCTIONS[fn](args[0])
    if fn is int or fn is float or _makes_tensor(fn):
        args = [numpy_ints.numbers_in(a) for a in args]
    if not any(type(a) in NUMBERS for a in args):
        return NotImplemented
    if _makes_tensor(fn) and len(args) == 1:
        return _tensor(args[0], kwargs or {})
    try:
        return number_functions.apply(fn, args, kwargs)
    except TypeError:  # unhashable
        return NotImplemented


def in_tensor(vm: VM, tensor: FakeTensor) -> object:
    """The symbolic number that a tensor of one float holds, where it is known before the graph runs; else the tensor."""
    if tensor.dim() or not tensor.is_floating_point() or is_handled(vm.trace.call, (tensor,)):
        return tensor
    number = None if vm.trace.known.value(tensor) is not None else vm.trace.known.number(tensor)
    return tensor if number is None else number


def _tensor(number: object, options: Mapping[str, object]) -> object:
    """`torch.tensor(number, **options)`, whose value the graph computes; NotImplemented for other options than these two."""
    if options.keys() - {"dtype", "device"}:
        return NotImplemented
    own = torch.int64 if type(number) is Int else torch.get_default_dtype()
    dtype = cast("torch.dtype | None", options.get("dtype"))
    device = cast("torch.device | None", options.get("device"))
    return torch.full((), cast(float, number), dtype=dtype or own, device=device)


def _is_numpys(fn: object) -> bool:
    """Whether `fn` is a function of NumPy that gives such an int."""
    return fn is np.prod or fn is np.int64


def _makes_tensor(fn: object) -> bool:
    return fn is torch.tensor or fn is torch.as_tensor


def _tensor_of(values: object, options: Mapping[str, object]) -> object:
    """The same for nested lists of numbers."""
    found: list[object] = []
    shape = _shape(values, found)
    integers = all(type(v) in (int, Int) for v in found)
    if shape is None or not (integers or all(type(v) in (int, Int, float, Float) for v in found)):
        return NotImplemented
    dtype = options.get("dtype") or (torch.int64 if integers else torch.get_default_dtype())
    numbers = [_tensor(v, {**options, "dtype": dtype}) for v in found]
    if any(n is NotImplemented for n in numbers):
        return NotImplemented
    return torch.stack(cast("list[torch.Tensor]", numbers)).reshape(shape)


def _is_of_rows(values: object) -> bool:
    """Whether it is a range or list of symbolic length, or several of one length."""
    if type(values) not in _NESTED:
        return type(values) in ROWS
    rows = cast("Sequence[SymbolicRange | SymbolicList]", values)
    if not rows or not all(type(row) in ROWS for row in rows):
        return False
    first, *others = (listed(row).length for row in rows)
    return all(length == first for length in others)


def _tensor_of_rows(values: object, options: Mapping[str, object]) -> object:
    """`torch.tensor(values, **options)` of those; NotImplemented for other options than these two."""
    if options.keys() - {"dtype", "device"}:
        return NotImplemented
    if type(values) in ROWS:
        return listed(cast("SymbolicRange | SymbolicList", values)).tensor(**options)  # type: ignore[arg-type]
    rows = cast("Sequence[SymbolicRange | SymbolicList]", values)
    return torch.stack([listed(row).tensor(**options) for row in rows])  # type: ignore[arg-type]


def listed(row: SymbolicRange | SymbolicList) -> SymbolicList:
    """A list that has the elements of `row`."""
    return row.listed() if type(row) is SymbolicRange else cast(SymbolicList, row)


def _shape(values: object, found: list[object]) -> list[int] | None:
    """Of nested lists whose numbers are added to `found`; None of those that are no rectangle, or that hold nothing."""
    if type(values) not in _NESTED:
        found.append(values)
        return []
    rows = [_shape(row, found) for row in cast("Sequence[object]", values)]
    return None if not rows or any(row is None or row != rows[0] for row in rows) else [len(rows), *rows[0]]  # type: ignore[misc]


def native_arguments(
    fn: object, args: Sequence[object], kwargs: Mapping[str, object] | None, has_standins: bool = False
) -> tuple[Sequence[object], Mapping[str, object] | None]:
    """`args` and `kwargs` as the native code `fn` may see them: symbolic numbers that it does not know are pinned.
    `has_standins`: there may be lists and ranges of symbolic length among them."""
    if _joins(fn, args):
        return args, kwargs
    if has_standins and takes_symbols(fn):
        args = [numpy_ints.numbers_in(a) for a in args]
        kwargs = kwargs and {k: numpy_ints.numbers_in(v) for k, v in kwargs.items()}
    if has_standins and not _holds(fn):
        args = [settled(a) for a in args]
        kwargs = kwargs and {k: settled(v) for k, v in kwargs.items()}
    if takes_symbols(fn):
        return args, kwargs
    return [plain_parts(a) for a in args], kwargs and {k: plain_parts(v) for k, v in kwargs.items()}


def _joins(fn: object, args: Sequence[object]) -> bool:
    """Whether this is `a + b` or `a * 2` of sequences, which hold what was in them."""
    return (
        type(fn) is types.BuiltinFunctionType and fn in _JOINING and all(isinstance(a, _JOINED) for a in args)
    )


def _holds(fn: object) -> bool:
    """Whether `fn` is a method of a container that holds what it is given, and does not look at it."""
    if getattr(fn, "__name__", "") not in _PUTTING:
        return False
    owner = getattr(fn, "__objclass__", None) or type(getattr(fn, "__self__", None))
    return issubclass(owner, _HOLDERS)


def takes_symbols(fn: object) -> bool:
    """Whether `fn` is a function of torch written in C: those know symbolic numbers, or ask them for their value."""
    kind = type(fn)
    if kind in _OPERATORS:
        return True
    if type(fn) is functools.partial:
        return takes_symbols(fn.func)
    if isinstance(fn, type):
        return issubclass(fn, _HOLDERS) or fn is slice
    if kind is types.BuiltinFunctionType and fn in _HOLDING:
        return True
    if kind in _UNBOUND:
        descriptor = cast(types.MethodDescriptorType, fn)
        cls = descriptor.__objclass__
        compares = cls in _HOLDERS and descriptor.__name__ in _COMPARING
        return compares or (issubclass(torch.Tensor, cls) and cls is not object)
    if kind in _BOUND:
        return _is_method_of_torch(cast(types.BuiltinFunctionType, fn))
    return type(fn) is FunctionType and (fn.__module__ == "torch._tensor" or fn in _FUNCTIONAL)


def _is_method_of_torch(fn: types.BuiltinFunctionType) -> bool:
    """Whether a bound function of C is one of `torch.*`, or a method of a tensor, a container or an object of torch."""
    owner: object = fn.__self__
    if owner is None:
        return getattr(variable_functions, fn.__name__, None) is fn
    return isinstance(owner, (torch.Tensor, *_HOLDERS)) or _module(owner).startswith("torch")


# Functions in Python that hand the number on to one of C and at most compare it, or ask for its class.
_FUNCTIONAL: frozenset[object] = frozenset(
    {
        F.leaky_relu, F.elu, F.celu, F.hardtanh, F.threshold, torch.is_tensor,
        F.affine_grid, F.pad, F.interpolate, F.upsample, F.layer_norm, F.rms_norm, F.unfold, F.fold,
        F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, torch.split,
    }
)  # fmt: skip


# Methods of containers that look their first argument up, or hash it.
LOOKUPS = frozenset(
    (
        "get", "pop", "setdefault", "__getitem__", "__setitem__", "__delitem__", "__contains__", "insert", "index",
        "count", "remove", "add", "discard", "rotate",
    )
)  # fmt: skip
_HOLDERS = (list, dict, tuple, collections.deque)  # hold what they are given, and compare it at most
_COMPARING = frozenset(("count", "index"))
_PUTTING = frozenset(("append", "appendleft", "insert", "setdefault", "__setitem__"))
_HOLDING: frozenset[object] = frozenset(
    {sorted, len, bool, iter, next, tuple.__new__, enter_vmap, leave_batch}
)
_JOINING: frozenset[object] = frozenset({operator.add, operator.iadd, operator.mul, operator.imul})
_JOINED = (list, tuple, int)


def is_number(value: object) -> bool:
    """Whether `value` is an int or float, symbolic or not; bools are none."""
    return type(value) in NUMBERS or type(value) is int or type(value) is float


def _module(owner: object) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return str(getattr(owner, "__module__", None) or type(owner).__module__)


def load_attr_of_standin(vm: VM, obj: SymbolicRange | SymbolicList | NumpyInt, name: str) -> object:
    """`obj.name` of what is symbolic: but for the class, the numbers are needed."""
    return vm.class_of(obj) if name == "__class__" else getattr(obj.plain(), name)


def load_attr(vm: VM, number: object, name: str) -> object:
    """`number.name` of a symbolic number: all but `real` and the class are those of the plain number, which is pinned."""
    if name == "real":
        return number
    if name == "__class__":
        return vm.class_of(number)
    return getattr(plain(number), name)
