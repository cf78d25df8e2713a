"""C methods that read process settings: local time zone, locale, NumPy's print options, decimal context, error handlers of
codecs."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import NoReturn

import numpy

from smelt._native import isinstance
from smelt.capture.base.call_handlers import METHODS, Args, Handler, Kwargs, builtin, method, unsupported
from smelt.capture.vm.vm import VM
from smelt.reasons import SIDE_EFFECT_IO, UNSUPPORTED_EFFECT
from smelt.tracing.symbolic.sym_numbers import Float


def _time_zone_handler(name: str) -> Handler:
    """Handler of the datetime method `name`, which reads the local time zone unless another one is specified."""

    def handle(vm: VM, owner: datetime.datetime, *args: object, **kwargs: object) -> object:
        has_zone = owner.tzinfo is not None and (name != "astimezone" or {*args, *kwargs.values()} - {None})
        if not has_zone:
            raise unsupported(f"{name} of a {type(owner).__qualname__}", SIDE_EFFECT_IO)
        return vm.call_native(getattr(datetime.datetime, name), (owner, *args), kwargs)

    return handle


def _refuse_strftime(
    vm: VM, owner: datetime.date | datetime.time, *args: object, **kwargs: object
) -> NoReturn:
    raise unsupported(f"strftime of a {type(owner).__qualname__}", SIDE_EFFECT_IO)


def _refuse_array_text(vm: VM, array: object, *args: object, **kwargs: object) -> NoReturn:
    raise unsupported("the text of a NumPy array, which print options decide", UNSUPPORTED_EFFECT)


_native_decimal: Callable[..., object] = decimal.Decimal


@builtin(decimal.Decimal)
def _decimal(vm: VM, args: Args, kwargs: Kwargs) -> object:
    """The context determines whether a float or an invalid text is accepted."""
    value = args[0] if args else kwargs.get("value")
    result = vm.call_native(_native_decimal, args, kwargs)
    is_invalid_text = isinstance(value, str) and result.is_nan() and "nan" not in value.lower()  # type: ignore[attr-defined]
    if type(value) in (float, Float) or is_invalid_text:
        raise unsupported("a Decimal is created from a float or an invalid text", UNSUPPORTED_EFFECT)
    return result


_BUILTIN_ERROR_HANDLERS = frozenset(
    (
        "strict", "ignore", "replace", "xmlcharrefreplace", "backslashreplace", "namereplace", "surrogateescape",
        "surrogatepass",
    )
)  # fmt: skip


def _register_codec(base: type, name: str) -> None:
    """Register `str.encode` or `bytes.decode`, whose error handler may be a registered one."""

    @method(base, name)
    def handle(vm: VM, text: object, *args: object, **kwargs: object) -> object:
        errors = args[1] if len(args) > 1 else kwargs.get("errors", "strict")
        if errors not in _BUILTIN_ERROR_HANDLERS:
            raise unsupported(f"{name} with a handler of errors that was registered", UNSUPPORTED_EFFECT)
        return vm.call_native(getattr(base, name), (text, *args), kwargs)


_register_codec(str, "encode")
_register_codec(bytes, "decode")
for _name in ("__str__", "__repr__", "__format__"):
    METHODS[numpy.ndarray, _name] = _refuse_array_text
for _name in ("timestamp", "astimezone"):
    METHODS[datetime.datetime, _name] = _time_zone_handler(_name)
for _kind in (datetime.date, datetime.datetime, datetime.time):
    METHODS[_kind, "strftime"] = _refuse_strftime
