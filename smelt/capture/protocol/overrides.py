"""`__torch_function__`: handlers of tensor subclasses and of other objects, carried out by the machine.

Torch itself finds out that a call is to be handled, before anything else happens: the function mode of the trace sees each
call first, and hands it to `ask`. What the handlers call comes back to the machine, and to the mode, as in eager: with the
innermost mode out of the way, or under `DisableTorchFunctionSubclass`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch

from smelt._native import isinstance
from smelt.capture.base.handlers import Args, Kwargs, unsupported
from smelt.capture.machine.vm import VM
from smelt.capture.outside import wrapping
from smelt.capture.protocol import attributes
from smelt.reasons import TENSOR_SUBCLASS
from smelt.trace.fake import FakeTensor
from smelt.trace.handlers import asked_about, handling_class, is_handled, is_overridable, may_be_overridable


def is_asked(vm: VM, fn: object, args: Sequence[object], kwargs: Kwargs) -> bool:
    """Whether torch is to be asked for a call of its function `fn`, whatever the tables of the machine say of that."""
    return may_be_overridable(fn) and is_handled(tuple(args), kwargs) and is_overridable(fn)


def operate(vm: VM, fn: Callable[..., object], *args: object) -> object:
    """`fn(*args)` of a tensor, for a function of C that runs no Python code but handlers."""
    return vm.native(fn, args) if is_handled(args) else fn(*args)


def ask(vm: VM, func: object, args: tuple[object, ...], kwargs: Mapping[str, object] | None) -> object:
    """What the handlers give for a call; NotImplemented where torch asks none of them. Raises Unsupported where those that
    are asked give no answer."""
    vm.frames.tail = None
    kinds = asked_about(vm.trace.call, func, args, kwargs or {})
    if kinds is None:
        return NotImplemented
    given = [cast(object, tuple(wrapping.fake(vm.outside, v) for v in args))]
    if kwargs is not None:
        given.append({k: wrapping.fake(vm.outside, v) for k, v in kwargs.items()})
    return ask_classes(vm, func, kinds, given, (*args, *(kwargs or {}).values()))


def ask_classes(
    vm: VM, func: object, kinds: tuple[type, ...], given: Args, values: Sequence[object]
) -> object:
    """What the handlers of the classes `kinds`, of which instances are among `values`, give for a call."""
    for cls in kinds if torch._C._is_torch_function_enabled() else ():
        if cls not in (torch.Tensor, FakeTensor):
            instance = _instance(cls, values)
            result = _call_handler(vm, instance, func, kinds, given)
            if result is not NotImplemented:
                return result
    raise unsupported(
        f"{getattr(func, '__name__', func)}, which no __torch_function__ handles", TENSOR_SUBCLASS
    )


def _call_handler(vm: VM, owner: object, func: object, kinds: tuple[type, ...], given: Args) -> object:
    handler = attributes.load_attr(vm, owner, "__torch_function__")
    return vm.call(handler, (func, kinds, *given), {})


def _instance(cls: type, values: Sequence[object]) -> object:
    """The instance of which torch takes the handler. Raises Unsupported for a tensor that no fake stands for."""
    for value in values:
        if handling_class(value) is cls:
            if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
                raise unsupported(f"a {cls.__qualname__} that no fake stands for", TENSOR_SUBCLASS)
            return value
        if type(value) in (list, tuple, dict):
            inner = list(value.values() if isinstance(value, dict) else cast("Sequence[object]", value))
            found = _instance(cls, inner)
            if found is not None:
                return found
    return None
