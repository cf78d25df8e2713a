"""C iterators, read without advancing them: the items that they will yield, and their inner iterators.

The Python side of `native/cpython_iterators.cpp`. It calls `__reduce__` and runs no user code.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

from smelt._native import isinstance

Part = Literal["left", "over", "inner", "index", "strict"]

# How to read an item of the list (in either direction), tuple, range or text that an iterator walks over.
_ITEMS: dict[type, Callable[[Any, int], object]] = {
    type(iter([])): list.__getitem__,
    type(reversed([])): list.__getitem__,
    type(iter(())): tuple.__getitem__,
    type(iter(range(0))): range.__getitem__,
    type(iter("a")): str.__getitem__,
    type(iter("\u0100")): str.__getitem__,
}
_ENTRIES: frozenset[type] = frozenset((type(iter({})), type(iter({}.values())), type(iter({}.items()))))
RANGE = type(iter(range(0)))
WALKS = frozenset(_ITEMS) | _ENTRIES
_LISTS: frozenset[type] = frozenset((type(iter([])), type(reversed([]))))
OVER_CHANGING = _LISTS | _ENTRIES


def item_ahead(iterator: Any, count: int) -> object:
    """The item that `iterator` yields after `count` others. Raises IndexError if it ends before, TypeError for another kind
    of iterator."""
    if not 0 <= count < items_left(iterator):
        raise IndexError(count)
    if type(iterator) in _ENTRIES:
        return _entries(iterator)[count]
    _, (over, *_), *state = iterator.__reduce__()
    at = (state[0] if state else 0) or 0
    return _ITEMS[type(iterator)](over, at - count if type(iterator) is type(reversed([])) else at + count)


def items_left(iterator: Any) -> int:
    """The number of items that `iterator` will yield. Raises TypeError for another kind of iterator."""
    if type(iterator) not in WALKS:
        raise TypeError(f"a {type(iterator).__name__} does not expose its next items")
    return len(_entries(iterator)) if type(iterator) in _ENTRIES else operator.length_hint(iterator)


def has_changed_size(iterator: object) -> bool:
    """Whether `next(iterator)` raises because the dictionary that it walks over has changed."""
    if type(iterator) not in _ENTRIES:
        return False
    try:
        _entries(iterator)
    except ValueError:
        return True
    return False


def _entries(iterator: Any) -> list[object]:
    """The items that an iterator over a dictionary will yield. Raises ValueError if the size of the dictionary changed."""
    try:
        left: list[object] = iterator.__reduce__()[1][0]
    except RuntimeError as e:
        raise ValueError(str(e)) from None
    return left


def _over(iterator: Any) -> object:
    """The list or dictionary that `iterator` walks over and that may still change; None at the end."""
    if type(iterator) in _ENTRIES:
        return next((x for x in gc.get_referents(iterator) if isinstance(x, dict)), None)
    if type(iterator) not in _LISTS:
        raise TypeError("an iterator over an immutable object")
    _, (over, *_), *state = iterator.__reduce__()
    return over if state and state[0] >= 0 else None  # a negative index: a reversed iterator at its end


def _inner(iterator: Any) -> object:
    """The iterator in an enumerate, the tuple of iterators in a zip."""
    inner = iterator.__reduce__()[1]
    return inner if type(iterator) is zip else _of(enumerate, iterator) and inner[0]


def _index(iterator: Any) -> int:
    if is_long(_of(enumerate, iterator)):
        raise ValueError("a number that is too large")
    index: int = iterator.__reduce__()[1][1]
    return index


def is_long(iterator: Any) -> bool:
    """Whether the next number of an enumerate exceeds a C integer."""
    index: int = iterator.__reduce__()[1][1]
    return not -sys.maxsize <= index < sys.maxsize


def _of(kind: type, iterator: Any) -> Any:
    if type(iterator) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return iterator


PARTS: dict[Part, Callable[[Any], object]] = {
    "left": items_left,
    "over": _over,
    "inner": _inner,
    "index": _index,
    "strict": lambda iterator: len(_of(zip, iterator).__reduce__()) > 2,
}


def advance(iterator: Iterator[object], count: int) -> None:
    """Advance `iterator` by `count` items, or to its end."""
    for _ in range(count):
        next(iterator, None)
