"""Iterators of C, read without advancing them: what they will give, and the iterators inside of others.

The Python side of `native/cpython_iterators.cpp`, by what `__reduce__` says; it runs no code of the user's.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

from smelt._native import isinstance

Part = Literal["left", "over", "inner", "index", "strict"]

# Iterators over a list (in either direction), a tuple, a range or a text: how an item is read.
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
    """The item that `iterator` gives after `count` others. Raises IndexError where it ends before, TypeError for an iterator
    of another kind."""
    if not 0 <= count < items_left(iterator):
        raise IndexError(count)
    if type(iterator) in _ENTRIES:
        return _entries(iterator)[count]
    _, (over, *_), *state = iterator.__reduce__()
    at = (state[0] if state else 0) or 0
    return _ITEMS[type(iterator)](over, at - count if type(iterator) is type(reversed([])) else at + count)


def items_left(iterator: Any) -> int:
    """How many items `iterator` has left. Raises TypeError for one of another kind."""
    if type(iterator) not in WALKS:
        raise TypeError(f"a {type(iterator).__name__} may not say what it will give")
    return len(_entries(iterator)) if type(iterator) in _ENTRIES else operator.length_hint(iterator)


def has_changed_size(iterator: object) -> bool:
    """Whether the next item of `iterator` is an error, since the dictionary that it walks over has changed."""
    if type(iterator) not in _ENTRIES:
        return False
    try:
        _entries(iterator)
    except ValueError:
        return True
    return False


def _entries(iterator: Any) -> list[object]:
    """What is left of an iterator over a dictionary. Raises ValueError where the dictionary has another size than it had."""
    try:
        left: list[object] = iterator.__reduce__()[1][0]
    except RuntimeError as e:
        raise ValueError(str(e)) from None
    return left


def _over(iterator: Any) -> object:
    """The list or dictionary that is walked over, which may still change; None at the end."""
    if type(iterator) in _ENTRIES:
        return next((x for x in gc.get_referents(iterator) if isinstance(x, dict)), None)
    if type(iterator) not in _LISTS:
        raise TypeError("an iterator over what does not change")
    _, (over, *_), *state = iterator.__reduce__()
    return over if state and state[0] >= 0 else None  # before the first item there is nothing more to come


def _inner(iterator: Any) -> object:
    """Of enumerate an iterator, of zip a tuple of them."""
    inner = iterator.__reduce__()[1]
    return inner if type(iterator) is zip else _of(enumerate, iterator) and inner[0]


def _index(iterator: Any) -> int:
    if is_long(_of(enumerate, iterator)):
        raise ValueError("a number that is too large")
    index: int = iterator.__reduce__()[1][1]
    return index


def is_long(iterator: Any) -> bool:
    """Whether an enumerate has come to numbers that it keeps as objects."""
    index: int = iterator.__reduce__()[1][1]
    return not -sys.maxsize <= index < sys.maxsize


def _strict(iterator: Any) -> bool:
    return len(_of(zip, iterator).__reduce__()) > 2


def _of(kind: type, iterator: Any) -> Any:
    if type(iterator) is not kind:
        raise TypeError(f"not a {kind.__name__}")
    return iterator


PARTS: dict[Part, Callable[[Any], object]] = {
    "left": items_left,
    "over": _over,
    "inner": _inner,
    "index": _index,
    "strict": _strict,
}


def advance(iterator: Iterator[object], count: int) -> None:
    """Takes `count` items from `iterator`, which may have fewer."""
    for _ in range(count):
        next(iterator, None)
