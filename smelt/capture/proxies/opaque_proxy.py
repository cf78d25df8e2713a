"""Proxies for environment objects that change from call to call and that the program only passes on.

An `OpaqueProxy` stands for such an object (a tuple, bytes, a complex number, a NumPy scalar, an enum member, a date). Guards
check only its class, or nothing if the class of the argument keeps changing. The program may store it, return it and pass it
to Python functions; at a graph break, the compiled frame passes on the object itself. Any other use raises `Unreadable`, and
the next attempt guards the value (`capture/driver/capture_attempts.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.capture.proxies.text_proxy import unreadable


class OpaqueProxy:
    """Proxy for `value`, an object of the environment. `has_class`: a guard checks its class."""

    __slots__ = ("has_class", "value")

    def __init__(self, value: object, has_class: bool = True) -> None:
        self.value = value
        self.has_class = has_class

    @property
    def kind(self) -> type:
        """The class of the object. Raises Unreadable if no guard checks it."""
        if not self.has_class:
            raise unreadable("the class of an object that changes decides", self)
        return type(self.value)

    def __getattr__(self, name: str) -> object:
        raise unreadable(f"attribute {name} of an object that changes", self)


def _refused_method(name: str) -> Callable[..., object]:
    def refuse(self: OpaqueProxy, *args: object) -> object:
        raise unreadable(f"{name} of an object that changes", self)

    return refuse


_OPERATORS = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift", "and", "xor", "or",
)  # fmt: skip
for _name in (
    *_OPERATORS, *(f"r{name}" for name in _OPERATORS), "str", "repr", "format", "bytes", "len", "iter", "reversed",
    "getitem", "contains", "eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "int", "float", "complex", "index", "neg",
    "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "call", "enter", "exit", "copy", "deepcopy", "reduce_ex",
    "array", "buffer",
):  # fmt: skip
    setattr(OpaqueProxy, f"__{_name}__", _refused_method(f"__{_name}__"))
