"""Sources: where an object that came from outside a captured frame was found.

A source is an interned, immutable path from a root (an argument slot of the frame, or an object known by identity
such as a module's globals) through attribute, item and cell reads. It renders as source that rebuilds the object, as
an accessor path of the native guard tree, and as a name for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from smelt._native import isinstance
from smelt.guards.weak_identity import Weakly, held, weakly, weakly_if_identity

SourceKind = Literal[
    "arg",        # key: argument name; root. `index` is its slot in the frame's argument slots
    "const",      # root known by identity (globals dict, module, class, function); key: readable name
    "attr",       # base.key found in the instance's __dict__ (guard reads object.__dict__[key], no user code)
    "member",     # base.key through a C slot/getset descriptor or generic getattr without user code
    "param",      # nn.Module: base._parameters[key] / _buffers[key] / _modules[key], whichever holds it
    "item",       # base[key] of list/tuple/dict/OrderedDict/deque (dict: key is a constant)
    "cell",       # base.__closure__[key].cell_contents
    "default",    # base.__defaults__[key]
    "kwdefault",  # base.__kwdefaults__[key]
    "type",       # type(base)
    "dict",       # base.__dict__ (the dictionary itself)
    "array",      # torch.from_numpy(base): a graph input that the compiled frame makes
    "ahead",      # the item that the iterator base gives after key others (guards/iterator_state.py)
    "part",       # of an iterator: key is a row of guards.iterators.PARTS
    "element",    # the number that the tensor base holds at place key, counted along its last dimension first
    "script",     # an attribute of TorchScript's own object of a module
    "call",       # base() for a registered zero-argument reader (ContextVar.get, ...)
    "drawn",      # a random number that the compiled frame draws; root. `index` counts them; key: readable name
]  # fmt: skip


def key_text(key: Any) -> str:
    """A key as Python source; a tensor is written as its class, since its values would fill the line."""
    return f"<{type(key).__name__}>" if isinstance(key, torch.Tensor) else repr(key)


def key_name(key: Any) -> str:
    """A key as part of a variable's name in the compiled frame."""
    return type(key).__name__.lower() if isinstance(key, torch.Tensor) else str(key)


def _attribute(base: str, key: Any) -> str:
    return f"{base}.{key}"


# Each row is a function, not a format: a key may be a tensor, which takes long to write.
_SOURCES: dict[str, Callable[[str, Any], str]] = {
    "attr": _attribute,
    "member": _attribute,
    "param": _attribute,
    "item": lambda base, key: f"{base}[{key_text(key)}]",
    "cell": lambda base, key: f"{base}.__closure__[{key!r}].cell_contents",
    "default": lambda base, key: f"{base}.__defaults__[{key!r}]",
    "kwdefault": lambda base, key: f"{base}.__kwdefaults__[{key!r}]",
    "type": lambda base, key: f"type({base})",
    "dict": lambda base, key: f"{base}.__dict__",
    "array": lambda base, key: f"torch.from_numpy({base})",
    "ahead": lambda base, key: f"item_ahead({base}, {key})",
    "part": lambda base, key: f"{base}.<{key}>",
    "element": lambda base, key: f"{base}.flatten()[{key}].item()",
    "script": lambda base, key: f"{base}.getattr({key!r})",
    "call": lambda base, key: f"{base}()",
}


@dataclass(frozen=True, eq=False)
class Source:
    """Where one object is found. Interned: a capture makes each root once, and `child` all else; compare with `is`."""

    kind: SourceKind
    _key: Any
    base: Source | None = None
    index: int = -1  # kind arg: slot number; kind drawn: which draw
    value: Any = None  # kind const: the object, held weakly if it can be: `known`
    children: dict[tuple[SourceKind, type, object], Source] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", weakly_if_identity(self._key))
        if self.kind == "const":
            object.__setattr__(self, "value", weakly(self.value))

    @property
    def key(self) -> Any:
        """What the step is made by; `GONE` where it is an object that lives no more."""
        return held(self._key)

    @property
    def known(self) -> Any:
        """The object of a root of kind const; `GONE` where it lives no more."""
        return held(self.value)

    @property
    def root(self) -> Source:
        """Where the path begins."""
        return self if self.base is None else self.base.root

    def child(self, kind: SourceKind, key: Any) -> Source:
        """The source one step further: the same object for the same kind and key. Keys of unequal types differ."""
        k = (kind, type(key), weakly_if_identity(key))
        found = self.children.get(k)
        if found is None:
            found = self.children[k] = Source(kind, key, self)
        return found

    @property
    def path(self) -> tuple[object, ...]:
        """The steps from the root. Two captures make two sources for one place; their paths are equal."""
        if self.base is None:
            address = self.value.address if type(self.value) is Weakly else id(self.value)
            return (self.kind, address if self.kind == "const" else self.index)
        return (*self.base.path, self.kind, type(self.key), self._key)

    @property
    def source(self) -> str:
        """Python source for the object, as a person would write it."""
        if self.base is None:
            return f"L[{self.key!r}]" if self.kind == "arg" else str(self.key)
        return _SOURCES[self.kind](self.base.source, self.key)

    def __repr__(self) -> str:
        return self.source


def source_at(path: tuple[Any, ...], roots: Sequence[Source]) -> Source | None:
    """The source of this path, from one of these arguments; None where it begins elsewhere."""
    found = next((root for root in roots if root.path == path[:2]), None)
    for i in range(2, len(path) if found else 0, 3):
        assert found is not None
        kind, _, key = path[i : i + 3]
        found = found.child(kind, held(key))
    return found
