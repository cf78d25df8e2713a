"""Plain Python versions of native functions that call Python back; the VM interprets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def reversed_sequence(obj: Any) -> Iterator[Any]:
    for i in range(len(obj) - 1, -1, -1):
        yield obj[i]


def iterate_sequence(obj: Any) -> Iterator[Any]:
    """The iterator of an object with `__getitem__` only."""
    i = 0
    while True:
        try:
            value = obj[i]
        except IndexError:
            return
        yield value
        i += 1
