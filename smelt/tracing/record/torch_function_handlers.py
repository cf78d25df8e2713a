"""Whose `__torch_function__` torch asks about a call: of tensors of subclasses, of other objects."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from smelt.reasons import TENSOR_SUBCLASS, UNSUPPORTED_CALL
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
    pop_function_mode_temporarily,
)
from smelt.tracing.fake.fake_tensor import FakeTensor, class_of_fake
from smelt.tracing.fake.plain_tensor_classes import PLAIN_TYPES, handler_in
from smelt.tracing.record.call_arguments import LEAF_TYPES, Args
from smelt.tracing.record.current_call import CurrentCall

DEFAULT_HANDLER = vars(torch.Tensor)["__torch_function__"]


def handling_class(value: object) -> type | None:
    """The class of `value`, as the program sees it, where torch asks its `__torch_function__`, which may be torch's own."""
    cls = value.subclass if type(value) is FakeTensor else type(value)
    if cls is None or cls in PLAIN_TYPES or cls in LEAF_TYPES or handler_in(cls) is None:
        return None
    return cls


def has_handler(value: object) -> bool:
    """Whether `value` has a `__torch_function__` that is not torch's."""
    cls = handling_class(value)
    return cls is not None and handler_in(cls) is not DEFAULT_HANDLER


def is_under_modes(call: CurrentCall) -> bool:
    """Whether torch asks a mode of the user's about what is called next."""
    return bool(call.modes) and not is_torch_function_all_disabled()


def is_handled(call: CurrentCall, args: Args, kwargs: Mapping[str, Any] = types.MappingProxyType({})) -> bool:
    """Whether torch may ask the user's code about a call with these arguments."""
    if is_under_modes(call):
        return True
    found = any(map(has_handler, _parts((*args, *kwargs.values()))))
    return found and is_torch_function_enabled()


def _parts(values: Iterable[object]) -> Iterator[object]:
    """What stands in `values` and in builtin containers among them, which may contain themselves."""
    left, seen = list(values), set[int]()
    while left:
        value = left.pop()
        kind = type(value)
        if kind is list or kind is tuple or kind is dict:
            if id(value) not in seen:
                seen.add(id(value))
                left.extend(value.values() if isinstance(value, dict) else cast("Iterable[object]", value))
        elif kind not in LEAF_TYPES:
            yield value


# ---- which are asked, and in which order


class _Asked(Exception):
    """A probe was asked about a call."""

    def __init__(self, func: object, kinds: tuple[type, ...]) -> None:
        self.func = func
        self.kinds = kinds


def _asked(cls: type, func: object, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    raise _Asked(func, tuple(types))


class _ProbeMode(TorchFunctionMode):
    """Is asked before any class."""

    def __torch_function__(self, func: object, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _Asked(func, tuple(types))


def asked_about(
    call: CurrentCall, func: Any, args: Args, kwargs: Mapping[str, Any]
) -> tuple[type, ...] | None:
    """The `types` that torch gives the handlers of a call, a class before what it inherits from; None where it asks none of
    them. Torch itself says so: it is given probes, without the innermost mode, which is that of the trace. Raises
    Unsupported where it asks further inside only."""
    found = {cls for cls in map(handling_class, _parts((*args, *kwargs.values()))) if cls is not None}
    if len(found) == 1 and type(func) in _OF_SELF and handling_class(args[0]) is not None:
        return tuple(found)
    kinds = _kinds_asked(func, args, kwargs, found, contextlib.nullcontext())
    if kinds is not None:
        return in_order(kinds)
    if func in _INDEXING and handling_class(args[0]) is None:
        return None
    name = getattr(func, "__name__", func)
    raise call.unsupported(TENSOR_SUBCLASS, f"{name} of a {next(iter(found), torch.Tensor).__qualname__}")


def kinds_for_mode(call: CurrentCall, func: Any, args: Args, kwargs: Mapping[str, Any]) -> tuple[type, ...]:
    """The `types` that torch gives a mode with a call. Raises Unsupported where it asks the mode further inside only."""
    found = {cls for cls in map(handling_class, _parts((*args, *kwargs.values()))) if cls is not None}
    kinds = _kinds_asked(func, args, kwargs, found, _ProbeMode())
    if kinds is None:
        raise call.unsupported(UNSUPPORTED_CALL, f"{getattr(func, '__name__', func)} under a mode of torch")
    return kinds


def _kinds_asked(
    func: Any, args: Args, kwargs: Mapping[str, Any], found: set[type], mode: AbstractContextManager[object]
) -> tuple[type, ...] | None:
    """The `types` that the first probe is given which torch asks about a call: of the classes `found`, or `mode`. None where
    it asks none about this very function."""
    probes = {cls: _probe(cls) for cls in found}
    with DisableTorchDispatch(), pop_function_mode_temporarily():
        try:
            with DisableTorchFunction():
                given, named = _like(args, probes), _like(dict(kwargs), probes)
            with mode:
                func(*given, **named)
        except _Asked as asked:
            if asked.func == func:
                classes = {made: cls for cls, made in probes.items()}
                return tuple(classes.get(kind, kind) for kind in asked.kinds)
        except Exception:  # of the probes, or of a list that contains itself
            pass
    return None


_OF_SELF = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def _probe(cls: type) -> type:
    """A class that is related to no other."""
    base = torch.Tensor if issubclass(cls, torch.Tensor) else object
    return type(cls.__name__, (base,), {"__torch_function__": classmethod(_asked)})


def _like(value: Any, probes: Mapping[type, type]) -> Any:
    """`value` with probes in place of what has handlers, and tensors in place of other fakes."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(_like(part, probes) for part in value)
    if kind is dict:
        return {key: _like(part, probes) for key, part in value.items()}
    if kind in LEAF_TYPES:
        return value
    cls = handling_class(value)
    if kind is FakeTensor:
        empty = torch.empty(0)
        if cls is None:
            return (
                torch.nn.Parameter(empty) if issubclass(class_of_fake(value), torch.nn.Parameter) else empty
            )
        return empty.as_subclass(probes[cls])
    return value if cls is None else probes[cls]()


def in_order(kinds: Iterable[type]) -> tuple[type, ...]:
    """Classes, each once, in the order of the arguments, each before those that it inherits from."""
    ordered: list[type] = []
    for cls in dict.fromkeys(kinds):
        at = next((i for i, other in enumerate(ordered) if issubclass(cls, other)), len(ordered))
        ordered.insert(at, cls)
    return tuple(ordered)


def may_be_overridable(func: Any) -> bool:
    """False for functions that are not torch's, told at once: nobody need look through what they are given."""
    if type(func) is types.FunctionType:
        return "handle_torch_function" in func.__code__.co_names
    module = getattr(getattr(func, "__objclass__", func), "__module__", None)
    return module is None or str(module).partition(".")[0] == "torch"


def is_overridable(func: Any) -> bool:
    """Whether torch asks handlers about calls of `func`."""
    if type(func) is types.FunctionType:
        return may_be_overridable(func)
    if torch.overrides.resolve_name(func) is None:
        return False
    if func not in torch.overrides.get_ignored_functions():
        return True
    # the set also has methods that torch does ask about
    return type(func) is types.MethodDescriptorType and _asks_about(func)


@functools.cache
def _asks_about(method: types.MethodDescriptorType) -> bool:
    """Whether torch asks handlers about a method of tensors, as a call without arguments shows."""
    with DisableTorchDispatch():
        with DisableTorchFunction():
            probe: torch.Tensor = torch.empty(0).as_subclass(_probe(torch.Tensor))
        try:
            with pop_function_mode_temporarily():
                method(probe)
        except _Asked:
            return True
        except Exception:
            pass
    return False


def overridable_member(name: str, method: str) -> Any:
    """The method, `__get__` or `__set__`, of what C code has as the attribute `name` of tensors; None where torch asks no
    handlers about it."""
    found = next((vars(base)[name] for base in torch.Tensor.__mro__ if name in vars(base)), None)
    member = getattr(found, method, None) if type(found) is types.GetSetDescriptorType else None
    return member if member is not None and is_overridable(member) else None
