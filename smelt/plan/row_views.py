"""Rows of a table at an index in memory (`table[step]`), as views.

Eager reads the index and returns a view. The trace has a gather (`smelt.tracing.composites.row_indexing`), which copies
the row: all weights of an expert in a loop over experts. On a CPU the plan reads the index and makes a view, too, if
nothing writes the row or the table while the view is in use, and the caller does not receive it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from smelt.plan.buffer_roots import Roots, references, used
from smelt.plan.plan_items import Item, LaunchItem, ParallelLaunchItem
from smelt.plan.schema_aliases import is_foreign, written_values
from smelt.schedule.schedule import BufRef, ExternItem, Schedule
from smelt.torch_private import OpOverload

ROW_VIEW: OpOverload = torch.ops.smelt.row_view.default
_INDEX = torch.ops.aten.index.Tensor
_INTEGERS = (torch.int64, torch.int32)


def with_row_views(schedule: Schedule, items: Sequence[Item]) -> list[Item]:
    """The items with views in place of copies of rows."""
    views = {position: view for position, item in enumerate(items) if (view := _as_view(schedule, item))}
    if not views:
        return list(items)
    roots = Roots(schedule, items)
    last = {roots.root(b): position for position, item in enumerate(items) for b in used(item)}
    writes: dict[int, list[int]] = {}
    for position, item in enumerate(items):
        for buffer in _written(item):
            writes.setdefault(roots.root(buffer), []).append(position)
    viewed = list(items)
    for position, view in reversed(views.items()):  # first the rows of a row, which the row must outlive
        row, table = view.outs[0], roots.root(references(view.args)[0])
        assert row is not None
        written = [*writes.get(row, ()), *writes.get(table, ())]
        if roots.is_retained(row) or any(position < i <= last[row] for i in written):
            continue
        viewed[position] = view
        last[table] = max(last[table], last[row])
    return viewed


def _as_view(schedule: Schedule, item: Item) -> ExternItem | None:
    """The call of a view that replaces the copy of one row, None for another item."""
    if not isinstance(item, ExternItem) or item.op is not _INDEX or item.outs[0] is None:
        return None
    table, indices = item.args
    assert isinstance(table, BufRef) and isinstance(indices, (list, tuple))
    if len(indices) != 1 or not isinstance(indices[0], BufRef):
        return None
    rows, index = (schedule.buffers[ref.id].spec for ref in (table, indices[0]))
    on_cpu = rows.device.type == index.device.type == "cpu"
    if not on_cpu or index.shape or index.dtype not in _INTEGERS:
        return None
    return replace(item, op=ROW_VIEW, args=(table, indices[0]), kwargs={})


def _written(item: Item) -> Iterator[int]:
    """The buffers that an item writes, or that an operator of the user may write."""
    if isinstance(item, ParallelLaunchItem):
        for part in item.parts:
            yield from _written(part)
    elif isinstance(item, LaunchItem):
        yield from (b for b, role in zip(item.buffers, item.roles) if role != "in")
    elif isinstance(item, ExternItem):
        arguments = item.args, item.kwargs
        yield from references(arguments if is_foreign(item.op) else written_values(item.op, *arguments))
