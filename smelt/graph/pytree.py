"""Walks over nested arguments: lists, tuples (named ones and sizes included), dicts and slices; everything else is a
leaf.

The caller names the class of the leaves. An object of that class is a leaf even if it is a container.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

Kind = type | tuple[type, ...]

# Classes that are no containers. Most arguments are sizes, so these are looked for first.
PLAIN: frozenset[type] = frozenset({int, float, bool, type(None), str, torch.dtype, torch.device})


def map_leaves(tree: Any, kind: Kind, f: Callable[[Any], Any]) -> Any:
    """`tree` with `f(leaf)` for each leaf of class `kind`; containers retain their classes."""
    return _mapped((tree,), kind, _others(kind), f)[0]


def _mapped(trees: Iterable[Any], kind: Kind, others: frozenset[type], f: Callable[[Any], Any]) -> list[Any]:
    made: list[Any] = []
    for tree in trees:
        if type(tree) in others:
            made.append(tree)
        elif isinstance(tree, kind):
            made.append(f(tree))
        elif isinstance(tree, (list, tuple)):
            made.append(_like(tree, _mapped(tree, kind, others, f)))
        elif isinstance(tree, dict):
            made.append(dict(zip(tree, _mapped(tree.values(), kind, others, f), strict=True)))
        elif type(tree) is slice:
            made.append(slice(*_mapped((tree.start, tree.stop, tree.step), kind, others, f)))
        else:
            made.append(tree)
    return made


def _like(container: Any, items: list[Any]) -> Any:
    """A list or tuple of the class of `container`, with other items."""
    cls = type(container)
    return items if cls is list else cls(*items) if hasattr(cls, "_fields") else cls(items)


def leaves(tree: Any, kind: Kind) -> list[Any]:
    """The leaves of class `kind`, in order, with repetitions."""
    found: list[Any] = []
    _collect((tree,), kind, _others(kind), found)
    return found


def _collect(trees: Iterable[Any], kind: Kind, others: frozenset[type], found: list[Any]) -> None:
    for tree in trees:
        if type(tree) in others:
            continue
        if isinstance(tree, kind):
            found.append(tree)
        elif isinstance(tree, (list, tuple)):
            _collect(tree, kind, others, found)
        elif isinstance(tree, dict):
            _collect(tree.values(), kind, others, found)
        elif type(tree) is slice:
            _collect((tree.start, tree.stop, tree.step), kind, others, found)


@functools.cache
def _others(kind: Kind) -> frozenset[type]:
    """The classes in PLAIN other than `kind`."""
    return frozenset(cls for cls in PLAIN if not issubclass(cls, kind))
