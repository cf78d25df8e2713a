"""Proxies for ranges and lists of ints of symbolic length: `range(n)` and `list(range(n))` for a size that changes.

Their length, slices, elements at constant indices, and tensors and indices built from them need no concrete number.
Any other use does: a range is then reconstructed from specialized numbers; a list may be referenced elsewhere, so the
capture restarts with a fixed length.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from smelt.errors import NeedsFixedSize
from smelt.shapes.constant_ranges import constant_range
from smelt.shapes.expr import free_syms
from smelt.tracing.symbolic.numpy_numbers import PROXY_OF
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Int, is_size, specialize
from smelt.tracing.symbolic.unbacked_numbers import unbacked_leaf_of


class SymbolicRange:
    """`range(start, stop, step)` with at least one int and a symbolic length."""

    __slots__ = ("bounds",)

    def __init__(self, start: Any, stop: Any, step: int) -> None:
        self.bounds = start, stop, step

    @property
    def is_unbacked(self) -> bool:
        """Whether only the running graph knows its length."""
        unknown: list[Any] = [n for n in self.bounds if type(n) is not int]
        return any(type(n) not in NUMBERS or unbacked_leaf_of(n.node.expression) is not None for n in unknown)

    def specialize(self) -> range:
        """The range of this call, with its numbers specialized."""
        return range(*map(specialize, self.bounds))

    def listed(self) -> SymbolicList:
        """A list of its elements."""
        start, _, step = self.bounds
        return SymbolicList((), start, step, _count(*self.bounds))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.specialize(), name)


class SymbolicList:
    """A list of the ints in `head`, followed by `count` others: `start`, `start + step`, ..., up to `stop`."""

    __slots__ = ("count", "head", "start", "step", "stop")

    def __init__(self, head: Sequence[Any], start: Any, step: int, count: Any) -> None:
        self.head, self.start, self.step, self.count = tuple(head), start, step, count
        self.stop = start + count * step

    @property
    def length(self) -> Any:
        """The number of elements, a symbolic number."""
        return len(self.head) + self.count

    def specialize(self) -> NoReturn:
        """Raise NeedsFixedSize: the elements are needed."""
        size = self.count.node.size
        ranges = constant_range(size, self.count.node.symbols.hints)
        raise NeedsFixedSize("a list needs a fixed number of elements", free_syms(size), ranges=ranges)

    def at(self, index: Any) -> Any:
        """The element at an index within the list."""
        if type(index) is not int:
            return self.specialize()
        position = index + self.count if index < 0 else index - len(self.head)
        if type(position) is int and position < 0:
            return self.head[index]
        if not (position >= 0 and position < self.count):
            return self.specialize()
        return self.start + position * self.step

    def sliced(self, key: slice) -> Any:
        """The list of the elements in a slice."""
        step = 1 if key.step is None else key.step
        if type(step) is not int or step == 0 or (step < 0 and self.head):
            return self.specialize()
        first, last = _slice_bounds(key, step, self.length)
        n_head = len(self.head)
        if not n_head:
            return _listed((), self.start + first * self.step, self.step * step, _count(first, last, step))
        if type(first) is not int or not last > n_head:
            return self.specialize()
        head = self.head[first::step]
        first += len(head) * step - n_head
        return _listed(
            head, self.start + first * self.step, self.step * step, _count(first, last - n_head, step)
        )

    def with_prefix(self, values: Sequence[Any]) -> SymbolicList:
        """The list with other values in front."""
        return SymbolicList((*values, *self.head), self.start, self.step, self.count)

    def tensor(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> torch.Tensor:
        """`torch.tensor(self, dtype=dtype, device=device)`, which the graph computes."""
        result = torch.arange(self.start, self.stop, self.step, dtype=torch.int64, device=device)
        if self.head:
            numbers = [torch.full((), n, dtype=torch.int64, device=device) for n in self.head]
            result = torch.cat([torch.stack(numbers), result])
        return result if dtype is None else result.to(dtype)

    def __getattr__(self, name: str) -> Any:
        return self.specialize()


def _specializing_method(name: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        return getattr(self.specialize(), f"__{name}__")(*others)

    return method


for _name in (
    "iter", "len", "getitem", "setitem", "delitem", "contains", "reversed", "eq", "ne", "lt", "le", "gt", "ge", "hash",
    "bool", "add", "radd", "iadd", "mul", "rmul", "imul", "repr", "str", "format", "copy", "deepcopy", "reduce_ex",
):  # fmt: skip
    setattr(SymbolicRange, f"__{_name}__", _specializing_method(_name))
    setattr(SymbolicList, f"__{_name}__", _specializing_method(_name))
for _proxy in (SymbolicRange, SymbolicList):
    collections.abc.Sequence.register(_proxy)  # for patterns of `match`

SEQUENCE_PROXIES: frozenset[type] = frozenset({SymbolicRange, SymbolicList})
# Proxy class -> an example of the class that it stands for.
PROXY_EXAMPLES: dict[type, Any] = {
    SymbolicRange: range(0), SymbolicList: [], **{proxy: scalar() for scalar, proxy in PROXY_OF.items()}
}  # fmt: skip
PROXIED_TYPES: dict[type, type] = {kind: type(example) for kind, example in PROXY_EXAMPLES.items()}


def symbolic_range(args: Sequence[Any]) -> SymbolicRange | None:
    """`range(*args)`; None where its length is not symbolic, or unbacked."""
    start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
    if type(step) is not int or step == 0 or not all(type(n) is int or is_size(n) for n in (start, stop)):
        return None
    count = _count(start, stop, step)
    if type(count) is not Int:
        return None
    count.node.symbols.has_proxies = True
    return SymbolicRange(start, stop, step)


def _count(start: Any, stop: Any, step: int) -> Any:
    """The number of ints from `start` to `stop`. The outcome of their comparison is required of later calls."""
    distance = stop - start if step > 0 else start - stop
    return (distance + (abs(step) - 1)) // abs(step) if distance > 0 else 0


def _slice_bounds(key: slice, step: int, length: Any) -> tuple[Any, Any]:
    """Start and stop of a slice of a list of this length, as from `slice.indices`."""
    least, most = (0, length) if step > 0 else (-1, length - 1)
    ends = (least, most) if step > 0 else (most, least)
    return tuple(  # type: ignore[return-value]
        end if index is None else _clamped_index(index, length, least, most)
        for index, end in zip((key.start, key.stop), ends)
    )


def _clamped_index(index: Any, length: Any, least: Any, most: Any) -> Any:
    if index < 0:
        index = index + length
        return least if index < 0 else index
    return most if index >= length else index


def _listed(head: Sequence[Any], start: Any, step: int, count: Any) -> Any:
    """The list; a real one if its length is a plain number."""
    if type(count) in NUMBERS:
        return SymbolicList(head, start, step, count)
    return [*head, *(start + i * step for i in range(count))]


def without_proxies(value: Any, depth: int = 4) -> Any:
    """`value` as native code may see it: ranges and NumPy ints in it specialized. Lists and dictionaries are changed
    in place. Raises NeedsFixedSize for a list of symbolic length."""
    kind = type(value)
    if kind in PROXY_EXAMPLES:
        return value.specialize()
    if not depth or kind not in _CONTAINERS:
        return value
    items = value.items() if kind is dict else enumerate(value)
    replaced = {key: without_proxies(item, depth - 1) for key, item in items if type(item) in _VISITED}
    if kind is tuple:
        return tuple(replaced.get(i, item) for i, item in enumerate(value)) if replaced else value
    for key, item in replaced.items():
        value[key] = item
    return value


_CONTAINERS = frozenset({list, tuple, dict})
_VISITED = PROXY_EXAMPLES.keys() | _CONTAINERS


def needs_fixed_length(error: BaseException) -> NeedsFixedSize | None:
    """The error that replaces a C error about an unsupported `SymbolicList`; None for other errors."""
    if not isinstance(error, (TypeError, AttributeError)):
        return None
    named = any(proxy.__name__ in str(error) for proxy in SEQUENCE_PROXIES)
    return NeedsFixedSize("a list needs a fixed number of elements", frozenset()) if named else None
