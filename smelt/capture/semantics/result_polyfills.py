"""Python versions of what an instruction does in C with the result of its callee.

After a graph break inside the callee, the continuation stack calls these functions, and the VM interprets them. The first
argument is the callee's result or the exception it raised; the others are the instruction's own values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping
from typing import NoReturn, SupportsIndex, TypeVar

T = TypeVar("T")


def identity(result: object, *values: object) -> object:
    """The result, unchanged."""
    return result


def reraise_error(error: BaseException) -> NoReturn:
    """Reraise the exception. The VM has a handler for this function."""
    raise error


# --------------------------------------------------------------------------------------------------- attributes


def getattr_fallback(error: BaseException, getter: Callable[..., object], obj: object, name: str) -> object:
    """Call `__getattr__` if a property, descriptor or `__getattribute__` raised AttributeError."""
    if isinstance(error, AttributeError):
        return getter(obj, name)
    return reraise_error(error)


def getattr_default(error: BaseException, value: object) -> object:
    """`getattr(obj, name, value)` after the attribute load raised."""
    if isinstance(error, AttributeError):
        return value
    return reraise_error(error)


def attribute_found(result: object) -> bool:
    """`hasattr` after the attribute load returned."""
    return True


def attribute_missing(error: BaseException) -> bool:
    """`hasattr` after the attribute load raised."""
    if isinstance(error, AttributeError):
        return False
    return reraise_error(error)


def return_none(result: object) -> None:
    """The None that `setattr` and `delattr` return."""
    return None


def store_cached_property(result: object, obj: object, name: str) -> object:
    """Store the result of a `functools.cached_property` in the instance."""
    vars(obj)[name] = result
    return result


# ---------------------------------------------------------------------------------------------------- instances


def check_init(result: object, obj: object) -> object:
    """The instance, after `__init__` returned."""
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return obj


def init_created(obj: object, cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Call `__init__` after `__new__` returned, if `obj` is an instance of the class."""
    if isinstance(obj, cls):
        name = "__init__"
        return check_init(getattr(type(obj), name)(obj, *args, **kwargs), obj)
    return obj


# ---------------------------------------------------------------------------------------------------- operators


_Method = tuple[object, str, object]  # an object, the name of its method, the other operand


def _first_result(result: object, methods: tuple[_Method, ...]) -> object:
    """`result`, or if it is NotImplemented the first other result of the remaining methods."""
    while methods and result is NotImplemented:
        obj, name, other = methods[0]
        methods = methods[1:]
        method = getattr(type(obj), name, None)
        if method is not None:
            result = method(obj, other)
    return result


def finish_arithmetic(result: object, symbol: str, left: object, right: object, *methods: _Method) -> object:
    """Result of an arithmetic operator whose last method returned `result`; `methods` are tried next."""
    value = _first_result(result, methods)
    if value is NotImplemented:
        a, b = type(left).__name__, type(right).__name__
        raise TypeError(f"unsupported operand type(s) for {symbol}: {a!r} and {b!r}")
    return value


def finish_comparison(result: object, symbol: str, left: object, right: object, *methods: _Method) -> object:
    """Result of a comparison whose last method returned `result`; `methods` are tried next."""
    value = _first_result(result, methods)
    if value is NotImplemented:
        a, b = type(left).__name__, type(right).__name__
        raise TypeError(f"{symbol!r} not supported between instances of {a!r} and {b!r}")
    return value


def finish_equality(result: object, left: object, right: object, *methods: _Method) -> object:
    """`left == right` whose last method returned `result`; `methods` are tried next."""
    value = _first_result(result, methods)
    return left is right if value is NotImplemented else value


def as_bool(result: object) -> bool:
    """Result of `in`."""
    return bool(result)


def negated(result: object) -> bool:
    """Result of `not` and `not in`."""
    return not result


def checked_bool(result: object) -> bool:
    """Result of `__bool__`, checked."""
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def checked_length(result: SupportsIndex) -> int:
    """Result of `__len__`, checked."""
    length = operator.index(result)
    if length < 0:
        raise ValueError("__len__() should return >= 0")
    return length


def length_as_bool(result: SupportsIndex) -> bool:
    """Truth value of an object whose `__len__` returned `result`."""
    return checked_length(result) != 0


def checked_iterator(result: T) -> T:
    """Result of `__iter__`, checked."""
    if not hasattr(type(result), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type {type(result).__name__!r}")
    return result


def store_default(result: object, obj: MutableMapping[object, object], key: object) -> object:
    """Store and return the value that a `defaultdict` created for a missing key."""
    obj[key] = result
    return result
