"""Rows for the built-in containers, and the expressions of their contents."""

from __future__ import annotations

import collections
import gc
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import torch

from smelt import _native
from smelt._native import isinstance
from smelt.capture.base.value_kinds import is_constant, is_identity
from smelt.capture.reconstruction.frame_globals import provide
from smelt.capture.reconstruction.reconstruction_kind import Expressions, ReconstructionKind

K = TypeVar("K")
_Table = tuple[int, int, tuple[int, ...]]


def list_text(items: Iterable[object], text: Expressions) -> str:
    """The display of a list with these items."""
    return "[" + ", ".join(map(text, items)) + "]"


def tuple_text(items: tuple[object, ...], text: Expressions) -> str:
    """The display of a tuple with these items."""
    inner = ", ".join(map(text, items))
    return f"({inner},)" if len(items) == 1 else f"({inner})"


def dict_text(items: Mapping[K, object], text: Expressions) -> str:
    """The display of a dictionary with these items."""
    return "{" + ", ".join(f"{text(k)}: {text(v)}" for k, v in _items(items)) + "}"


def set_text(x: Collection[object], text: Expressions) -> str:
    """A set of these elements, added one by one, which a display of more than two constants does not do."""
    if not x:
        return "set()"
    return "{" + ", ".join(map(text, x)) + "}" if len(x) < 3 else f"set({tuple_text(tuple(x), text)})"


def _set_with_layout(
    kind: type[set[object]] | type[frozenset[object]], items: tuple[object, ...], table: _Table
) -> object:
    """The set of these items with this hash table. Where the items have other hashes, their order differs."""
    try:
        return _native.lay_out(kind(()), items, table)
    except ValueError:
        return kind(items)


def _set_kind(
    kind: type[set[object]] | type[frozenset[object]],
    from_elements: Callable[[Collection[object], Expressions], str],
) -> ReconstructionKind:
    """The row of a set. The order of a set, now and later, depends on its history: where the elements alone do not give the
    same hash table, the table is restored."""

    def create(x: set[object] | frozenset[object], text: Expressions) -> str:
        table, items = _native.set_table(x), tuple(x)
        plain = kind(items)
        if _native.set_table(plain) == table and all(map(operator.is_, plain, items)):
            return from_elements(x, text)
        if not all(is_constant(i) or is_identity(i) for i in items):  # their hashes may differ
            return from_elements(x, text)
        return f"set_with_layout({kind.__name__}, {tuple_text(items, text)}, {table})"

    return ReconstructionKind(lambda x: x, create)


def _items(x: Mapping[K, object]) -> Iterable[tuple[K, object]]:
    """The items in order, of which an OrderedDict has its own."""
    if isinstance(x, collections.OrderedDict):
        return collections.OrderedDict.items(x)
    return dict.items(x)  # type: ignore[arg-type]


def pairs(x: Mapping[K, object]) -> list[object]:
    """The keys and values of a dictionary, in turn."""
    return [element for pair in _items(x) for element in pair]


def _extend(x: Collection[object], text: Expressions, name: str) -> list[str]:
    return [f"{name}.extend({list_text(x, text)})"] if x else []


def _update(x: Mapping[K, object], text: Expressions, name: str) -> list[str]:
    return [f"{name}.update({dict_text(x, text)})"] if x else []


def _deque_text(x: collections.deque[object], text: Expressions) -> str:
    limit = "" if x.maxlen is None else f", {x.maxlen}"
    return f"deque({list_text(x, text)}{limit})"


def _empty_deque(x: collections.deque[object], text: Expressions) -> str:
    return f"deque((), {x.maxlen})"


def _fill_namespace(x: types.SimpleNamespace, text: Expressions, name: str) -> list[str]:
    return [f"{name}.__dict__.update({dict_text(vars(x), text)})"] if vars(x) else []


def _view_kind(view: str) -> ReconstructionKind:
    """The row of a `keys()`, `values()` or `items()` view; only the garbage collector finds its dictionary."""
    return ReconstructionKind(gc.get_referents, lambda x, text: f"{text(gc.get_referents(x)[0])}.{view}()")


provide(set_with_layout=_set_with_layout)
_VIEWS = ("keys", "values", "items")

CONTAINERS: dict[type, ReconstructionKind] = {
    tuple: ReconstructionKind(lambda x: x, tuple_text),
    list: ReconstructionKind(lambda x: x, list_text, lambda x, text: "[]", _extend, lambda x: x),
    dict: ReconstructionKind(pairs, dict_text, lambda x, text: "{}", _update, pairs),
    set: _set_kind(set, set_text),
    frozenset: _set_kind(frozenset, lambda x, text: f"frozenset({tuple_text(tuple(x), text)})"),
    collections.deque: ReconstructionKind(lambda x: x, _deque_text, _empty_deque, _extend, lambda x: x),
    collections.OrderedDict: ReconstructionKind(
        pairs,
        lambda x, text: f"OrderedDict({dict_text(x, text)})",
        lambda x, text: "OrderedDict()",
        _update,
        pairs,
    ),
    collections.defaultdict: ReconstructionKind(
        lambda x: [x.default_factory, *pairs(x)],
        lambda x, text: f"defaultdict({text(x.default_factory)}, {dict_text(x, text)})",
        lambda x, text: f"defaultdict({text(x.default_factory)})",
        _update,
        pairs,
    ),
    slice: ReconstructionKind(
        lambda x: (x.start, x.stop, x.step),
        lambda x, text: f"slice({text(x.start)}, {text(x.stop)}, {text(x.step)})",
    ),
    types.MappingProxyType: ReconstructionKind(
        gc.get_referents, lambda x, text: f"MappingProxyType({text(gc.get_referents(x)[0])})"
    ),
    types.SimpleNamespace: ReconstructionKind(
        lambda x: pairs(vars(x)),
        lambda x, text: f"SimpleNamespace(**{dict_text(vars(x), text)})",
        lambda x, text: "SimpleNamespace()",
        _fill_namespace,
        lambda x: pairs(vars(x)),
    ),
    **{
        type(getattr(kind(), view)()): _view_kind(view)
        for kind in (dict, collections.OrderedDict)
        for view in _VIEWS
    },
    torch.Size: ReconstructionKind(tuple, lambda x, text: f"torch.Size({list_text(x, text)})"),
    bytearray: ReconstructionKind(lambda x: (), lambda x, text: f"bytearray({bytes(x)!r})"),
}


def result_tuple(cls: type) -> ReconstructionKind:
    """The row of a structure sequence in C (torch.return_types.max, time.struct_time), created from a tuple of its items."""
    return ReconstructionKind(
        lambda x: tuple(x), lambda x, text: f"{text(cls)}({tuple_text(tuple(x), text)})"
    )
