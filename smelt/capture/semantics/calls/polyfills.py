"""Python versions of native functions that call Python code back; the VM interprets them."""

from __future__ import annotations

import bisect
from typing import Any, Protocol, TypeVar


class _Orderable(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


O = TypeVar("O", bound=_Orderable)


# From Lib/heapq.py and Lib/bisect.py.


def heappush(heap: list[O], item: O) -> None:
    """`heapq.heappush`, whose comparisons may be Python code."""
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


def heappop(heap: list[O]) -> O:
    """`heapq.heappop`, whose comparisons may be Python code."""
    last = heap.pop()
    if heap:
        first = heap[0]
        heap[0] = last
        _sift_up(heap, 0)
        return first
    return last


def heapreplace(heap: list[O], item: O) -> O:
    """`heapq.heapreplace`, whose comparisons may be Python code."""
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


def heappushpop(heap: list[O], item: O) -> O:
    """`heapq.heappushpop`, whose comparisons may be Python code."""
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


def heapify(x: list[O]) -> None:
    """`heapq.heapify`, whose comparisons may be Python code."""
    for i in reversed(range(len(x) // 2)):
        _sift_up(x, i)


def _sift_down(heap: list[O], start: int, at: int) -> None:
    new = heap[at]
    while at > start:
        parent = (at - 1) >> 1
        if not new < heap[parent]:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = new


def _sift_up(heap: list[O], at: int) -> None:
    end, start, new = len(heap), at, heap[at]
    child = 2 * at + 1
    while child < end:
        right = child + 1
        if right < end and not heap[child] < heap[right]:
            child = right
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = new
    _sift_down(heap, start, at)


def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    """`bisect.insort_right`, whose comparisons may be Python code."""
    a.insert(bisect.bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    """`bisect.insort_left`, whose comparisons may be Python code."""
    a.insert(bisect.bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)
