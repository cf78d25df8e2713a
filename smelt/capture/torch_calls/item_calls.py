"""`item()`, `float()` and `bool()` of tensors whose numbers are known only after the graph: proxies (`number_proxy.py`).

Also functions of such numbers: `math.isnan`, `min`, `max` and so on.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, TENSOR_METHODS, Args, Kwargs, builtin
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.semantics.calls.native_calls import run_native
from smelt.capture.torch_calls import tensor_item, unbacked_reads
from smelt.capture.vm.vm import VM
from smelt.tracing.fake.fake_tensor import FakeTensor

assert unbacked_reads  # registers its handlers first
_DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def deferred_number(vm: VM, tensor: object) -> NumberProxy | None:
    """The number in `tensor` as a proxy; None where it is known before the graph runs, or is no float or bool."""
    if not vm.assumptions.captures_jumps or not tensor_item.is_unknown_element(vm, tensor):
        return None
    tensor = cast(FakeTensor, tensor)
    if tensor.dtype not in _DTYPES or vm.trace.call.is_opaque:
        return None
    if _is_in_handler(vm):  # the program may observe the operators on what the handler returns
        return None
    if tensor.dtype is not torch.bool and vm.trace.constants.number(tensor) is not None:
        return None
    dtype = torch.bool if tensor.dtype is torch.bool else torch.float64
    with torch.no_grad():
        copy = tensor.detach().reshape(()).to(dtype, copy=True)
    vm.env.numbers.has_proxies = True
    return NumberProxy(copy)


def _is_in_handler(vm: VM) -> bool:
    frame = vm.frame
    while frame is not None and frame.user_code.co_name != "__torch_function__":
        frame = frame.parent
    return frame is not None


def _item(vm: VM, tensor: FakeTensor) -> object:
    found = deferred_number(vm, tensor)
    return run_native(vm, torch.Tensor.item, (tensor,), {}) if found is None else found


TENSOR_METHODS["item"] = _item


@builtin(torch.is_nonzero)
def _is_nonzero(vm: VM, args: Args, kwargs: Kwargs) -> object:
    found = deferred_number(vm, args[0]) if len(args) == 1 and not kwargs else None
    return run_native(vm, torch.is_nonzero, args, kwargs) if found is None else NumberProxy(found.condition())


def _conversion(kind: type[float] | type[bool]) -> None:
    default = BUILTINS[kind]

    @builtin(kind)
    def convert(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if len(args) != 1 or kwargs:
            return default(vm, args, kwargs)
        value = args[0] if type(args[0]) is NumberProxy else deferred_number(vm, args[0])
        if value is None or (kind is float and value.kind is bool):
            return default(vm, args, kwargs)
        return value.as_float() if kind is float else NumberProxy(value.condition())


for _kind in (float, bool):
    _conversion(_kind)
_to_int = BUILTINS[int]


@builtin(int)
def _int(vm: VM, args: Args, kwargs: Kwargs) -> object:
    is_int = len(args) == 1 and type(args[0]) is NumberProxy and args[0].kind is int
    return args[0] if is_int else _to_int(vm, args, kwargs)


def _predicate(fn: Callable[..., object], of_tensor: Callable[[torch.Tensor], torch.Tensor]) -> None:
    default = BUILTINS.get(fn)

    @builtin(fn)
    def test(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and type(args[0]) is NumberProxy and args[0].kind is not bool:
            value = args[0] if fn is abs else args[0].as_float()
            return NumberProxy(of_tensor(value.tensor), value.most)
        return run_native(vm, fn, args, kwargs) if default is None else default(vm, args, kwargs)


for _fn, _of_tensor in (
    (math.isnan, torch.isnan),
    (math.isinf, torch.isinf),
    (math.isfinite, torch.isfinite),
    (math.fabs, torch.abs),
    (abs, torch.abs),
):
    _predicate(_fn, _of_tensor)


def _extreme(fn: Callable[..., object], is_better: Callable[..., object]) -> None:
    default = BUILTINS[fn]

    def preferred(best: NumberProxy | float, value: NumberProxy | float) -> NumberProxy | float:
        """`value` if it is better than `best`, as in the loop of CPython's `min` and `max`."""
        if not isinstance(best, NumberProxy) and not isinstance(value, NumberProxy):
            return value if is_better(value, best) else best
        a, b = (v.tensor if isinstance(v, NumberProxy) else v for v in (value, best))
        most = max(v.most if isinstance(v, NumberProxy) else abs(v) for v in (value, best))
        chosen = torch.where(cast(torch.Tensor, is_better(a, b)), a, b)
        return NumberProxy(chosen, cast(int, most) if chosen.dtype is torch.int64 else 0)

    @builtin(fn)
    def extreme(vm: VM, args: Args, kwargs: Kwargs) -> object:
        kinds = {v.kind if isinstance(v, NumberProxy) else type(v) for v in args}
        if kwargs or kinds not in ({float}, {int}) or not any(isinstance(v, NumberProxy) for v in args):
            return default(vm, args, kwargs)
        return functools.reduce(preferred, cast("tuple[NumberProxy | float, ...]", args))


_extreme(max, operator.gt)
_extreme(min, operator.lt)
