"""Formatting: `str`, `repr`, `format`, `%` and `str.join` of tensors, and of containers of tensors, return a `TextProxy`.

The builtins' own handlers format everything else (`_NATIVE`).
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import torch

from smelt._native import isinstance
from smelt.capture.base.call_handlers import BUILTINS, TENSOR_METHODS, Args, Handler, Kwargs, method
from smelt.capture.base.native_functions import check_text_settings
from smelt.capture.base.value_kinds import LEAF_TYPES, is_constant
from smelt.capture.environment import container_contents
from smelt.capture.proxies.number_proxy import NumberProxy
from smelt.capture.proxies.opaque_proxy import OpaqueProxy
from smelt.capture.proxies.text_proxy import (
    FormattedTensor,
    TextProxy,
    Verbatim,
    join_all,
    join_with,
    unreadable,
)
from smelt.capture.semantics.calls.torch_function_overrides import check_no_user_modes
from smelt.capture.semantics.values.displayed_names import use_names
from smelt.capture.vm.vm import VM
from smelt.shapes.expr import free_syms, leaves
from smelt.torch_private import maybe_current_level
from smelt.tracing.fake.fake_tensor import FakeTensor, check_class
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Float, Int, hint

_Conversion = Callable[[object], str]  # str, repr or ascii
_CONVERSIONS: dict[str, _Conversion] = {"s": str, "r": repr, "a": ascii}


def _formatted_tensor(vm: VM, fake: FakeTensor, bare: bool = False) -> FormattedTensor:
    check_no_user_modes(vm, "the text of a tensor")
    if fake.is_meta or maybe_current_level() is not None:
        raise unreadable("a tensor is formatted as text")
    return FormattedTensor(vm.trace, fake, bare)


def _record_number(vm: VM, value: object) -> object:
    """A symbolic number as part of a text. It is recorded, since it must be specialized if the program reads the text."""
    symbol = cast("Int | Float", value).node
    vm.assumptions.formatted_numbers.update(leaves(symbol.expression))
    if symbol.size is not None:
        vm.assumptions.formatted_sizes |= free_syms(symbol.size)
    return value


def _is_fixed(value: object) -> bool:
    """Whether `value` is a constant without symbolic sizes."""
    return is_constant(value) and not has_symbols(value)


class _StructureCopier:
    """Copier of nested containers with the same text. `unknown`: the text depends on tensors or symbolic numbers."""

    def __init__(self, vm: VM) -> None:
        self.vm = vm
        self.unknown = False
        self._memo: dict[int, object] = {}

    def copy(self, value: object) -> object:
        """Replacement of `value`: a `FormattedTensor` for a tensor, a copy of a container, a `Verbatim` for most objects."""
        kind = type(value)
        if type(value) is FakeTensor:
            self.unknown = True
            return _formatted_tensor(self.vm, value)
        if type(value) is torch.Size:
            return torch.Size(cast("Iterable[int]", map(self.copy, value)))
        if kind in LEAF_TYPES or (kind is tuple and _is_fixed(value)):
            return value
        if kind in NUMBERS:
            self.unknown = True
            return _record_number(self.vm, value)
        if id(value) in self._memo:
            return self._memo[id(value)]
        if type(value) is tuple:
            return tuple(map(self.copy, value))
        copier = _COPIERS.get(kind)
        return copier(self, value) if copier is not None else self._other(value)

    def sequence(self, value: object, copy: list[object] | collections.deque[object]) -> object:
        self._memo[id(value)] = copy
        copy.extend([self.copy(v) for v in self.vm.elements(value)])
        return copy

    def mapping(self, value: object, copy: dict[object, object]) -> object:
        self._memo[id(value)] = copy
        for key, item in dict.items(container_contents.native_view(self.vm.env, value, deep=False)):
            copy[key if is_constant(key) else self._key(key)] = self.copy(item)
        return copy

    def _key(self, key: object) -> object:
        if type(key) is FakeTensor:
            raise unreadable("a tensor that is a key is formatted as text")
        return self._other(key)

    def _other(self, value: object) -> Verbatim:
        text = convert(self.vm, repr, value)
        self.unknown |= type(text) is TextProxy
        return Verbatim(text)


_COPIERS: dict[type, Callable[..., object]] = {
    list: lambda s, v: s.sequence(v, []),
    collections.deque: lambda s, v: s.sequence(v, collections.deque(maxlen=v.maxlen)),
    dict: lambda s, v: s.mapping(v, {}),
    collections.OrderedDict: lambda s, v: s.mapping(v, collections.OrderedDict()),
}


def convert(vm: VM, fn: _Conversion, value: object) -> str | TextProxy:
    """`fn(value)` for str, repr or ascii: a string or a `TextProxy`."""
    kind = type(value)
    if type(value) is FakeTensor:
        return TextProxy(fn, _formatted_tensor(vm, value))
    check_text_settings(value)
    if kind in NUMBERS:
        return TextProxy(fn, _record_number(vm, value))
    if kind is NumberProxy:
        return TextProxy(fn, value)
    if type(value) is TextProxy:
        return value if fn is str else TextProxy(fn, value)
    if type(value) is OpaqueProxy and issubclass(value.kind, _TEXT_OF_VALUE):
        check_text_settings(value.value)
        return TextProxy(fn, value)
    if kind in _COPIERS or kind is torch.Size or (kind is tuple and not _is_fixed(value)):
        structure = _StructureCopier(vm)
        copied = structure.copy(value)
        if structure.unknown:
            return TextProxy(fn, copied)
        return cast(str, vm.call_native(fn, (copied,)))
    return cast(str, _NATIVE[fn](vm, (value,), {}))


_TEXT_OF_VALUE = (bytes, complex, np.number)  # whose texts depend on their values alone
_NATIVE: dict[object, Handler] = {}  # handlers of the builtins for other objects


def format_value(vm: VM, value: object, spec: object) -> str | TextProxy:
    """`format(value, spec)`."""
    if type(spec) is TextProxy:
        raise unreadable("a tensor's text is used as a format")
    spec = cast(str, spec)  # `format` raises for other types
    if type(value) is FakeTensor:
        return _format_tensor(vm, value, spec)
    if type(value) in NUMBERS:
        format(hint(value), spec)  # raises where the real number would
        return TextProxy(format, _record_number(vm, value), spec)
    if type(value) is NumberProxy:
        format(value.example(), spec)
        return TextProxy(format, value, spec)
    if type(value) is TextProxy:
        format("", spec)  # raises where the real text would
        return TextProxy(format, value, spec) if spec else value
    check_text_settings(value, spec)
    if not spec and vm.type_info(type(value)).find("__format__")[1] is object.__format__:
        return convert(vm, str, value)
    return cast(str, _NATIVE[format](vm, (value, spec), {}))


def _format_tensor(vm: VM, value: FakeTensor, spec: str) -> str | TextProxy:
    """`Tensor.__format__`, which formats a scalar tensor as its number."""
    check_class(value, "the text")
    check_no_user_modes(vm, "the text of a tensor")
    if value.dim() != 0:
        if spec:
            kind = "Parameter" if getattr(value, "_is_param", False) else "Tensor"
            raise TypeError(f"unsupported format string passed to {kind}.__format__")
        return convert(vm, str, value)
    format(_sample(value.dtype), spec)  # raises where the real number would
    return TextProxy(format, _formatted_tensor(vm, value, bare=True), spec)


def _sample(dtype: torch.dtype) -> complex:
    """A number of the type that `Tensor.item()` returns."""
    if dtype is torch.bool:
        return True
    return 1.5j if dtype.is_complex else 1.5 if dtype.is_floating_point else 1


_CONVERSION = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<flags>[-+ #0]*[\d*]*(?:\.[\d*]+)?)(?P<kind>[a-zA-Z%])")


def format_percent(vm: VM, pattern: str, values: object) -> object:
    """`pattern % values`."""
    operands = tuple(tuple.__iter__(values)) if isinstance(values, tuple) else (values,)
    for value in operands:
        check_text_settings(value)
    if all(type(v) in LEAF_TYPES for v in operands):
        vm.env.facts.use_digits(*operands)
        return pattern % values
    conversions = [c["kind"] for c in _CONVERSION.finditer(pattern) if c["kind"] != "%"]
    if "%(" in pattern or "*" in pattern or len(conversions) != len(operands):
        if _holds_text(operands):
            raise unreadable("a tensor is formatted by %")
        use_names(vm, values)
        return vm.call_native(operator.mod, (pattern, container_contents.native_view(vm.env, values)))
    arguments = tuple(map(functools.partial(_percent_argument, vm), conversions, operands))
    if not _holds_text(arguments):
        return vm.call_native(operator.mod, (pattern, arguments))
    return TextProxy(operator.mod, pattern, arguments)


def _percent_argument(vm: VM, conversion: str, value: object) -> object:
    kind = type(value)
    if kind in LEAF_TYPES:
        return value
    if conversion in "sra":
        return Verbatim(convert(vm, _CONVERSIONS[conversion], value))
    if kind in NUMBERS:
        f"%{conversion}" % hint(value)  # raises where the real number would
        return _record_number(vm, value)
    if kind is NumberProxy and conversion in "eEfFgG":
        return value
    if type(value) is FakeTensor:
        if conversion in "eEfFgG" and value.numel() == 1 and not value.dtype.is_complex:
            return _formatted_tensor(vm, value, bare=True)
        if conversion in "dioxX" and value.numel() == 1 and not value.dtype.is_floating_point:
            return _formatted_tensor(vm, value, bare=True)
        raise unreadable(f"a tensor is formatted by %{conversion}")
    return vm.native_argument(container_contents.native_view(vm.env, value))


def _holds_text(values: Iterable[object]) -> bool:
    return any(
        type(v) in (TextProxy, FormattedTensor, FakeTensor, NumberProxy, *NUMBERS)
        or (type(v) is Verbatim and type(v.text) is TextProxy)
        or (isinstance(v, tuple) and has_symbols(v))
        for v in values
    )


def _contain_text(vm: VM, *values: object) -> bool:
    """Whether the text of a container among `values` depends on tensors or symbolic numbers."""
    containers = (v for v in values if type(v) in _COPIERS or (type(v) is tuple and not _is_fixed(v)))
    return any(type(convert(vm, str, v)) is TextProxy for v in containers)


@method(str, "join")
def _join(vm: VM, separator: object, values: object) -> object:
    parts = vm.elements(values)
    if not any(type(p) is TextProxy for p in parts):
        return vm.call_native(str.join, (separator, parts))
    if not all(type(p) is TextProxy or isinstance(p, str) for p in parts):
        return "".join([0])  # type: ignore[list-item]  # its TypeError
    return TextProxy(join_with, separator, *parts)


@method(str, "format")
def _format(vm: VM, pattern: str, *args: object, **kwargs: object) -> object:
    formatted = (*args, *(v for k, v in kwargs.items() if "{" + k in pattern))
    if not _holds_text((*args, *kwargs.values())) and not _contain_text(vm, *formatted):
        for value in (*args, *kwargs.values()):
            check_text_settings(value, "%" if "%" in pattern else "")
            use_names(vm, value)
        view = functools.partial(container_contents.native_view, vm.env)
        args = tuple(vm.native_argument(view(a)) for a in args)
        named = {k: vm.native_argument(view(v)) for k, v in kwargs.items()}
        return vm.call_native(str.format, (pattern, *args), named)
    parts: list[str | TextProxy] = []
    automatic = itertools.count()
    for text, field, spec, conversion in string.Formatter().parse(pattern):
        parts.append(text)
        if field is not None:
            if spec and "{" in spec:
                raise unreadable("a tensor is formatted by str.format")
            value = _field(field, automatic, args, kwargs)
            if conversion:
                value = convert(vm, _CONVERSIONS[conversion], value)
            parts.append(format_value(vm, value, spec or ""))
    return join_all(parts)


def _field(field: str, automatic: Iterator[int], args: Sequence[object], kwargs: dict[str, object]) -> object:
    if not field:
        return args[next(automatic)]
    if field.isdigit():
        return args[int(field)]
    if not field.isidentifier():
        raise unreadable("a tensor is formatted by str.format")
    return kwargs[field]


# ----------------------------------------------------------------------------------------------------- handlers


def _conversion_handler(fn: _Conversion) -> Handler:
    def handler(vm: VM, args: Args, kwargs: Kwargs) -> object:
        if len(args) == 1 and not kwargs:
            return convert(vm, fn, args[0])
        return _NATIVE[fn](vm, args, kwargs)

    return handler


def _builtin_format(vm: VM, args: Args, kwargs: Kwargs) -> object:
    if len(args) in (1, 2) and not kwargs:
        return format_value(vm, args[0], args[1] if len(args) == 2 else "")
    return _NATIVE[format](vm, args, kwargs)


def _native_ascii(vm: VM, args: Args, kwargs: Kwargs) -> object:
    text = convert(vm, repr, *args)
    return TextProxy(ascii, Verbatim(text)) if type(text) is TextProxy else ascii(Verbatim(text))


def install() -> None:
    """Install this module's handlers in front of the builtins' handlers (`_NATIVE`)."""
    for fn in (str, repr, ascii):
        _NATIVE[fn] = BUILTINS.get(fn, _native_ascii)
        BUILTINS[fn] = _conversion_handler(fn)
    _NATIVE[format] = BUILTINS[format]
    BUILTINS[format] = _builtin_format
    TENSOR_METHODS["__str__"] = lambda vm, t: convert(vm, str, t)
    TENSOR_METHODS["__repr__"] = lambda vm, t: convert(vm, repr, t)
    TENSOR_METHODS["__format__"] = format_value
