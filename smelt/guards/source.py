"""Sources: paths to the objects of the captured environment.

A source is an interned, immutable path from a root (an argument slot of the frame, or an object known by identity
such as a module's globals) through attribute, item and cell reads. `source` renders it as Python source, for people;
`tree_layout.py` turns its steps into accessors of the native guard tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from smelt._native import isinstance
from smelt.guards.weak_identity import WeakIdentity, strong, weak, weak_if_identity_hashed

SourceKind = Literal[
    "arg",        # key: argument name; root. `index` is its slot in the frame's argument slots
    "const",      # root compared by identity (globals dict, module, class, function); key: readable name
    "attr",       # base.key found in the instance's __dict__ (guard reads object.__dict__[key], no user code)
    "member",     # base.key through a C slot/getset descriptor or generic getattr without user code
    "param",      # nn.Module: base._parameters[key] / _buffers[key] / _modules[key], whichever holds it
    "item",       # base[key] of list/tuple/dict/OrderedDict/deque (dict: key is a constant)
    "cell",       # base.__closure__[key].cell_contents
    "default",    # base.__defaults__[key]
    "kwdefault",  # base.__kwdefaults__[key]
    "type",       # type(base)
    "dict",       # base.__dict__ (the dictionary itself)
    "array",      # torch.from_numpy(base): a graph input that the compiled frame creates
    "values",     # the values of the jagged nested tensor base under autograd: a graph input that the compiled frame creates
    "gradient",     # a part of the gradient of the wrapper subclass base: a graph input that the compiled frame creates
    "ahead",      # the item that the iterator base yields after key others (guards/iterator_state.py)
    "part",       # state of an iterator: key is a row of `iterator_state.PARTS`
    "element",    # the number at index key of the tensor base, in row-major order
    "script",     # an attribute of the TorchScript object of a module
    "call",       # base() for a registered zero-argument reader (ContextVar.get, ...)
    "drawn",      # a random number that the compiled frame draws; root. `index` counts them; key: readable name
]  # fmt: skip


def key_text(key: Any) -> str:
    """A key as Python source; a tensor as its class, because its values would fill the line."""
    return f"<{type(key).__name__}>" if isinstance(key, torch.Tensor) else repr(key)


def key_name(key: Any) -> str:
    """A key as part of a variable's name in the compiled frame."""
    return type(key).__name__.lower() if isinstance(key, torch.Tensor) else str(key)


# Each row is a function, not a format: a key may be a tensor, which takes long to print.
_SOURCES: dict[str, Callable[[str, Any], str]] = {
    "attr": lambda base, key: f"{base}.{key}",
    "member": lambda base, key: f"{base}.{key}",
    "param": lambda base, key: f"{base}.{key}",
    "item": lambda base, key: f"{base}[{key_text(key)}]",
    "cell": lambda base, key: f"{base}.__closure__[{key!r}].cell_contents",
    "default": lambda base, key: f"{base}.__defaults__[{key!r}]",
    "kwdefault": lambda base, key: f"{base}.__kwdefaults__[{key!r}]",
    "type": lambda base, key: f"type({base})",
    "dict": lambda base, key: f"{base}.__dict__",
    "array": lambda base, key: f"torch.from_numpy({base})",
    "values": lambda base, key: f"{base}.values()",
    "gradient": lambda base, key: f"gradient of {base}",
    "ahead": lambda base, key: f"item_ahead({base}, {key})",
    "part": lambda base, key: f"{base}.<{key}>",
    "element": lambda base, key: f"{base}.flatten()[{key}].item()",
    "script": lambda base, key: f"{base}.getattr({key!r})",
    "call": lambda base, key: f"{base}()",
}


@dataclass(frozen=True, eq=False)
class Source:
    """The path to one object. Interned: a capture creates each root once, and `child` everything else; compare with `is`."""

    kind: SourceKind
    _key: Any
    base: Source | None = None
    index: int = -1  # kind arg: slot number; kind drawn: which draw
    value: Any = None  # kind const: the object, a weak reference if possible: `known`
    children: dict[tuple[SourceKind, type, object], Source] = field(default_factory=dict, repr=False)
    names: tuple[str, ...] = ()  # kind arg, of a tuple of arguments: the parameters that they are for

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", weak_if_identity_hashed(self._key))
        if self.kind == "const":
            object.__setattr__(self, "value", weak(self.value))

    @property
    def key(self) -> Any:
        """The key of the last step; `GONE` in place of a destroyed object."""
        return strong(self._key)

    @property
    def known(self) -> Any:
        """The object of a root of kind const; `GONE` if it was destroyed."""
        return strong(self.value)

    @property
    def root(self) -> Source:
        """The first step of the path."""
        return self if self.base is None else self.base.root

    def child(self, kind: SourceKind, key: Any) -> Source:
        """The source one step further: the same object for the same kind and key. Keys of unequal types differ."""
        k = (kind, type(key), weak_if_identity_hashed(key))
        found = self.children.get(k)
        if found is None:
            found = self.children[k] = Source(kind, key, self)
        return found

    @property
    def path(self) -> tuple[object, ...]:
        """The steps from the root, equal for the sources of two captures that lead to one object."""
        if self.base is None:
            address = self.value.address if type(self.value) is WeakIdentity else id(self.value)
            return (self.kind, address if self.kind == "const" else self.index)
        return (*self.base.path, self.kind, type(self.key), self._key)

    @property
    def parameter(self) -> str | None:
        """The name of the parameter that the object is an argument for, if it is in a tuple of arguments."""
        names = () if self.base is None or self.kind != "item" else self.base.names
        return names[self.key] if type(self.key) is int and 0 <= self.key < len(names) else None

    @property
    def source(self) -> str:
        """Python source of the object, for people."""
        if self.base is None:
            return f"L[{self.key!r}]" if self.kind == "arg" else str(self.key)
        if self.parameter is not None:
            return f"L[{self.parameter!r}]"
        return _SOURCES[self.kind](self.base.source, self.key)

    def __repr__(self) -> str:
        return self.source


def source_at(path: tuple[Any, ...], roots: Sequence[Source]) -> Source | None:
    """The source of this path from one of these arguments; None if it has another root."""
    found = next((root for root in roots if root.path == path[:2]), None)
    for i in range(2, len(path) if found else 0, 3):
        assert found is not None
        kind, _, key = path[i : i + 3]
        found = found.child(kind, strong(key))
    return found
