"""Dispatch of `__torch_function__`: which handlers (of tensor subclasses, other objects and modes) torch calls for a
call."""

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
    NestedTensor,
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
    """The class of `value`, as the program sees it, if torch calls its `__torch_function__` (which may be torch's
    default); else None."""
    cls = value.subclass if type(value) is FakeTensor else type(value)
    if (
        cls is None
        or cls in PLAIN_TYPES
        or cls in LEAF_TYPES
        or cls is NestedTensor
        or handler_in(cls) is None
    ):
        return None
    return cls


def has_handler(value: object) -> bool:
    """Whether `value` has a `__torch_function__` other than torch's default."""
    cls = handling_class(value)
    return cls is not None and handler_in(cls) is not DEFAULT_HANDLER


def is_under_modes(call: CurrentCall) -> bool:
    """Whether torch calls a mode of the user for the next call."""
    return bool(call.modes) and not is_torch_function_all_disabled()


def is_handled(call: CurrentCall, args: Args, kwargs: Mapping[str, Any] = types.MappingProxyType({})) -> bool:
    """Whether torch may call the user's handlers for a call with these arguments."""
    if is_under_modes(call):
        return True
    has_handlers = any(map(has_handler, _flattened((*args, *kwargs.values()))))
    return has_handlers and is_torch_function_enabled()


def _flattened(values: Iterable[object]) -> Iterator[object]:
    """The items of `values` and of nested builtin containers, which may contain themselves."""
    pending, seen = list(values), set[int]()
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is list or kind is tuple or kind is dict:
            if id(value) not in seen:
                seen.add(id(value))
                pending.extend(value.values() if isinstance(value, dict) else cast("Iterable[object]", value))
        elif kind not in LEAF_TYPES:
            yield value


# ---- which handlers torch calls, and in which order


class _ProbeCalled(Exception):
    """A probe's handler was called."""

    def __init__(self, func: object, kinds: tuple[type, ...]) -> None:
        self.func = func
        self.kinds = kinds


def _probe_handler(cls: type, func: object, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    raise _ProbeCalled(func, tuple(types))


class _ProbeMode(TorchFunctionMode):
    """A mode that torch calls before any class."""

    def __torch_function__(self, func: object, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _ProbeCalled(func, tuple(types))


def handler_types(
    call: CurrentCall, func: Any, args: Args, kwargs: Mapping[str, Any]
) -> tuple[type, ...] | None:
    """The `types` that torch passes to the handlers of a call, each class before its bases; None where torch calls
    none of them. Determined by calling torch with probes, without the innermost mode, which is the trace's. Raises
    Unsupported where torch calls handlers only for functions inside."""
    found = {cls for cls in map(handling_class, _flattened((*args, *kwargs.values()))) if cls is not None}
    if len(found) == 1 and type(func) in _OF_SELF and handling_class(args[0]) is not None:
        return tuple(found)
    kinds = _probed_types(func, args, kwargs, found, contextlib.nullcontext())
    if kinds is not None:
        return in_order(kinds)
    if func in _INDEXING and handling_class(args[0]) is None:
        return None
    name = getattr(func, "__name__", func)
    raise call.unsupported(TENSOR_SUBCLASS, f"{name} of a {next(iter(found), torch.Tensor).__qualname__}")


def mode_types(call: CurrentCall, func: Any, args: Args, kwargs: Mapping[str, Any]) -> tuple[type, ...]:
    """The `types` that torch passes to a mode for a call. Raises Unsupported where it calls the mode only for
    functions inside."""
    found = {cls for cls in map(handling_class, _flattened((*args, *kwargs.values()))) if cls is not None}
    kinds = _probed_types(func, args, kwargs, found, _ProbeMode())
    if kinds is None:
        raise call.unsupported(UNSUPPORTED_CALL, f"{getattr(func, '__name__', func)} under a mode of torch")
    return kinds


def _probed_types(
    func: Any, args: Args, kwargs: Mapping[str, Any], found: set[type], mode: AbstractContextManager[object]
) -> tuple[type, ...] | None:
    """The `types` that torch passes to the first probe it calls, of the classes `found` or `mode`. None where it calls
    none for this very function."""
    probes = {cls: _probe(cls) for cls in found}
    with DisableTorchDispatch(), pop_function_mode_temporarily():
        try:
            with DisableTorchFunction():
                probe_args, probe_kwargs = _with_probes(args, probes), _with_probes(dict(kwargs), probes)
            with mode:
                func(*probe_args, **probe_kwargs)
        except _ProbeCalled as called:
            if called.func == func:
                classes = {probe: cls for cls, probe in probes.items()}
                return tuple(classes.get(kind, kind) for kind in called.kinds)
        except Exception:  # from the probes, or from a list that contains itself
            pass
    return None


_OF_SELF = (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
_INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def _probe(cls: type) -> type:
    """A probe class, unrelated to other probes."""
    base = torch.Tensor if issubclass(cls, torch.Tensor) else object
    return type(cls.__name__, (base,), {"__torch_function__": classmethod(_probe_handler)})


def _with_probes(value: Any, probes: Mapping[type, type]) -> Any:
    """`value` with probes in place of objects with handlers, and real tensors in place of other fakes."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(_with_probes(item, probes) for item in value)
    if kind is dict:
        return {key: _with_probes(item, probes) for key, item in value.items()}
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
    """Classes in argument order, without duplicates, each before its bases."""
    ordered: list[type] = []
    for cls in dict.fromkeys(kinds):
        at = next((i for i, other in enumerate(ordered) if issubclass(cls, other)), len(ordered))
        ordered.insert(at, cls)
    return tuple(ordered)


def may_be_overridable(func: Any) -> bool:
    """A cheap test that is False for functions that are not torch's, so that their arguments need no inspection."""
    if type(func) is types.FunctionType:
        return "handle_torch_function" in func.__code__.co_names
    module = getattr(getattr(func, "__objclass__", func), "__module__", None)
    return module is None or str(module).partition(".")[0] == "torch"


def is_overridable(func: Any) -> bool:
    """Whether torch calls handlers for calls of `func`."""
    if type(func) is types.FunctionType:
        return may_be_overridable(func)
    if torch.overrides.resolve_name(func) is None:
        return False
    if func not in torch.overrides.get_ignored_functions():
        return True
    # the set also contains methods that torch does dispatch
    return type(func) is types.MethodDescriptorType and _dispatches_method(func)


@functools.cache
def _dispatches_method(method: types.MethodDescriptorType) -> bool:
    """Whether torch calls handlers for a tensor method, found by a call without arguments."""
    with DisableTorchDispatch():
        with DisableTorchFunction():
            probe: torch.Tensor = torch.empty(0).as_subclass(_probe(torch.Tensor))
        try:
            with pop_function_mode_temporarily():
                method(probe)
        except _ProbeCalled:
            return True
        except Exception:
            pass
    return False


def overridable_member(name: str, method: str) -> Any:
    """`__get__` or `__set__` (`method`) of the C attribute `name` of tensors; None where torch calls no handlers for
    it."""
    descriptor = next((vars(base)[name] for base in torch.Tensor.__mro__ if name in vars(base)), None)
    member = getattr(descriptor, method, None) if type(descriptor) is types.GetSetDescriptorType else None
    return member if member is not None and is_overridable(member) else None
