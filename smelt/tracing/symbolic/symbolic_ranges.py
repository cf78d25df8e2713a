"""Ranges and lists of ints whose length is symbolic: what `range(n)` and `list(range(n))` are for a size that changes.

They stand for real ones where the program has them. Their length, parts of them, elements at known places, tensors and
indices made of them need no number. Whatever else looks at them does: a range is then made anew, of plain numbers; a list
may be held elsewhere, so that the capture begins again with a number for its length.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from smelt.errors import NeedsFixedSize
from smelt.shapes.constant_ranges import constant_range
from smelt.shapes.expr import free_syms
from smelt.tracing.symbolic.numpy_ints import NumpyInt
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Int, is_size, plain


class SymbolicRange:
    """`range(start, stop, step)`: at least one int, how many is symbolic."""

    __slots__ = ("parts",)

    def __init__(self, start: Any, stop: Any, step: int) -> None:
        self.parts = start, stop, step

    def plain(self) -> range:
        """The range of this call, its numbers pinned."""
        return range(*map(plain, self.parts))

    def listed(self) -> SymbolicList:
        """A list of the same."""
        start, _, step = self.parts
        return SymbolicList((), start, step, _count(*self.parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain(), name)


class SymbolicList:
    """A list of the ints in `head`, and behind them `count` others: `start`, `start + step`, ..., up to `stop`."""

    __slots__ = ("count", "head", "start", "step", "stop")

    def __init__(self, head: Sequence[Any], start: Any, step: int, count: Any) -> None:
        self.head, self.start, self.step, self.count = tuple(head), start, step, count
        self.stop = start + count * step

    @property
    def length(self) -> Any:
        """How many elements there are, a symbolic number."""
        return len(self.head) + self.count

    def plain(self) -> NoReturn:
        """Raises NeedsFixedSize: the elements are needed."""
        size = self.count.node.size
        ranges = constant_range(size, self.count.node.symbols.hints)
        raise NeedsFixedSize("a list is needed that has a number of elements", free_syms(size), ranges=ranges)

    def at(self, place: Any) -> Any:
        """The element at a place that is known to be in the list."""
        if type(place) is not int:
            return self.plain()
        at = place + self.count if place < 0 else place - len(self.head)
        if type(at) is int and at < 0:
            return self.head[place]
        if not (at >= 0 and at < self.count):
            return self.plain()
        return self.start + at * self.step

    def part(self, key: slice) -> Any:
        """The list of the elements in a slice."""
        step = 1 if key.step is None else key.step
        if type(step) is not int or step == 0 or (step < 0 and self.head):
            return self.plain()
        first, last = _ends(key, step, self.length)
        before = len(self.head)
        if not before:
            return _listed((), self.start + first * self.step, self.step * step, _count(first, last, step))
        if type(first) is not int or not last > before:
            return self.plain()
        kept = self.head[first::step]
        first += len(kept) * step - before
        return _listed(
            kept, self.start + first * self.step, self.step * step, _count(first, last - before, step)
        )

    def behind(self, values: Sequence[Any]) -> SymbolicList:
        """The list with others in front."""
        return SymbolicList((*values, *self.head), self.start, self.step, self.count)

    def tensor(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """`torch.tensor(self, dtype=dtype, device=device)`, which the graph computes."""
        made = torch.arange(self.start, self.stop, self.step, dtype=torch.int64, device=device)
        if self.head:
            numbers = [torch.full((), n, dtype=torch.int64, device=device) for n in self.head]
            made = torch.cat([torch.stack(numbers), made])
        return made if dtype is None else made.to(dtype)

    def __getattr__(self, name: str) -> Any:
        return self.plain()


def _looks(name: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        return getattr(self.plain(), f"__{name}__")(*others)

    return method


for _name in (
    "iter", "len", "getitem", "setitem", "delitem", "contains", "reversed", "eq", "ne", "lt", "le", "gt", "ge", "hash",
    "bool", "add", "radd", "iadd", "mul", "rmul", "imul", "repr", "str", "format", "copy", "deepcopy", "reduce_ex",
):  # fmt: skip
    setattr(SymbolicRange, f"__{_name}__", _looks(_name))
    setattr(SymbolicList, f"__{_name}__", _looks(_name))
for _row in (SymbolicRange, SymbolicList):
    collections.abc.Sequence.register(_row)  # so that patterns of `match` take it for one

ROWS: frozenset[type] = frozenset({SymbolicRange, SymbolicList})
# What stands for an object of another class, with one of those.
EXAMPLES: dict[type, Any] = {SymbolicRange: range(0), SymbolicList: [], NumpyInt: np.int64()}
SHOWN_AS: dict[type, type] = {kind: type(example) for kind, example in EXAMPLES.items()}


def symbolic_range(args: Sequence[Any]) -> SymbolicRange | None:
    """`range(*args)`; None where its length is not symbolic, or data decide it."""
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    if type(step) is not int or step == 0 or not all(type(n) is int or is_size(n) for n in (start, stop)):
        return None
    count = _count(start, stop, step)
    if type(count) is not Int:
        return None
    count.node.symbols.has_standins = True
    return SymbolicRange(start, stop, step)


def _count(start: Any, stop: Any, step: int) -> Any:
    """How many numbers there are from `start` to `stop`: how these compare is required of later calls."""
    distance = stop - start if step > 0 else start - stop
    return (distance + (abs(step) - 1)) // abs(step) if distance > 0 else 0


def _ends(key: slice, step: int, length: Any) -> tuple[Any, Any]:
    """The places where the slice of a list of this length begins, and that it ends before, as `slice.indices` gives them."""
    least, most = (0, length) if step > 0 else (-1, length - 1)
    ends = (least, most) if step > 0 else (most, least)
    return tuple(  # type: ignore[return-value]
        end if place is None else _within(place, length, least, most)
        for place, end in zip((key.start, key.stop), ends)
    )


def _within(place: Any, length: Any, least: Any, most: Any) -> Any:
    if place < 0:
        place = place + length
        return least if place < 0 else place
    return most if place >= length else place


def _listed(head: Sequence[Any], start: Any, step: int, count: Any) -> Any:
    """The list, a real one where its length is a number."""
    if type(count) in NUMBERS:
        return SymbolicList(head, start, step, count)
    return [*head, *(start + i * step for i in range(count))]


def settled(value: Any, depth: int = 4) -> Any:
    """`value` as native code may see it: ranges and NumPy's ints in it are plain ones. Lists and dictionaries stay the same
    objects. Raises NeedsFixedSize for a list of symbolic length."""
    kind = type(value)
    if kind in EXAMPLES:
        return value.plain()
    if not depth or kind not in _PARTS:
        return value
    items = value.items() if kind is dict else enumerate(value)
    found = {key: settled(item, depth - 1) for key, item in items if type(item) in _LOOKED_AT}
    if kind is tuple:
        return tuple(found.get(i, item) for i, item in enumerate(value)) if found else value
    for key, item in found.items():
        value[key] = item
    return value


_PARTS = frozenset({list, tuple, dict})
_LOOKED_AT = EXAMPLES.keys() | _PARTS


def of_unknown_row(error: BaseException) -> NeedsFixedSize | None:
    """What is to be raised in place of an error that C code raised as it knows no `SymbolicList`; None for other errors."""
    if not isinstance(error, (TypeError, AttributeError)):
        return None
    named = any(row.__name__ in str(error) for row in ROWS)
    return NeedsFixedSize("a list is needed that has a number of elements", frozenset()) if named else None
