"""The nested result of a program as data: a list of nodes, children before parents, the result last.

    node := tensor i | input path | number NumberOf | constant v
          | tuple i* | size i* | list i* | dict keys i* | fields class names i*

An object that the program returns twice is one node, so the rebuilt result holds it twice, too.
"""

from __future__ import annotations

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
    """An instance of a named tuple's class or of a dataclass. Raises ProgramError if the class cannot be imported."""
    module, name, fields = value
    try:
        cls: Any = importlib.import_module(module)
        for part in name.split("."):
            cls = getattr(cls, part)
    except (ImportError, AttributeError) as error:
        raise ProgramError(
            f"the program returns a {module}.{name}, which cannot be imported: {error}"
        ) from error
    return cls(**dict(zip(fields, items)))


_CONTAINERS: Mapping[str, Callable[[Any, list[Any]], Any]] = {
    "constant": lambda value, items: value,
    "tuple": lambda value, items: tuple(items),
    "size": lambda value, items: torch.Size(items),
    "list": lambda value, items: items,
    "dict": lambda value, items: dict(zip(value, items)),
    "fields": _with_fields,
}
