"""The nested result of a program as data: a list of nodes, children before parents, the result last.

    node := tensor i | input path | number NumberOf | constant v
          | tuple i* | size i* | list i* | dict keys i* | fields class names i*

An object that the program returns twice is one node, so the rebuilt result holds it twice, too.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.errors import ProgramError


@dataclass(frozen=True)
class ResultNode:
    """One object of the result. `value` depends on the kind; `parts` are the positions of its members."""

    kind: str
    value: Any
    parts: tuple[int, ...]


def build(nodes: Sequence[ResultNode], tensors: Sequence[Any], read: Callable[[Any], Any]) -> Any:
    """The result, from the tensors of the plan; `read(path)` is the object at a path in the arguments."""
    made: list[Any] = []
    for node in nodes:
        if node.kind == "tensor":
            made.append(tensors[node.value])
        elif node.kind == "input":
            made.append(read(node.value))
        elif node.kind == "number":
            made.append(node.value.value(read))
        else:
            made.append(_CONTAINERS[node.kind](node.value, [made[i] for i in node.parts]))
    return made[-1]


def _with_fields(value: tuple[str, str, tuple[str, ...]], items: list[Any]) -> Any:
    """An instance of a named tuple's class or of a dataclass, with these fields whatever its constructor does. Raises
    ProgramError where the class is gone or is no such class any more."""
    module, name, fields = value
    try:
        cls: Any = importlib.import_module(module)
        for part in name.split("."):
            cls = getattr(cls, part)
    except (ImportError, AttributeError) as error:
        raise ProgramError(
            f"the program returns a {module}.{name}, which cannot be imported: {error}"
        ) from error
    if not isinstance(cls, type) or fields != fields_of(cls):
        raise ProgramError(
            f"the program returns a {module}.{name}, which is no named tuple and no dataclass with the fields "
            f"{', '.join(fields)} here"
        )
    if issubclass(cls, tuple):
        return tuple.__new__(cls, items)
    made = cls(**dict(zip(fields, items)))
    for field, item in zip(fields, items):
        if getattr(made, field) is not item:
            object.__setattr__(made, field, item)
    return made


def fields_of(cls: type) -> tuple[str, ...] | None:
    """The fields of a named tuple's class or of a dataclass; None for other classes."""
    if issubclass(cls, tuple):
        return getattr(cls, "_fields", None)
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


_CONTAINERS: Mapping[str, Callable[[Any, list[Any]], Any]] = {
    "constant": lambda value, items: value,
    "tuple": lambda value, items: tuple(items),
    "size": lambda value, items: torch.Size(items),
    "list": lambda value, items: items,
    "dict": lambda value, items: dict(zip(value, items)),
    "fields": _with_fields,
}
