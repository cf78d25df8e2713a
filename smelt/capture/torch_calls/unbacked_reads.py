"""Reads of unbacked integers: `int(t)`, `t.tolist()`, tensors as bounds of slices, `min` and `max`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import cast

import torch

from smelt.capture.base.call_handlers import (
    BUILTINS,
    LAZY_FUNCTIONS,
    TENSOR_METHODS,
    Args,
    Kwargs,
    builtin,
    function,
    unsupported,
)
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.stdlib import special_methods
from smelt.capture.torch_calls.tensor_item import count, number
from smelt.capture.vm.vm import VM
from smelt.errors import NeedsFixedSize
from smelt.graph.unbacked_sizes import AS_SIZES, is_unbacked
from smelt.reasons import DATA_DEPENDENT
from smelt.shapes.expr import Sym, free_syms
from smelt.torch_private import ASSERTIONS, CHECK_IS_SIZE
from smelt.tracing.fake.fake_tensor import FakeTensor, fake_shape
from smelt.tracing.record.torch_function_handlers import is_handled
from smelt.tracing.symbolic.sym_nodes import Symbol, UnbackedComparison
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int
from smelt.tracing.symbolic.unbacked_numbers import unbacked_leaf_of

assert special_methods  # registers its handlers first
_MAX_ELEMENTS = 32
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def numbers(vm: VM, tensor: object) -> list[object] | None:
    """The elements of a small integer tensor, in order, as numbers; None where they cannot be unbacked or are constant.
    Raises NeedsFixedSize for a symbolic number of elements."""
    if (
        type(tensor) is not FakeTensor
        or vm.trace.numbers.symbols_for_unbacked is None
        or tensor.dtype not in _INTEGERS
    ):
        return None
    shape = tensor.spec.shape
    free = frozenset[Sym]().union(*map(free_syms, shape))
    if any(map(is_unbacked, free)) or tensor.elem.numel() > _MAX_ELEMENTS:
        return None
    if is_handled(vm.trace.call, (tensor,)) or vm.trace.constants.value(tensor) is not None:
        return None
    if free:
        raise NeedsFixedSize("elements of a tensor are read", free)
    if len(shape) > 1:
        tensor = cast(FakeTensor, vm.call_native(torch.Tensor.reshape, (tensor, (-1,))))  # type: ignore[call-overload]
    known = [vm.trace.constants.integer(tensor, vm.trace.numbers, i) for i in range(int(tensor.numel()))]
    if None not in known:
        return known
    elements = list(vm.call_native(torch.Tensor.unbind, (tensor,))) if shape else [tensor]  # type: ignore[call-overload]
    if not elements:
        return None
    carrier = cast(FakeTensor, vm.call_native(AS_SIZES, (elements,)))
    return list(fake_shape(carrier)[1:])


def _read_by(kind: type[int] | type[float]) -> None:
    """Handle `int(t)` or `float(t)` of a tensor with one integer or bool."""
    default = BUILTINS[kind]  # of `special_methods`

    @builtin(kind)
    def read(vm: VM, args: Args, kwargs: Kwargs) -> object:
        is_element = (
            len(args) == 1 and not kwargs and type(args[0]) is FakeTensor and args[0].elem.numel() == 1
        )
        if not is_element:
            return default(vm, args, kwargs)
        tensor = cast(FakeTensor, args[0])
        # A count that is read as a float is no size: the guard tree reads it, and the graph is not split.
        known = count(vm, tensor) if kind is float else None
        found = numbers(vm, _as_integer(vm, tensor)) if known is None else [known]
        return default(vm, args if found is None else (found[0],), kwargs)


def _as_integer(vm: VM, tensor: FakeTensor) -> object:
    """A tensor of one element as a 0-d tensor of an integer, where its number can be unbacked."""
    if vm.trace.numbers.symbols_for_unbacked is None or tensor.dtype not in (torch.bool, *_INTEGERS):
        return None
    if is_handled(vm.trace.call, (tensor,)) or vm.trace.constants.value(tensor) is not None:
        return None
    if tensor.dtype is torch.bool:
        tensor = cast(FakeTensor, vm.call_native(torch.Tensor.long, (tensor,)))
    return vm.call_native(torch.Tensor.reshape, (tensor, ())) if tensor.dim() else tensor  # type: ignore[call-overload]


for _kind in (int, float):
    _read_by(_kind)


def _tolist(vm: VM, tensor: FakeTensor) -> object:
    found = numbers(vm, tensor)
    if found is None:
        return run_native(vm, torch.Tensor.tolist, (tensor,), {})
    for size in reversed(tensor.shape[1:]):
        found = [found[i : i + size] for i in range(0, len(found), size)]
    return found if tensor.dim() else found[0]


TENSOR_METHODS["tolist"] = _tolist


def _check(fn: FunctionType) -> None:
    @function(fn)
    def check(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if args and type(args[0]) is UnbackedComparison:
            args[0].assume(True)
            return None
        return interpret(vm, fn, args, kwargs)


for _fn in ASSERTIONS:
    _check(cast(FunctionType, _fn))


def _interpret(fn: FunctionType) -> None:
    function(fn)(lambda vm, args, kwargs: interpret(vm, fn, args, kwargs))


for _fn in CHECK_IS_SIZE:
    _interpret(cast(FunctionType, _fn))


def _advise(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """Ignore the hint for torch's own symbols that `torch._check_is_size` gives after its check of the number."""
    return None


for _name in ("_advise_is_size", "_advise_is_bounded"):
    LAZY_FUNCTIONS["torch.fx.experimental.symbolic_shapes", _name] = _advise


def _extreme(fn: Callable[..., object]) -> None:
    default = BUILTINS[fn]

    @builtin(fn)
    def extreme(vm: VM, args: Args, kwargs: Kwargs) -> object:
        """The minimum or maximum of numbers or tensors of one element: a new unbacked number, or tensor, where it is
        data-dependent."""
        if args and not kwargs and not vm.assumptions.may_break:
            values = args if len(args) > 1 else vm.elements(args[0])
            if _is_selectable(vm, values):
                return functools.reduce(functools.partial(_select, vm, _PREFERRED[fn]), values)
            args = args if len(args) > 1 else (values,)
        _check_one_type(fn, args)
        found = default(vm, args, kwargs)
        if type(found) not in NUMBERS or not _is_new_size(cast(Symbol, cast(torch.SymInt, found).node)):
            return found
        carrier = vm.call_native(torch.full, ((), found), {"dtype": torch.int64})
        return fake_shape(cast(FakeTensor, vm.call_native(AS_SIZES, ([carrier],))))[1]


def _is_selectable(vm: VM, values: Sequence[object]) -> bool:
    """Whether the extreme of `values` may be computed as a tensor. Without a graph break the alternative is an error, so
    numbers among tensors become tensors, as in torch.compile."""
    tensors = [v for v in values if type(v) is FakeTensor]
    kinds = {type(v) for v in values if type(v) is not FakeTensor}
    if not tensors or not kinds <= _HELD_BY.keys():
        return False
    spec = tensors[0].spec
    return (
        tensors[0].elem.numel() == 1
        and all(
            (t.spec.dtype, t.spec.shape, t.spec.device) == (spec.dtype, spec.shape, spec.device)
            for t in tensors
        )
        and not any(t.requires_grad or t.subclass or is_handled(vm.trace.call, (t,)) for t in tensors)
        and all(_HELD_BY[kind](spec.dtype) for kind in kinds)
    )


# Whether a tensor of a dtype and a number promote to that dtype.
_HELD_BY: dict[type, Callable[[torch.dtype], bool]] = {
    bool: lambda dtype: True,
    int: lambda dtype: dtype is not torch.bool,
    float: lambda dtype: dtype.is_floating_point,
}
_PREFERRED: dict[Callable[..., object], Callable[..., object]] = {max: operator.gt, min: operator.lt}


def _select(vm: VM, is_better: Callable[..., object], best: object, value: object) -> object:
    """`value` if it is better than `best`, as in the loop of CPython's `min` and `max`."""
    better = vm.binary(is_better, value, best)
    if type(better) is not FakeTensor or number(vm, better) is not None:
        return value if vm.truth(better) else best
    return vm.call_native(torch.where, (better, value, best))


def _check_one_type(fn: Callable[..., object], args: Args) -> None:
    """Raise Unsupported for an unbacked number among numbers of other types: data decide the type of the result."""
    operands = cast(Args, args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else args
    types = {_TYPES.get(type(x), type(x)) for x in operands}
    if len(types) > 1 and any(type(x) in _TYPES and _is_unbacked_number(x) for x in operands):
        raise unsupported(f"{fn.__name__}() of numbers of several types, which data decide", DATA_DEPENDENT)


_TYPES: dict[type, type] = {Int: int, Float: float}


def _is_unbacked_number(number: object) -> bool:
    return unbacked_leaf_of(cast(Symbol, cast(torch.SymInt, number).node).expression) is not None


def _is_new_size(symbol: Symbol) -> bool:
    return (
        symbol.size is None and type(symbol.value) is int and unbacked_leaf_of(symbol.expression) is not None
    )


for _extreme_of in (min, max):
    _extreme(_extreme_of)
