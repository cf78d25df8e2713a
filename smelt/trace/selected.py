"""Indexing by a tensor that holds one integer: `table[step]`.

Eager reads the integer and gives a view. While fakes run, nobody knows where in the table that view is. But a copy is as
good as long as neither is written, the view does not leave the graph and nothing asks where it is: so the aten level gets a
gather. What could tell a copy from a view is noted, and `check` then raises `NotCopies`: the frame is captured again with
such indexing refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from smelt.trace import known
from smelt.trace.fake import FakeTensor

if TYPE_CHECKING:
    from smelt.trace.record import Trace

_INTEGERS = (torch.int64, torch.int32)


class NotCopies(Exception):
    """A copy was made in place of a view, and the program can tell."""


class Copies:
    """The copies of one trace, by their storages. `allowed`: whether to make any."""

    def __init__(self) -> None:
        self.allowed = True
        self.made: set[int] = set()
        self.sources: set[int] = set()  # what they are copies of
        self.told_apart = False

    def note_written(self, storages: set[int]) -> None:
        if self.made and not (storages.isdisjoint(self.made) and storages.isdisjoint(self.sources)):
            self.told_apart = True

    def note_asked(self, fake: FakeTensor) -> None:
        """The program asks `fake` for more than its metadata and values."""
        self.told_apart |= bool(self.made) and fake.storage_key in self.made

    def check(self, leaving: Iterable[FakeTensor]) -> None:
        """Raises NotCopies if the program can tell, `leaving` being the tensors that leave the graph."""
        if self.made and (self.told_apart or any(f.storage_key in self.made for f in leaving)):
            raise NotCopies


def _item(trace: Trace, func: Any, args: tuple[Any, ...]) -> Any:
    table, index = args
    if not (trace.copies.allowed and type(index) is FakeTensor and _is_place(table, index)):
        return func(table, index)
    if known.evaluate(trace, index) is not None:
        return func(table, index)
    made = torch.ops.aten.index.Tensor(table, [index])
    trace.copies.made.add(made.storage_key)
    trace.copies.sources.add(table.storage_key)
    return made


def _is_place(table: Any, index: FakeTensor) -> bool:
    """Whether `table[index]` is one row of `table`, laid out as a copy of it would be."""
    if type(table) is not FakeTensor or index.elem.dim() or index.dtype not in _INTEGERS:
        return False
    if not table.elem.dim() or not table.elem.size(0):
        return False
    expected = 1
    for size, stride in zip(reversed(table.elem.size()[1:]), reversed(table.elem.stride()[1:])):
        if stride != expected:
            return False
        expected *= size
    return True


BODIES: dict[Any, Callable[[Trace, Any, tuple[Any, ...]], Any]] = {torch.Tensor.__getitem__: _item}
