"""Writes of some places of an input, which are stored where they are: what the schedule does, run by the interpreter."""

import pytest
import torch

from smelt.loops.kernel_ir import stage_stores
from smelt.schedule.schedule import ExternItem, KernelItem
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import externs, kernels, scheduled
from tests.harness.traced import flatten

aten = torch.ops.aten


def check(f, *inputs, n_kernels, calls=(), scatters=True):
    """What `f` gives and what it writes is eager's, by so many kernels and these ATen calls."""
    copies = [t.clone() for t in inputs]
    schedule, real = scheduled(f, *copies, scatters=scatters)
    with torch.no_grad():
        want = flatten(f(*inputs))
    for a, e in zip(run(schedule, real), want, strict=True):
        torch.testing.assert_close(a, e)
    for a, e in zip(copies, inputs):
        torch.testing.assert_close(a, e, rtol=0, atol=0)
    assert (len(kernels(schedule)), externs(schedule)) == (n_kernels, list(calls))
    return schedule


def written(schedule, buffer):
    """The stores to a buffer of the schedule, by which kernel, how many there are, and how often each is done."""
    found = []
    for n, item in enumerate(schedule.items):
        if isinstance(item, ExternItem) or not isinstance(item, KernelItem):
            continue
        points = 1
        for loop in item.kernel.outer:
            points *= loop.size
        for stage in item.kernel.stages:
            found += [(n, points) for s in stage_stores(stage) if item.buffers[s.buffer] == buffer]
    return found


CACHE = torch.randn(2, 3, 7, 4)


def test_a_row_is_computed_and_written_by_one_kernel_and_read_afterwards():
    def f(cache, step, key, angle):
        cache.index_copy_(2, step, key.transpose(1, 2) * angle.cos())
        return cache.sum(2)

    for n in (1, 3):
        key = torch.randn(2, n, 3, 4)
        schedule = check(f, CACHE.clone(), torch.arange(n) + 2, key, torch.randn(4), n_kernels=2)
        assert written(schedule, 0) == [(0, key.numel())]


def test_neighbours_in_memory_are_neighbours_in_the_loops():
    def f(cache, step, key):
        cache.index_copy_(2, step, key.transpose(1, 2))

    schedule, _ = scheduled(f, CACHE.clone(), torch.arange(5), torch.randn(2, 5, 3, 4), scatters=True)
    [kernel] = kernels(schedule)
    assert [loop.size for loop in kernel.outer] == [2, 3, 5, 4]


def test_the_places_are_computed_where_they_are_needed():
    def f(cache, seen, value):
        step = torch.arange(2) + seen
        seen.add_(2)
        cache[:, :, step] = value

    check(f, CACHE.clone(), torch.tensor(3), torch.randn(2, 3, 2, 4), n_kernels=2)


ALL = slice(None)
PUTS = {
    "in front": (lambda i: (i,), (2, 3, 7, 4)),
    "from the end": (lambda i: (ALL, i - 2), (2, 2, 7, 4)),
    "broadcast": (lambda i: (ALL, ALL, i), (3, 1, 4)),
    "one number": (lambda i: (ALL, ALL, ALL, i), ()),
    "of several dimensions": (lambda i: (ALL, ALL, i.view(2, 1)), (2, 3, 2, 1, 4)),
    "int32": (lambda i: (ALL, ALL, i.int()), (2, 3, 2, 4)),
}


@pytest.mark.parametrize("name", PUTS)
def test_index_put(name):
    places, shape = PUTS[name]

    def f(cache, index, values):
        cache[places(index)] = values
        return cache * 2

    check(f, CACHE.clone(), torch.tensor([1, 0]), torch.randn(shape), n_kernels=2)


def test_places_that_are_known_need_no_reading():
    def g(cache, value):
        cache[:, :, 1::3] = value
        return cache.relu()

    def h(cache, value):
        cache.select(2, -1).copy_(value)

    for scatters in (True, False):
        check(g, CACHE.clone(), torch.randn(2, 3, 2, 4), n_kernels=2, scatters=scatters)
        schedule = check(h, CACHE.clone(), torch.randn(2, 3, 4), n_kernels=1, scatters=scatters)
        assert written(schedule, 0) == [(0, 24)]


def test_one_write_after_the_other():
    def f(cache, i, j, a, b):
        cache.index_copy_(0, i, a)
        cache.index_copy_(0, j, b)
        return cache + 1

    rows, same = torch.zeros(5, 4), torch.tensor([2])
    check(f, rows, same, same, torch.ones(1, 4), torch.full((1, 4), 2.0), n_kernels=3)
    assert rows[2, 0] == 2


def test_what_reads_old_rows_gets_them():
    def through_a_view(cache, step, row):
        old = cache[1:] * 2
        cache.index_copy_(0, step, row)
        return old

    def before(cache, step, row):
        old = cache * 2
        cache.index_copy_(0, step, row)
        return old + row

    def itself(cache, step, row):
        cache.index_copy_(0, step, cache[:1] + row)

    def between(cache, step, row):
        cache.index_copy_(0, step, row)
        middle = cache * 2
        cache.index_copy_(0, step + 1, row)
        return middle + cache

    def given(cache, step, row):
        new = cache.index_copy(0, step, row)
        cache.copy_(new)
        return new

    for f in (through_a_view, before, itself, between, given):
        arguments = torch.randn(5, 4), torch.tensor([2]), torch.randn(1, 4)
        copies = [t.clone() for t in arguments]
        schedule, real = scheduled(f, *copies, scatters=True)
        want = flatten(f(*arguments))
        for a, e in zip(run(schedule, real), want, strict=True):
            torch.testing.assert_close(a, e)
        assert torch.equal(copies[0], arguments[0])
        assert aten.index_copy.default in externs(schedule)


def test_where_kernels_may_not_ATen_writes_the_input():
    def f(cache, step, row):
        cache.index_copy_(0, step, row * 2)
        return cache + 1

    arguments = torch.randn(5, 4), torch.tensor([2, 0]), torch.randn(2, 4)
    check(f, *arguments, n_kernels=2, calls=[aten.index_copy_.default], scatters=False)
    check(f, *arguments, n_kernels=2, calls=[])

    def g(x, mask, value):
        x[mask] = value

    mask = torch.tensor([True, False, True, True, False])
    check(g, torch.randn(5), mask, torch.randn(()), n_kernels=0, calls=[aten.index_put_.default])


def test_what_adds_is_not_repeated():
    def f(cache, step, row):
        cache.index_put_((step,), row, accumulate=True)

    arguments = torch.randn(5, 4), torch.tensor([2, 2]), torch.randn(2, 4)
    check(f, *arguments, n_kernels=1, calls=[aten.index_put.default])


def test_a_place_twice_in_order_where_that_is_asked_for():
    def f(cache, step, row):
        cache.index_copy_(0, step, row)

    arguments = torch.randn(5, 4), torch.tensor([2, 3]), torch.randn(2, 4)
    torch.use_deterministic_algorithms(True)
    try:
        check(f, *arguments, n_kernels=0, calls=[aten.index_copy_.default])
        check(f, arguments[0], torch.tensor([2]), torch.randn(1, 4), n_kernels=1)
    finally:
        torch.use_deterministic_algorithms(False)


def filled(a, b, w):
    """Memory that products fill, one after the other."""
    out = torch.empty(7, 5)
    out[:3] = (a @ w).relu()
    out[3:] = b @ w
    return out


def test_memory_is_filled_part_by_part():
    inputs = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 5)
    schedule, real = scheduled(filled, *inputs, launch=1.0)
    [got] = run(schedule, real)
    torch.testing.assert_close(got, filled(*inputs))
    order = ["kernel" if isinstance(i, KernelItem) else i.op for i in schedule.items if hasattr(i, "note")]
    assert order == [aten.empty.memory_format, aten.mm.default, "kernel", aten.mm.default, "kernel"]


def test_by_one_kernel_where_parts_are_small_or_come_from_inputs():
    inputs = torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 5)
    schedule, _ = scheduled(filled, *inputs, launch=1e9)
    assert len(kernels(schedule)) == 1

    def of_inputs(x, y):
        out = torch.empty(7, 5)
        out[:3], out[3:] = x, y * 2
        return out

    check_filled(of_inputs, torch.randn(3, 5), torch.randn(4, 5), n_kernels=1)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, w: (lambda out: (out[:3].copy_(a @ w), out[1:].add_(1), out)[2])(torch.zeros(4, 5)),
        lambda a, w: (lambda out: (out[:3].copy_(a @ w), out[3].copy_(out[0]), out)[2])(torch.empty(4, 5)),
        lambda a, w: (lambda out: (out[1:].copy_(a @ w), out[0].fill_(2), out.sum(0), out[1])[1:])(
            torch.empty(4, 5)
        ),
        lambda a, w: (lambda out: (out[::2].copy_((a @ w)[:2]), out[1::2].copy_((a @ w)[1:]), out * 2)[2])(
            torch.empty(4, 5)
        ),
        lambda a, w: (lambda out: (out[:, 1:4].copy_(a @ w[:, :3]), out[:, 0].fill_(0), out[:, :4])[2])(
            torch.empty(3, 5)
        ),
    ],
)
def test_what_is_read_meanwhile_or_in_other_places(fn):
    check_filled(fn, torch.randn(3, 4), torch.randn(4, 5))


def check_filled(fn, *inputs, n_kernels=None):
    schedule, real = scheduled(fn, *inputs, launch=1.0)
    for got, want in zip(run(schedule, real), flatten(fn(*inputs)), strict=True):
        torch.testing.assert_close(got, want)
    assert n_kernels in (None, len(kernels(schedule)))
