"""What instructions make in C of what they have called, as plain Python: the chains of a graph break inside of the callee
call these, and the machine interprets them.

Each takes the callee's result first (or the exception that it raised), then what the instruction knows besides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, MutableMapping
from typing import NoReturn, SupportsIndex, TypeVar

T = TypeVar("T")


def as_it_is(result: object, *values: object) -> object:
    """The result itself."""
    return result


def raised(error: BaseException) -> NoReturn:
    """The exception goes on as it is. The machine has a handler for this function."""
    raise error


# --------------------------------------------------------------------------------------------------- attributes


def missing_attribute(error: BaseException, getter: Callable[..., object], obj: object, name: str) -> object:
    """A property, descriptor or `__getattribute__` has raised: `__getattr__` is asked, if it was an AttributeError."""
    if isinstance(error, AttributeError):
        return getter(obj, name)
    return raised(error)


def default(error: BaseException, value: object) -> object:
    """`getattr(obj, name, value)`, where the attribute has raised."""
    if isinstance(error, AttributeError):
        return value
    return raised(error)


def found(result: object) -> bool:
    """`hasattr`, where the attribute was read."""
    return True


def not_found(error: BaseException) -> bool:
    """`hasattr`, where the attribute has raised."""
    if isinstance(error, AttributeError):
        return False
    return raised(error)


def nothing(result: object) -> None:
    """What `setattr` and `delattr` give."""
    return None


def cached(result: object, obj: object, name: str) -> object:
    """`functools.cached_property` keeps what its function gave."""
    vars(obj)[name] = result
    return result


# ---------------------------------------------------------------------------------------------------- instances


def initialized(result: object, obj: object) -> object:
    """`__init__` has returned: the instance is made."""
    if result is not None:
        raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
    return obj


def created(obj: object, cls: type, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """`__new__` has returned: `__init__` comes next, if it gave an instance of the class."""
    if isinstance(obj, cls):
        name = "__init__"
        return initialized(getattr(type(obj), name)(obj, *args, **kwargs), obj)
    return obj


# ---------------------------------------------------------------------------------------------------- operators


_Method = tuple[object, str, object]  # an object, the name of its method, the other operand


def _asked(result: object, methods: tuple[_Method, ...]) -> object:
    """`result`; where that is NotImplemented, what one of the other methods gives."""
    while methods and result is NotImplemented:
        obj, name, other = methods[0]
        methods = methods[1:]
        method = getattr(type(obj), name, None)
        if method is not None:
            result = method(obj, other)
    return result


def operated(result: object, symbol: str, left: object, right: object, *methods: _Method) -> object:
    """An arithmetic operator, one of whose methods gave `result`; `methods` are asked next."""
    found = _asked(result, methods)
    if found is NotImplemented:
        a, b = type(left).__name__, type(right).__name__
        raise TypeError(f"unsupported operand type(s) for {symbol}: {a!r} and {b!r}")
    return found


def compared(result: object, symbol: str, left: object, right: object, *methods: _Method) -> object:
    """A comparison, one of whose methods gave `result`; `methods` are asked next."""
    found = _asked(result, methods)
    if found is NotImplemented:
        a, b = type(left).__name__, type(right).__name__
        raise TypeError(f"{symbol!r} not supported between instances of {a!r} and {b!r}")
    return found


def equal(result: object, left: object, right: object, *methods: _Method) -> object:
    """`left == right`, where one of the methods gave `result`; `methods` are asked next."""
    found = _asked(result, methods)
    return left is right if found is NotImplemented else found


def true(result: object) -> bool:
    """`in`."""
    return bool(result)


def untrue(result: object) -> bool:
    """`not`, and `not in`."""
    return not result


def truth(result: object) -> bool:
    """What `__bool__` gave."""
    if type(result) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(result).__name__}")
    return result


def length(result: SupportsIndex) -> int:
    """What `__len__` gave."""
    found = operator.index(result)
    if found < 0:
        raise ValueError("__len__() should return >= 0")
    return found


def length_truth(result: SupportsIndex) -> bool:
    """What `__len__` gave, of an object that is asked whether it is true."""
    return length(result) != 0


def iterator(result: T) -> T:
    """What `__iter__` gave."""
    if not hasattr(type(result), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type {type(result).__name__!r}")
    return result


def kept(result: object, obj: MutableMapping[object, object], key: object) -> object:
    """What a `defaultdict` makes for a key that it does not have."""
    obj[key] = result
    return result
