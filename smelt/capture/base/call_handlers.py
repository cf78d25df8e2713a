"""Tables of call handlers, which replace calls of known functions; the packages above fill them.

The keys of `BUILTINS` are C callables, those of `METHODS` (builtin base class, method name), those of `FUNCTIONS` Python
functions. A handler takes `(vm, args, kwargs)`, that of a method `(vm, obj, *args, **kwargs)`, and returns the result; it
guards what it reads from the environment.
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
# class methods written in C, by the class that defines them, and methods of `type`: `(vm, args, kwargs)`, where the first of
# `args` is the class
CLASS_METHODS: dict[tuple[type, str], Handler] = {}
FUNCTIONS: dict[Any, Handler] = {}
# by module and qualified name: Python functions of modules that the program may import later
LAZY_FUNCTIONS: dict[tuple[str, str], Handler] = {}
# replacements of such functions, which the VM interprets
SUBSTITUTES: dict[tuple[str, str], FunctionType] = {}
# `(args, kwargs)`: whether the replacement handles a call; without an entry, it handles all calls
SUBSTITUTED_CALLS: dict[tuple[str, str], Callable[[Args, Kwargs], bool]] = {}
# `(vm, function, args, kwargs)`, by code: functions that library functions create
CODE_HANDLERS: dict[Any, Handler] = {}
# `(vm, function, args, kwargs)`, by module: functions and unbound methods that Cython compiled
CYTHON_FUNCTIONS: dict[str, Handler] = {}
# Handlers of `BUILTINS` whose Python callee returns, through their result handlers, the result of the call, so that the
# graph can break inside the callee. Other handlers clear the call site.
BREAKABLE_HANDLERS: set[Handler] = set()
TENSOR_METHODS: dict[str, Handler] = {}  # `(vm, tensor, ...)`, by name
TENSOR_SETTERS: dict[str, Handler] = {}  # `(vm, tensor, value)`, by name of the attribute


def definition_name(fn: FunctionType) -> tuple[str, str]:
    """The module and qualified name of a function's definition; `functools.wraps` does not change them."""
    return str(fn.__globals__.get("__name__")), fn.__code__.co_qualname


def substitute_of(fn: FunctionType, args: Args, kwargs: Kwargs) -> FunctionType | None:
    """The replacement of a function written in Python for this call, or None."""
    definition = definition_name(fn)
    applies = SUBSTITUTED_CALLS.get(definition)
    return SUBSTITUTES.get(definition) if applies is None or applies(args, kwargs) else None


def handler_of(fn: FunctionType) -> Handler | None:
    """The handler of a function written in Python, or None."""
    handler = FUNCTIONS.get(fn)
    return handler if handler is not None else LAZY_FUNCTIONS.get(definition_name(fn))


def _in(table: dict[K, Handler], *keys: K) -> Callable[[Handler], Handler]:
    def add(handler: Handler) -> Handler:
        for key in keys:
            table[key] = handler
        return handler

    return add


def builtin(*callables: object) -> Callable[[Handler], Handler]:
    """Register the decorated handler of C callables: `handler(vm, args, kwargs)`."""
    return _in(BUILTINS, *callables)


def function(*functions: object) -> Callable[[Handler], Handler]:
    """Register the decorated handler of functions written in Python: `handler(vm, args, kwargs)`."""
    return _in(FUNCTIONS, *functions)


def breakable(handler: Handler) -> Handler:
    """Add the decorated handler to `BREAKABLE_HANDLERS`."""
    BREAKABLE_HANDLERS.add(handler)
    return handler


def method(base: type, *names: str) -> Callable[[Handler], Handler]:
    """Register the decorated handler of methods of a builtin class: `handler(vm, obj, *args, **kwargs)`."""
    return _in(METHODS, *((base, n) for n in names))


def class_method_of(fn: BuiltinFunctionType) -> Handler | None:
    """The handler of a C class method that is bound to a class, or None."""
    owner = cast(type, fn.__self__)
    for base in owner.__mro__:
        handler = CLASS_METHODS.get((base, fn.__name__))
        if handler is not None and fn == vars(base)[fn.__name__].__get__(None, owner):
            return handler
    handler = CLASS_METHODS.get((type, fn.__name__))
    return handler if handler is not None and fn == vars(type)[fn.__name__].__get__(owner) else None


def unsupported(detail: str, kind: ReasonKind = UNSUPPORTED_CALL) -> Unsupported:
    """The error of something that cannot be captured: `detail` of `kind`."""
    return Unsupported(Reason(kind, detail))
