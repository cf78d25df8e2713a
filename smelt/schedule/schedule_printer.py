"""Text of schedules: the items in order, kernels with their loops, and why adjacent operators were not fused."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.graph.graph_printer import spec_text
from smelt.graph.pytree import map_leaves
from smelt.loops.kernel_printer import print_kernel
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Item, KernelItem, Schedule, ViewItem


def print_schedule(schedule: Schedule) -> str:
    """The schedule as text. Buffer i is `b<i>`; below a kernel's name are the buffers of its `p0`, `p1`, ..."""
    lines = [*_buffers(schedule)]
    for item in schedule.items:
        lines += print_item(item).splitlines()
    lines.append("return " + ", ".join("None" if out is None else f"b{out}" for out in schedule.outputs))
    lines += [f"not fused: {refusal}" for refusal in schedule.refusals]
    return "\n".join(lines)


def _buffers(schedule: Schedule) -> Iterator[str]:
    for buffer in schedule.buffers:
        yield f"b{buffer.id}: {buffer.kind} {_spec(buffer)}"


def _spec(buffer: BufferSpec) -> str:
    return spec_text(buffer.spec)


def print_item(item: Item) -> str:
    """One item, a kernel over several lines."""
    if isinstance(item, KernelItem):
        head, *body = print_kernel(item.kernel).splitlines()
        return "\n".join([f"kernel {head}", f"  of {_names(item.buffers)}", *("  " + line for line in body)])
    if isinstance(item, ViewItem):
        seen = "user view" if item.user_visible else "view"
        return (
            f"b{item.out} = {seen} b{item.src} {list(item.shape)} stride {list(item.stride)} + {item.offset}"
        )
    return _call(item)


def _names(buffers: tuple[int | None, ...]) -> str:
    return ", ".join("scratch" if b is None else f"b{b}" for b in buffers)


class _Name:
    """Prints as a buffer's name inside arguments."""

    def __init__(self, buffer: BufRef) -> None:
        self.buffer = buffer

    def __repr__(self) -> str:
        return f"b{self.buffer.id}"


def _call(item: ExternItem) -> str:
    args, kwargs = (map_leaves(tree, BufRef, _Name) for tree in (item.args, item.kwargs))
    texts = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    outs = ", ".join("_" if out is None else f"b{out}" for out in item.outs)
    return f"{outs + ' = ' if outs else ''}{item.op}({', '.join(texts)})"
