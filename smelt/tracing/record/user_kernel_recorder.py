"""Recording of a launch of a user's kernel: a node at each level, and the memory that it writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.object_handles import Handle
from smelt.graph.pytree import map_leaves
from smelt.graph.user_kernel_calls import RUN_KERNEL, Grids, KernelCall, KernelLaunch, Part, Slot
from smelt.ops.node_builders import SCALAR
from smelt.reasons import UNSUPPORTED_EFFECT
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.fake.memory_overlap import overlaps_itself
from smelt.tracing.record.trace_parts import TraceParts

_VARYING = (FakeTensor, torch.SymInt, torch.SymFloat)


def record(
    parts: TraceParts,
    kernel: Any,
    name: str,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    written: Collection[FakeTensor],
) -> None:
    """Record `kernel[grid](*args, **kwargs)`, which may write the tensors `written`. Raises Unsupported."""
    if parts.numbers.sizes:
        raise NeedsFixedSize("a user's kernel with symbolic sizes", parts.numbers.sizes)
    values: list[Any] = []
    slots: dict[int, Slot] = {}

    def slot(value: Any) -> Slot:
        if id(value) not in slots:
            slots[id(value)] = Slot(len(values))
            values.append(value)
        return slots[id(value)]

    rows = grid.rows if isinstance(grid, Grids) else grid
    rows, slot_args, slot_kwargs = (map_leaves(tree, _VARYING, slot) for tree in (rows, args, kwargs))
    launch = KernelLaunch(
        kernel, Grids(grid.names, rows) if isinstance(grid, Grids) else rows, slot_args, slot_kwargs, name
    )
    call = parts.call
    if call.node is not None:  # inside an opaque call or a backward
        _record_aten(parts, launch, values, written)
        return
    node = parts.torch_recorder.node(launch, tuple(values), {})
    call.node, call.mutated = node, False
    try:
        _record_aten(parts, launch, values, written)
    finally:
        call.node = None
    parts.torch_recorder.record(node, launch, None)


def _record_aten(
    parts: TraceParts, launch: KernelLaunch, values: list[Any], written: Collection[FakeTensor]
) -> None:
    owners = [_owner(parts, v) if type(v) is FakeTensor else None for v in values]
    ids = {id(w) for w in written}
    targets = {id(o): o for v, o in zip(values, owners) if id(v) in ids and o is not None}
    for target in targets.values():
        if overlaps_itself(target.spec) or len(parts.inputs.in_storage(target.storage_key)) > 1:
            raise parts.call.unsupported(
                UNSUPPORTED_EFFECT, f"{launch.__name__} writes a tensor whose memory others share"
            )
    others = {id(o): o for o in owners if o is not None and id(o) not in targets}
    operands = [*targets.values(), *others.values()]
    members = []
    with DisableTorchFunction(), DisableTorchDispatch():
        for value, owner in zip(values, owners):
            if owner is None:
                operands.append(_number(parts, value))
                members.append(Part(len(operands) - 1))
            else:
                index = next(i for i, o in enumerate(operands) if o is owner)
                members.append(Part(index, _offset(parts, launch, value, owner), value.spec))
        nodes = [o.aten_node or parts.inputs.aten_node(o) for o in operands]
        n = len(targets) + len(others)
        layouts: list[TensorSpec | None] = [o.spec if i < n else None for i, o in enumerate(operands)]
        handle = Handle.of(KernelCall(launch, members, layouts))
        first = nodes[: len(targets)], nodes[len(targets) :]
        node = parts.tape.add_operator(RUN_KERNEL, (handle, *first), {}, launch.__name__, None)
        parts.writes.record(list(targets.values()))
        parts.tape.finish_operator(node, None)


def _number(parts: TraceParts, value: Any) -> FakeTensor:
    """A symbolic number as a tensor that holds it."""
    kind = torch.int64 if isinstance(value, torch.SymInt) else torch.float64
    options = {"dtype": kind, "device": torch.device("cpu")}
    scalar: FakeTensor = parts.aten_recorder.run(SCALAR, (value,), options)
    return scalar


def _owner(parts: TraceParts, fake: FakeTensor) -> FakeTensor:
    """The base tensor of the memory of `fake`."""
    if parts.inputs.holds(fake):
        return fake
    for source in (*parts.inputs.in_storage_with_offsets(fake.storage_key), *parts.backward.tangents):
        if source.storage_key == fake.storage_key:
            return source
    for entry in parts.tape.entries:
        for base in fakes_in(entry.out):
            if base.storage_key == fake.storage_key:
                return base
    return fake


def _offset(parts: TraceParts, launch: KernelLaunch, fake: FakeTensor, owner: FakeTensor) -> int:
    """Byte offset of `fake` from the start of `owner`. Raises Unsupported where `fake` exceeds it."""
    begin, end = _bytes(fake)
    first, last = _bytes(owner)
    if begin < first or end > last:
        raise parts.call.unsupported(
            UNSUPPORTED_EFFECT, f"{launch.__name__} receives memory beyond that of a tensor"
        )
    return begin - first


def _bytes(fake: FakeTensor) -> tuple[int, int]:
    """The half-open byte range of `fake` in its storage."""
    first = int(fake.storage_offset()) * fake.elem.itemsize
    if not fake.elem.numel():
        return first, first
    span = sum((n - 1) * step for n, step in zip(fake.elem.size(), fake.elem.stride()))
    return first, first + (span + 1) * fake.elem.itemsize
