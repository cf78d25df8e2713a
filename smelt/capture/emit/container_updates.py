"""Replacement of a container's contents in compiled frames. Other threads never observe the container empty, nor without an
element that it holds both before and after.

Only methods of the builtin bases are called, so that no code of the user's classes runs.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice


def refill_deque(target: deque[object], items: Sequence[object]) -> None:
    """Replace the contents of `target` by `items`, in order."""
    deque.extend(target, items)
    for _ in range(deque.__len__(target) - len(items)):
        deque.popleft(target)


def refill_set(target: set[object], items: Sequence[object]) -> None:
    """Replace the contents of `target` by `items`; its order is then that of a set to which they were added one by one."""
    set.update(target, items)
    set.intersection_update(target, items)  # builds a new table in this order, and swaps it in


def _refill_dict(
    kind: type[dict[object, object]], to_end: Callable[[dict[object, object], object, object], None]
) -> Callable[[dict[object, object], Sequence[tuple[object, object]]], None]:
    def refill(target: dict[object, object], items: Sequence[tuple[object, object]]) -> None:
        old_keys = {id(key) for key in kind.keys(target)}
        if [id(key) for key in kind.keys(target)] == [id(key) for key, _ in items]:
            for key, value in items:
                kind.__setitem__(target, key, value)
            return
        for key, value in items:
            if id(key) not in old_keys and dict.__contains__(target, key):
                kind.__delitem__(target, key)  # else the old, equal key would stay
            to_end(target, key, value)
        for key in list(islice(kind.keys(target), dict.__len__(target) - len(items))):
            kind.__delitem__(target, key)

    return refill


def _put_last(target: dict[object, object], key: object, value: object) -> None:
    dict.pop(target, key, None)
    dict.__setitem__(target, key, value)


def _put_last_ordered(target: dict[object, object], key: object, value: object) -> None:
    OrderedDict.__setitem__(target, key, value)
    OrderedDict.move_to_end(target, key)  # type: ignore[arg-type]


REFILLS: dict[str, Callable[..., None]] = {
    "deque": refill_deque,
    "set": refill_set,
    "dict": _refill_dict(dict, _put_last),
    "OrderedDict": _refill_dict(OrderedDict, _put_last_ordered),
}
