"""Indexing by one integer: one that a tensor holds (`table[step]`), or a symbolic size (`x[:, n - 1]`).

C++ asks for the number of a symbolic size among several indices, so rows and columns are selected here one by one.

Eager reads the integer and gives a view. While fakes run, nobody knows where in the table that view is, so the aten level
gets a gather, which is a copy (`smelt.tracing.functionalize.view_copies`). Where the program can tell the copy from a
view, `Copies.check` raises, and the frame is captured again with such indexing refused.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.tracing.fake.fake_tensor import FakeTensor, symbols_of
from smelt.tracing.record.aten_call_recorder import Composite, AtenCallRecorder
from smelt.tracing.record.call_arguments import Args
from smelt.tracing.symbolic.numbers_in_containers import has_symbols
from smelt.tracing.symbolic.sym_numbers import NUMBERS

_INTEGERS = (torch.int64, torch.int32)


def _item(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    table, index = args
    if type(table) is FakeTensor and has_symbols(index):
        table, index = _selected(table, index)
        if index is None:
            return table
    if not (recorder.copies.allowed and type(index) is FakeTensor and _is_place(table, index)):
        return func(table, index)
    if recorder.constants.value(index) is not None:
        return func(table, index)
    made = torch.ops.aten.index.Tensor(table, [index])
    recorder.copies.add(made, table)
    return made


def _selected(table: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any]:
    """The table with those places selected that are symbolic numbers, and the rest of the index, None where nothing is left.
    Both as they are where the index has tensors or masks: these may be put together with the numbers."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(p is None or p is ... or type(p) in (int, slice, *NUMBERS) for p in parts):
        return table, index
    taken = sum(p is not None and p is not ... for p in parts)
    at = next((i for i, p in enumerate(parts) if p is ...), None)  # `in` would compare symbolic numbers
    if at is not None:
        parts[at : at + 1] = [slice(None)] * (table.dim() - taken)
    rest, dim = [], 0
    for part in parts:
        if type(part) in NUMBERS:
            table = table.select(dim, part)
            continue
        rest.append(part)
        dim += part is not None
    return table, tuple(rest) or None


def _is_place(table: object, index: FakeTensor) -> bool:
    """Whether `table[index]` is one row of `table`, laid out as a copy of it would be."""
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
    """The call of `Tensor.__getitem__` as one that reads no index: `aten.index`, unless there are slices or masks."""
    table, index = args
    places = list(index) if isinstance(index, (tuple, list)) else [index]
    if not all(type(place) is int or isinstance(place, torch.Tensor) for place in places):
        return func, args
    tensors = [torch.full((), place) if type(place) is int else place for place in places]
    return torch.ops.aten.index.Tensor, (table, tensors)
