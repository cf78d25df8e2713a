"""What the VM does in place of a call: tables that the modules of `semantics/` and `torch_calls/` fill.

`BUILTINS` is by C callable, `METHODS` by (builtin base class, method name), `FUNCTIONS` by Python function. A handler takes
`(vm, args, kwargs)`, one of a method `(vm, obj, *args, **kwargs)`, and returns the result; what it read from outside is
guarded when it returns.
A handler may declare the types of `args` that valid calls of its key have: nothing checks them at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar, cast

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_CALL, Reason, ReasonKind

Handler = Callable[..., Any]
Args = Sequence[object]
Kwargs = dict[str, object]
K = TypeVar("K")
BUILTINS: dict[Any, Handler] = {}
METHODS: dict[tuple[type, str], Handler] = {}
# class methods written in C, by the class that defines them: `(vm, args, kwargs)`, where the first of `args` is the class
CLASS_METHODS: dict[tuple[type, str], Handler] = {}
FUNCTIONS: dict[Any, Handler] = {}
# by module and qualified name: functions written in Python of modules that are imported late, if at all
LATE_FUNCTIONS: dict[tuple[str, str], Handler] = {}
SUBSTITUTES: dict[tuple[str, str], FunctionType] = {}  # what is interpreted in place of such a function
# `(vm, function, args, kwargs)`, by code: functions that library functions make
CODES: dict[Any, Handler] = {}
# `(vm, function, args, kwargs)`, by module: functions and unbound methods that Cython compiled
CYTHON_FUNCTIONS: dict[str, Handler] = {}
# Handlers of `BUILTINS` that say themselves what becomes of the result of the Python function that they call: it may be left
# in the middle by a graph break. What others call gives no result of the call.
HANDING_ON: set[Handler] = set()
TENSOR_METHODS: dict[str, Handler] = {}  # `(vm, tensor, ...)`, by name
TENSOR_SETTERS: dict[str, Handler] = {}  # `(vm, tensor, value)`, by name of the attribute


def where_written(fn: FunctionType) -> tuple[str, str]:
    """The module and qualified name under which a function was written; `functools.wraps` does not change them."""
    return str(fn.__globals__.get("__name__")), fn.__code__.co_qualname


def handler_of(fn: FunctionType) -> Handler | None:
    """What the VM does in place of a call of a function written in Python."""
    found = FUNCTIONS.get(fn)
    return found if found is not None else LATE_FUNCTIONS.get(where_written(fn))


def _in(table: dict[K, Handler], *keys: K) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for key in keys:
            table[key] = handler
        return handler

    return add


def builtin(*callables: object) -> Callable[[Handler], Handler]:
    """Decorates the handler of callables of C: `handler(vm, args, kwargs)`."""
    return _in(BUILTINS, *callables)


def function(*functions: object) -> Callable[[Handler], Handler]:
    """Decorates the handler of functions written in Python: `handler(vm, args, kwargs)`."""
    return _in(FUNCTIONS, *functions)


def hands_on(handler: Handler) -> Handler:
    """Adds the decorated handler to `HANDING_ON`."""
    HANDING_ON.add(handler)
    return handler


def method(base: type, *names: str) -> Callable[[Handler], Handler]:
    """Decorates the handler of methods of a builtin class: `handler(vm, obj, *args, **kwargs)`."""
    return _in(METHODS, *((base, n) for n in names))


def class_method_of(fn: BuiltinFunctionType) -> Handler | None:
    """What the VM does in place of a call of a class method written in C, which is bound to a class."""
    for base in cast(type, fn.__self__).__mro__:
        handler = CLASS_METHODS.get((base, fn.__name__))
        if handler is not None and fn == vars(base)[fn.__name__].__get__(None, fn.__self__):
            return handler
    return None


def unsupported(detail: str, kind: ReasonKind = UNSUPPORTED_CALL) -> Unsupported:
    """The error of a handler that does not know how to do a call; capture ends with it."""
    return Unsupported(Reason(kind, detail))
