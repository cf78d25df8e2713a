"""Operators and native calls on symbolic numbers.

Tensor operators accept symbolic numbers; functions of numbers have expressions (`tracing/symbolic/number_functions.py`).
Everything else that runs natively receives the plain number, which specializes: C code and the standard library check exact
types.
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
from smelt.torch_private import (
    NestedTensor,
    OpOverload,
    OpOverloadPacket,
    enter_vmap,
    leave_batch,
    variable_functions,
)
from smelt.tracing.composites import symbolic_parameters
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic import number_functions, numpy_numbers
from smelt.tracing.symbolic.numbers_in_containers import has_symbols, specialize_nested
from smelt.tracing.symbolic.numpy_numbers import NUMPY_NUMBERS, NumpyNumber
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, specialize
from smelt.tracing.symbolic.symbolic_ranges import (
    SEQUENCE_PROXIES,
    SymbolicList,
    SymbolicRange,
    without_proxies,
)

_OPERANDS = NUMBERS | {int, float, bool, FakeTensor, NestedTensor}
_NESTED = (list, tuple, torch.Size)  # sequences that `torch.tensor` accepts as rows
_OPERATORS = (OpOverloadPacket, OpOverload)
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)


def binary(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` of a symbolic operand: an expression, an operator of numbers and tensors, or the plain number."""
    if type(left) in _OPERANDS and type(right) in _OPERANDS:
        return fn(left, right)
    if np.int64 in (type(left), type(right)):
        return numpy_binary(vm, fn, left, right)
    return vm.binary(fn, specialize(left), specialize(right))


def numpy_binary(vm: VM, fn: Callable[..., object], left: object, right: object) -> object:
    """`fn(left, right)` of a symbolic `numpy.int64`: symbolic if possible, else plain. For tensors it is an int."""
    if type(left) is FakeTensor or type(right) is FakeTensor:
        return vm.binary(
            fn, numpy_numbers.unwrap_numpy_numbers(left), numpy_numbers.unwrap_numpy_numbers(right)
        )
    found = numpy_numbers.operate(fn, left, right)
    if found is NotImplemented:
        return vm.binary(fn, without_proxies(specialize(left)), without_proxies(specialize(right)))
    return found


def native_call(fn: object, args: Sequence[object], kwargs: Mapping[str, object] | None) -> object:
    """Result of `fn` on symbolic numbers; NotImplemented if there is no expression for it."""
    if len(args) == 1 and _is_tensor_constructor(fn) and _is_rows(args[0]):
        return _rows_tensor(args[0], kwargs or {})
    if len(args) == 1 and type(args[0]) in _NESTED and has_symbols(args[0]) and _is_tensor_constructor(fn):
        return _nested_tensor(args[0], kwargs or {})
    if fn is math.prod and len(args) == 1 and isinstance(args[0], (list, tuple)) and not kwargs:
        factors = list(args[0])
        known = has_symbols(factors) and all(map(is_number, factors))
        return functools.reduce(operator.mul, factors) if known else NotImplemented
    if len(args) == 1 and not kwargs and _returns_numpy_int(fn):
        return numpy_numbers.FUNCTIONS[fn](args[0])
    if _is_tensor_constructor(fn) and len(args) == 1 and type(args[0]) in NUMPY_NUMBERS:
        dtype = torch.from_numpy(np.zeros(1, args[0].scalar)).dtype  # type: ignore[attr-defined]
        return _scalar_tensor(numpy_numbers.unwrap_numpy_numbers(args[0]), {"dtype": dtype, **(kwargs or {})})
    if fn is int or fn is float:
        args = [numpy_numbers.unwrap_numpy_numbers(a) for a in args]
    if not any(type(a) in NUMBERS for a in args):
        return NotImplemented
    if _is_tensor_constructor(fn) and len(args) == 1:
        return _scalar_tensor(args[0], kwargs or {})
    try:
        return number_functions.apply(fn, args, kwargs)
    except TypeError:  # unhashable
        return NotImplemented


def symbolic_item(vm: VM, tensor: FakeTensor) -> object:
    """The symbolic number in a floating-point tensor of one element if known before the graph runs, else the tensor."""
    if tensor.elem.numel() != 1 or not tensor.is_floating_point() or is_handled(vm.trace.call, (tensor,)):
        return tensor
    number = None if vm.trace.constants.value(tensor) is not None else vm.trace.constants.number(tensor)
    return tensor if number is None else number


def _scalar_tensor(number: object, options: Mapping[str, object]) -> object:
    """`torch.tensor(number, **options)`, computed by the graph; NotImplemented for options other than dtype and device."""
    if options.keys() - {"dtype", "device"}:
        return NotImplemented
    default_dtype = torch.int64 if type(number) is Int else torch.get_default_dtype()
    dtype = cast("torch.dtype | None", options.get("dtype"))
    device = cast("torch.device | None", options.get("device"))
    return torch.full((), cast(float, number), dtype=dtype or default_dtype, device=device)


def _returns_numpy_int(fn: object) -> bool:
    """Whether `fn` is a NumPy function that returns a `numpy.int64`."""
    return fn is np.prod or fn is np.int64


def _is_tensor_constructor(fn: object) -> bool:
    return fn is torch.tensor or fn is torch.as_tensor


def _nested_tensor(values: object, options: Mapping[str, object]) -> object:
    """`torch.tensor(values, **options)` of nested lists of numbers."""
    numbers: list[object] = []
    shape = _shape(values, numbers)
    integers = all(type(v) in (int, Int) for v in numbers)
    if shape is None or not (integers or all(type(v) in (int, Int, float, Float) for v in numbers)):
        return NotImplemented
    dtype = options.get("dtype") or (torch.int64 if integers else torch.get_default_dtype())
    elements = [_scalar_tensor(v, {**options, "dtype": dtype}) for v in numbers]
    if any(n is NotImplemented for n in elements):
        return NotImplemented
    return torch.stack(cast("list[torch.Tensor]", elements)).reshape(shape)


def _is_rows(values: object) -> bool:
    """Whether `values` is a range or list of symbolic length, or several of equal length."""
    if type(values) not in _NESTED:
        return type(values) in SEQUENCE_PROXIES
    rows = cast("Sequence[SymbolicRange | SymbolicList]", values)
    if not rows or not all(type(row) in SEQUENCE_PROXIES for row in rows):
        return False
    first, *others = (as_symbolic_list(row).length for row in rows)
    return all(length == first for length in others)


def _rows_tensor(values: object, options: Mapping[str, object]) -> object:
    """`torch.tensor(values, **options)` of such rows; NotImplemented for options other than dtype and device."""
    if options.keys() - {"dtype", "device"}:
        return NotImplemented
    if type(values) in SEQUENCE_PROXIES:
        return as_symbolic_list(cast("SymbolicRange | SymbolicList", values)).tensor(**options)  # type: ignore[arg-type]
    rows = cast("Sequence[SymbolicRange | SymbolicList]", values)
    return torch.stack([as_symbolic_list(row).tensor(**options) for row in rows])  # type: ignore[arg-type]


def as_symbolic_list(row: SymbolicRange | SymbolicList) -> SymbolicList:
    """`row` as a list."""
    return row.listed() if type(row) is SymbolicRange else cast(SymbolicList, row)


def _shape(values: object, numbers: list[object]) -> list[int] | None:
    """Shape of nested lists, whose numbers are appended to `found`; None if they are ragged or empty."""
    if type(values) not in _NESTED:
        numbers.append(values)
        return []
    rows = [_shape(row, numbers) for row in cast("Sequence[object]", values)]
    return None if not rows or any(row is None or row != rows[0] for row in rows) else [len(rows), *rows[0]]  # type: ignore[misc]


def native_arguments(
    fn: object, args: Sequence[object], kwargs: Mapping[str, object] | None, has_proxies: bool = False
) -> tuple[Sequence[object], Mapping[str, object] | None]:
    """`args` and `kwargs` for the native function `fn`: symbolic numbers that it does not support are specialized.
    `has_proxies`: lists and ranges of symbolic length may be among the arguments."""
    if _concatenates(fn, args):
        return args, kwargs
    if has_proxies and takes_symbols(fn) and not _is_tensor_constructor(fn):
        args = [numpy_numbers.unwrap_numpy_numbers(a) for a in args]
        kwargs = kwargs and {k: numpy_numbers.unwrap_numpy_numbers(v) for k, v in kwargs.items()}
    if has_proxies and not _stores_argument(fn):
        args = [without_proxies(a) for a in args]
        kwargs = kwargs and {k: without_proxies(v) for k, v in kwargs.items()}
    if takes_symbols(fn):
        return args, kwargs
    return [specialize_nested(a) for a in args], kwargs and {
        k: specialize_nested(v) for k, v in kwargs.items()
    }


def _concatenates(fn: object, args: Sequence[object]) -> bool:
    """Whether the call is `a + b` or `a * 2` of sequences, whose elements stay as they are."""
    return (
        type(fn) is types.BuiltinFunctionType
        and fn in _SEQUENCE_OPERATORS
        and all(isinstance(a, _SEQUENCE_OPERANDS) for a in args)
    )


def _stores_argument(fn: object) -> bool:
    """Whether `fn` is a container method that stores its argument without reading it."""
    if getattr(fn, "__name__", "") not in _STORING_METHODS:
        return False
    owner = getattr(fn, "__objclass__", None) or type(getattr(fn, "__self__", None))
    return issubclass(owner, _CONTAINERS)


def takes_symbols(fn: object) -> bool:
    """Whether `fn` accepts symbolic numbers: C functions of torch do, or specialize them themselves."""
    kind = type(fn)
    if kind in _OPERATORS:
        return True
    if type(fn) is functools.partial:
        return takes_symbols(fn.func)
    if isinstance(fn, type):
        return issubclass(fn, _CONTAINERS) or fn is slice
    if kind is types.BuiltinFunctionType and fn in _SYMBOL_AWARE_BUILTINS:
        return True
    if kind in _UNBOUND:
        descriptor = cast(types.MethodDescriptorType, fn)
        cls = descriptor.__objclass__
        compares = cls in _CONTAINERS and descriptor.__name__ in _COMPARING_METHODS
        return compares or (issubclass(torch.Tensor, cls) and cls is not object)
    if kind in _BOUND:
        return _is_method_of_torch(cast(types.BuiltinFunctionType, fn))
    if type(fn) is not FunctionType:
        return False
    return fn.__module__ == "torch._tensor" or fn in _SYMBOL_AWARE_PYTHON or fn in symbolic_parameters.PASSING


def _is_method_of_torch(fn: types.BuiltinFunctionType) -> bool:
    """Whether a bound C function belongs to `torch`, or to a tensor, a container or another object of torch."""
    owner: object = fn.__self__
    if owner is None:
        return getattr(variable_functions, fn.__name__, None) is fn
    return isinstance(owner, (torch.Tensor, *_CONTAINERS)) or _module(owner).startswith("torch")


# Python functions that only compare the number, check its class or pass it to a C function.
_SYMBOL_AWARE_PYTHON: frozenset[object] = frozenset(
    {
        F.leaky_relu, F.elu, F.celu, F.hardtanh, F.threshold, torch.is_tensor,
        F.affine_grid, F.interpolate, F.upsample, F.unfold, F.fold,
        F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d, torch.split,
    }
)  # fmt: skip


# Container methods that search for their first argument or hash it.
LOOKUPS = frozenset(
    (
        "get", "pop", "setdefault", "__getitem__", "__setitem__", "__delitem__", "__contains__", "insert", "index",
        "count", "remove", "add", "discard", "rotate",
    )
)  # fmt: skip
_CONTAINERS = (list, dict, tuple, collections.deque)  # store their arguments and at most compare them
_COMPARING_METHODS = frozenset(("count", "index"))
_STORING_METHODS = frozenset(("append", "appendleft", "insert", "setdefault", "__setitem__"))
_SYMBOL_AWARE_BUILTINS: frozenset[object] = frozenset(
    {sorted, len, bool, iter, next, tuple.__new__, enter_vmap, leave_batch}
)
_SEQUENCE_OPERATORS: frozenset[object] = frozenset({operator.add, operator.iadd, operator.mul, operator.imul})
_SEQUENCE_OPERANDS = (list, tuple, int)


def is_number(value: object) -> bool:
    """Whether `value` is an int or float, symbolic or not. Bools are not numbers here."""
    return type(value) in NUMBERS or type(value) is int or type(value) is float


def _module(owner: object) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return str(getattr(owner, "__module__", None) or type(owner).__module__)


def load_proxy_attr(vm: VM, obj: SymbolicRange | SymbolicList | NumpyNumber, name: str) -> object:
    """`obj.name` of a symbolic range, list or NumPy int: everything but the class needs the plain value."""
    return vm.class_of(obj) if name == "__class__" else getattr(obj.specialize(), name)


def load_attr(vm: VM, number: object, name: str) -> object:
    """`number.name` of a symbolic number: specializes, except for `real` and the class."""
    if name == "real":
        return number
    if name == "__class__":
        return vm.class_of(number)
    return getattr(specialize(number), name)
