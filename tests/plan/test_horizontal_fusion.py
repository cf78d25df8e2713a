"""Which kernels of a schedule are gathered, and that the order that this gives does the same."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Buffer, Kernel, Loop, MapStage, Store, Value
from smelt.plan.horizontal_fusion import SMALL, Kind, Slot, fuse_horizontally
from smelt.schedule.schedule import (
    BufferSpec,
    BufRef,
    ExternItem,
    Item,
    KernelItem,
    Schedule,
    ViewItem,
    accesses,
)
from tests.harness.kernels import load, loop

aten = torch.ops.aten
f32 = torch.float32


def kernel(name: str, *roles: str, n: int = 8) -> Kernel:
    """An elementwise kernel with these buffers; the last is written."""
    i, li = loop("i", n)
    buffers = tuple(Buffer(f"b{k}", f32, role) for k, role in enumerate(roles))  # type: ignore[arg-type]
    value = Value("neg", (load(0, i),), f32)
    return Kernel(name, buffers, (Loop(i, n),), (MapStage((), (Store(len(roles) - 1, i, value),)),))


def double(a: int, out: int, name: str = "double") -> KernelItem:
    """out = f(a)"""
    return KernelItem(kernel(name, "in", "out"), (a, out))


def write(a: int, to: int, name: str = "write") -> KernelItem:
    return KernelItem(kernel(name, "in", "inout"), (a, to))


def call(a: int, out: int) -> ExternItem:
    return ExternItem(aten.mm.default, (BufRef(a), BufRef(a)), {}, (out,))


def schedule(*items: Item, inputs: int = 3, n: int = 8, outputs: tuple[int, ...] = ()) -> Schedule:
    spec = TensorSpec((n,), (1,), f32, torch.device("cpu"))
    count = 1 + max(b for item in items for b in itertools.chain(*accesses(item)))
    kinds = ["input" if b < inputs else "output" if b in outputs else "temp" for b in range(count)]
    return Schedule([BufferSpec(b, spec, k) for b, k in enumerate(kinds)], (), list(items), outputs)  # type: ignore[arg-type]


def kind(item: KernelItem, room: int = 4) -> Kind | None:
    return Kind(item.kernel.name, room) if item.kernel.name != "alone" else None


def gathered(*items: Item, **options: object) -> list[list[Item]]:
    return [slot.items for slot in fuse_horizontally(schedule(*items, **options), items, kind)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("op", "moves"), [(aten.mm.default, True), (aten.convolution.default, False)])
def test_what_a_call_converts_is_in_memory(op: torch._ops.OpOverload, moves: bool) -> None:
    """cuDNN lays out what it is given, and gives, in another way: no kernel is moved to before such a call if that is when
    most is in memory."""
    a, b = double(0, 3), double(2, 5)
    between = ExternItem(op, (BufRef(1), BufRef(1)), {}, (4,))
    last = KernelItem(kernel("alone", "in", "in", "in", "out"), (3, 4, 5, 6))
    assert gathered(a, between, b, last, n=1 << 21)[0] == ([a, b] if moves else [a])


def test_independent_neighbours() -> None:
    a, b = double(0, 3), double(1, 4)
    assert gathered(a, b) == [[a, b]]


def test_other_code_stays_apart() -> None:
    a, b, c = double(0, 3), double(1, 4, "other"), double(2, 5, "alone")
    assert gathered(a, b, c) == [[a], [b], [c]]


def test_one_that_reads_or_writes_what_another_writes_is_not_joined() -> None:
    a, b = double(0, 3), double(3, 4)
    assert gathered(a, b) == [[a], [b]]
    first, second = write(0, 2), write(1, 2)
    assert gathered(first, second) == [[first], [second]]
    reads, writes = write(2, 0), write(0, 2)
    assert gathered(reads, writes) == [[reads], [writes]]


def test_in_place_updates_of_several_tensors() -> None:
    a, b = write(0, 1), write(0, 2)
    assert gathered(a, b) == [[a, b]]


def test_no_more_than_there_is_room_for() -> None:
    items = [double(0, 3 + k) for k in range(6)]
    assert sorted(map(len, gathered(*items))) == [2, 4]


def test_what_reads_only_inputs_moves_up() -> None:
    a, b = double(0, 3), double(1, 5)
    product = call(3, 4)
    assert gathered(a, product, b) == [[a, b], [product]]


def test_what_is_read_by_nothing_moves_down() -> None:
    first, second = call(0, 3), call(1, 4)
    a, b = double(3, 5), double(4, 6)
    assert [set(map(id, items)) for items in gathered(first, a, second, b, outputs=(5, 6))] == [
        {id(first)}, {id(second)}, {id(a), id(b)}
    ]  # fmt: skip


def test_views_are_memory_of_what_they_view() -> None:
    a, view, b = write(0, 1), ViewItem(3, 1, (8,), (1,), 0), write(3, 2)
    assert gathered(a, view, b) == [[a], [view], [b]]


def test_inputs_are_written_where_they_were_if_a_call_may_raise() -> None:
    a, product, b = write(0, 1), call(0, 3), write(0, 2)
    assert gathered(a, product, b) == [[a], [product], [b]]


def in_steps(count: int, n: int, last: int = 0) -> list[list[int]]:
    """How the casts of a chain of products are gathered; the last gives `last` elements beside the result."""
    spec = TensorSpec((n,), (1,), f32, torch.device("cpu"))
    buffers = [BufferSpec(k, spec, "input") for k in range(count + 1)]
    items: list[Item] = []
    value = 0
    for k in range(1, count + 1):
        cast, product = len(buffers), len(buffers) + 1
        buffers += [BufferSpec(b, spec, "temp") for b in (cast, product)]
        items += [KernelItem(kernel("cast", "in", "out", n=n), (k, cast))]
        items += [ExternItem(aten.mm.default, (BufRef(value), BufRef(cast)), {}, (product,))]
        value = product
    outputs = [value]
    if last:
        outputs.append(len(buffers))
        buffers.append(BufferSpec(len(buffers), TensorSpec((last,), (1,), f32, spec.device), "output"))
        items.append(ExternItem(aten.mm.default, (BufRef(value), BufRef(value)), {}, (outputs[1],)))
    buffers[value] = BufferSpec(value, spec, "output")
    slots = fuse_horizontally(
        Schedule(buffers, (), items, tuple(outputs)), items, lambda item: kind(item, room=64)
    )
    casts = [item for item in items if isinstance(item, KernelItem)]
    return [[casts.index(i) for i in slot.items] for slot in slots if isinstance(slot.items[0], KernelItem)]  # type: ignore[arg-type]


def test_kernels_move_where_that_takes_no_more_memory() -> None:
    n = 1 << 21  # 8 MiB
    assert in_steps(6, n) == [
        [0, 1],
        [2],
        [3],
        [4],
        [5],
    ]  # the first product reads an input, which is there anyway
    assert len(in_steps(6, n, last=5 * n)) == 2  # while the result is made, there are seven times as much
    assert in_steps(6, n, last=100 * n) == [[0, 1, 2, 3, 4, 5]]
    assert in_steps(6, 16) == [[0, 1, 2, 3, 4, 5]]  # too small to count


def test_large_kernels_stay_beside_their_users() -> None:
    a, product, b = double(0, 3), call(3, 4), double(1, 5)
    assert gathered(a, product, b, n=SMALL // 4) == [[a], [product], [b]]
    assert gathered(a, b, product, n=SMALL // 4) == [[a, b], [product]]


def effects(slots: list[Slot]) -> dict[int, object]:
    """What each buffer holds in the end, as the history of what made it."""
    state: dict[int, object] = {b: b for b in range(3)}
    for slot in slots:
        before = dict(state)  # the kernels of a slot run side by side
        for item in slot.items:
            reads, defines = accesses(item)
            made = (type(item).__name__, getattr(item, "kernel", None), tuple(before[r] for r in reads))
            written = defines or (reads[-1],)
            state.update(dict.fromkeys(written, made))
    return state


def test_any_order_that_it_gives_does_the_same() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        items: list[Item] = []
        for made in range(3, 15):
            source, roll = rng.randrange(made), rng.random()
            if roll < 0.25:
                items.append(call(source, made))
            elif roll < 0.5 and source:
                items += [write(rng.randrange(source), rng.randrange(source, made)), double(source, made)]
            else:
                items.append(double(source, made, rng.choice(("double", "other", "alone"))))
        given = schedule(*items)
        slots = fuse_horizontally(given, given.items, kind)
        assert sorted(id(i) for s in slots for i in s.items) == sorted(map(id, items))
        assert effects(slots) == effects([Slot([i], None, slots[0].touched) for i in items]), seed
