"""Indexing by one integer: one in a tensor (`table[step]`), or a symbolic size (`x[:, n - 1]`).

C++ specializes a symbolic size among several indices, so rows and columns are selected here one by one.

Eager reads the integer of a tensor index and returns a view. The position of that view in the table is unknown while
fakes run, so the aten level has a gather, which is a copy (`smelt.tracing.functionalize.view_copies`). Where the
program can distinguish the copy from a view, `Copies.check` raises, and the frame is captured again with such indexing
refused.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.tracing.fake.fake_tensor import FakeTensor, symbols_of
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder, Composite
from smelt.tracing.record.call_arguments import Args
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import NUMBERS, Int

_INTEGERS = (torch.int64, torch.int32)


def _item(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    table, index = args
    if type(table) is FakeTensor and has_symbols(index):
        index = with_tensors(index)
        table, index = selected(table, index)
        if index is None:
            return table
    if not (recorder.copies.allowed and type(index) is FakeTensor and _selects_row(table, index)):
        return func(table, index)
    if recorder.constants.value(index) is not None:
        return func(table, index)
    copy = torch.ops.aten.index.Tensor(table, [index])
    recorder.copies.add(copy, (table,))
    return copy


def with_tensors(index: Any) -> Any:
    """The index with each list of ints that are symbolic in part as a tensor, which is what torch makes of a list."""
    if isinstance(index, tuple):
        return tuple(_tensor_of(part) for part in index)
    return _tensor_of(index)


def _tensor_of(part: Any) -> Any:
    if type(part) is not list or not has_symbols(part) or not all(type(n) in (int, Int) for n in part):
        return part
    return torch.stack([torch.scalar_tensor(n, dtype=torch.int64) for n in part])


def selected(table: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any]:
    """The table with symbolic indices applied by `select`, and the remaining index, None if nothing remains. Both
    unchanged where the index has tensors or masks: those are combined with the numbers."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(p is None or p is ... or type(p) in (int, slice, *NUMBERS) for p in parts):
        return table, index
    n_indexed = sum(p is not None and p is not ... for p in parts)
    ellipsis = next((i for i, p in enumerate(parts) if p is ...), None)  # `in` would compare symbolic numbers
    if ellipsis is not None:
        parts[ellipsis : ellipsis + 1] = [slice(None)] * (table.dim() - n_indexed)
    last = max((i for i, p in enumerate(parts) if type(p) in NUMBERS), default=-1)
    remaining: list[Any] = []
    for part in parts[: last + 1]:
        if type(part) in NUMBERS:
            table = table.select(len(remaining), part)
        elif part is None:  # the stride of the new dimension comes from the one that is selected later
            table = table.unsqueeze(len(remaining))
            remaining.append(slice(None))
        else:
            remaining.append(part)
    remaining += parts[last + 1 :]
    return table, tuple(remaining) or None


def _selects_row(table: object, index: FakeTensor) -> bool:
    """Whether `table[index]` is one row of `table` with the layout of a copy."""
    if type(table) is not FakeTensor or symbols_of(table) or index.elem.dim() or index.dtype not in _INTEGERS:
        return False
    if not table.elem.dim() or not table.elem.size(0):
        return False
    expected = 1
    for size, stride in zip(reversed(table.elem.size()[1:]), reversed(table.elem.stride()[1:])):
        if stride != expected:
            return False
        expected *= size
    return True


COMPOSITES: dict[Any, Composite] = {torch.Tensor.__getitem__: _item}


def gather(func: Any, args: Args) -> tuple[Any, Args]:
    """A call of `Tensor.__getitem__` as one of `aten.index`, which does not read the index, unless there are slices or
    masks."""
    table, index = args
    indices = list(index) if isinstance(index, (tuple, list)) else [index]
    if not all(type(i) is int or isinstance(i, torch.Tensor) for i in indices):
        return func, args
    tensors = [torch.full((), i) if type(i) is int else i for i in indices]
    return torch.ops.aten.index.Tensor, (table, tensors)
