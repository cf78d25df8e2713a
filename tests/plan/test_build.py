"""Hand-made schedules to plans. One kernel serves all tests: out[i] = in[i] + 1 over contiguous memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smelt.codegen.cpu_launches import generate
from smelt.codegen.plan_loading import load
from smelt.config import Config
from smelt.graph.ir import TensorSpec
from smelt.loops.kernel_ir import Buffer, Kernel, Loop, MapStage, Store, Value
from smelt.plan.arena_allocation import Interval, place
from smelt.plan.build_plan import build_plan
from smelt.plan.machine_code import CompiledKernel
from smelt.plan.plan_printer import print_plan
from smelt.plan.steps import Alloc, Aten, Launch, Plan
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, KernelItem, Schedule, ViewItem
from smelt.shapes.expr import Sym
from smelt.targets import cpu
from tests.harness.kernels import hand_written
from tests.harness.scheduled import generating

aten = torch.ops.aten


def compile_increments(kernels):
    """Every kernel increments `kernel.buffers[0].size` elements."""
    function = hand_written()["increment"]
    return [CompiledKernel("increment", function, k.buffers[0].size, 1 << 14) for k in kernels]


def increments(schedule):
    return generate(schedule, compile_increments, products=None)


class Program:
    """Writes a schedule: buffers by example tensors."""

    def __init__(self, *inputs, constants=()):
        self.buffers, self.items, self.constants = [], [], tuple(constants)
        self.inputs = [self.buffer(x, "input") for x in inputs]
        self.held = [self.buffer(c, "constant") for c in constants]

    def buffer(self, like, kind="temp"):
        spec = TensorSpec(tuple(like.shape), tuple(like.stride()), like.dtype, like.device)
        self.buffers.append(BufferSpec(len(self.buffers), spec, kind))
        return len(self.buffers) - 1

    def increment(self, src, kind="temp", out=None):
        like = self.buffers[src].spec
        if out is None:
            out = self.buffer(torch.empty_strided(like.shape, like.stride, dtype=like.dtype), kind)
        n = torch.Size(like.shape).numel()
        formals = (Buffer("a", like.dtype, "in", n), Buffer("b", like.dtype, "out", n))
        self.items.append(KernelItem(Kernel("increment", formals, (), ()), (src, out), "test.py:1 in f"))
        return out

    def extern(self, op, args, like, kind="temp", kwargs=None):
        out = None if like is None else self.buffer(like, kind)
        self.items.append(ExternItem(op, args, kwargs or {}, (out,)))
        return out

    def view(self, src, like, offset=0, visible=False, kind="temp"):
        out = self.buffer(like, kind)
        self.items.append(ViewItem(out, src, tuple(like.shape), tuple(like.stride()), offset, visible))
        return out

    def plan(self, *outputs, target=None, **options) -> Plan:
        """Every kernel increments, and products are ATen's, unless a target is given."""
        own = replace(cpu.target(Config(**options)), generate=increments)
        target = target or own
        schedule = Schedule(self.buffers, self.constants, self.items, outputs)
        plan = build_plan(schedule, target.generate(schedule), target)
        verify(plan)
        return plan


def test_a_chain_of_kernels_uses_two_slots_of_the_arena():
    x = torch.randn(1000)
    p = Program(x)
    b = 0
    for _ in range(9):
        b = p.increment(b)
    plan = p.plan(p.increment(b, "output"))
    assert plan.arena_bytes == 2 * 4032  # 4000 rounded up to 64
    assert torch.allclose(load(plan)((x,))[0], x + 10)


def test_products_compute_into_the_arena_and_outputs_do_not():
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    p = Program(x, w)
    h = p.extern(aten.mm.default, (BufRef(0), BufRef(1)), x)
    h = p.increment(h)
    y = p.extern(aten.mm.default, (BufRef(h), BufRef(1)), x, "output")
    plan = p.plan(y)
    assert print_plan(plan) == "\n".join(
        [
            "plan(inputs r0..r1), arena 128 bytes",
            "  r2 = alloc float32[4, 4] stride [4, 1] arena[0]",
            "  _ = aten.mm.out(r0, r1, out=r2)",
            "  free r0",
            "  r3 = alloc float32[4, 4] stride [4, 1] arena[64]",
            "  launch increment(r2, r3) over 16 by 16384                               # test.py:1 in f",
            "  free r2",
            "  r4 = alloc float32[4, 4] stride [4, 1] own memory",
            "  _ = aten.mm.out(r3, r1, out=r4)",
            "  free r1, r3",
            "  return r4",
        ]
    )
    assert torch.allclose(load(plan)((x, w))[0], (x @ w + 1) @ w, atol=1e-5)


def test_views_keep_arena_memory_alive():
    x = torch.randn(2, 8)
    p = Program(x)
    a = p.increment(0)
    t = p.view(a, x.t())
    b = p.increment(0)
    y = p.extern(aten.mm.default, (BufRef(t), BufRef(b)), torch.empty(8, 8), "output")
    plan = p.plan(y)
    assert plan.arena_bytes == 128
    assert torch.allclose(load(plan)((x,))[0], (x + 1).t() @ (x + 1), atol=1e-5)


def test_memory_under_a_returned_view_is_not_in_the_arena():
    x = torch.randn(2, 8)
    p = Program(x)
    a = p.increment(0)  # a wrong kind does not matter: the builder sees who holds on to it
    v = p.view(a, x[0], 8, visible=True)
    inner = p.view(v, x[0, :4], 0)
    y = p.increment(inner, "output")
    plan = p.plan(v, y)
    assert plan.arena_bytes == 0
    row, four = load(plan)((x,))
    assert torch.equal(row, x[1] + 1) and torch.equal(four, x[1, :4] + 1 + 1)
    assert row._base is not None


def test_a_returned_view_of_an_input_shares_its_version():
    x = torch.randn(2, 8)
    p = Program(x)
    v = p.view(0, x[0], 8)  # not marked: being returned is enough
    (row,) = load(p.plan(v))((x,))
    row.zero_()
    assert x._version == 1 and row._base is x


def test_kernels_that_write_inputs_bump_the_version():
    x, y = torch.zeros(4), torch.zeros(4)
    p = Program(x, y)
    p.increment(0, out=1)
    plan = p.plan(1)
    (out,) = load(plan)((x, y))
    assert out is y and y._version == 1 and torch.equal(y, torch.ones(4))


def test_copies_to_inputs_are_seen_by_autograd():
    x, y = torch.zeros(4), torch.zeros(4)
    p = Program(x, y)
    a = p.increment(0)
    p.extern(aten.copy_.default, (BufRef(1), BufRef(a)), None)
    load(p.plan())((x, y))
    assert y._version == 1 and torch.equal(y, torch.ones(4)) and x._version == 0


def test_copies_to_views_of_inputs_are_seen_by_autograd():
    x, y = torch.zeros(4), torch.zeros(8)
    p = Program(x, y)
    v = p.view(1, torch.zeros(4), 4)
    alias = p.extern(aten.copy_.default, (BufRef(v), BufRef(0)), x)
    w = p.increment(alias, "output")
    plan = p.plan(w)
    (copy,) = [s for s in plan.steps if isinstance(s, Aten)]
    assert copy.user_visible
    assert torch.equal(load(plan)((x + 2, y))[0], torch.full((4,), 3.0))
    assert torch.equal(y, torch.tensor([0, 0, 0, 0, 2, 2, 2, 2.0]))


def test_a_returned_constant_is_a_new_tensor_each_time():
    c, d = torch.arange(3.0), torch.arange(4.0)
    p = Program(constants=(c, d))
    v = p.view(1, d[:2], 0, visible=True)
    native = load(p.plan(0, v))
    first, part = native(())
    first.zero_()
    part.zero_()
    again, part = native(())
    assert torch.equal(again, torch.arange(3.0)) and torch.equal(part, torch.arange(2.0))


def test_what_a_foreign_operator_sees_is_not_in_the_arena():
    kept = []
    lib = torch.library.Library("smelt_test_foreign", "FRAGMENT")
    lib.define("keep(Tensor x) -> Tensor")
    lib.impl("keep", lambda x: (kept.append(x), x * 2)[1], "CPU")
    x = torch.zeros(4)
    p = Program(x)
    a = p.increment(0)
    y = p.extern(torch.ops.smelt_test_foreign.keep.default, (BufRef(a),), x)
    plan = p.plan(p.increment(y, "output"))
    assert plan.arena_bytes == 0
    assert torch.equal(load(plan)((x,))[0], torch.full((4,), 3.0))
    load(plan)((x + 5,))
    assert torch.equal(kept[0], torch.ones(4))


def test_layouts_are_checked_only_where_a_kernel_relies_on_them():
    x = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 1, 1)
    args = (BufRef(0), BufRef(1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    like = torch.empty(1, 4, 8, 8)  # a wrong prediction: the real result is channels-last
    real = torch.convolution(x, w, *args[2:])
    assert real.stride() != like.stride()
    p = Program(x, w)
    c = p.extern(aten.convolution.default, args, like)
    d = p.extern(aten.convolution.default, args, like, "output")
    plan = p.plan(p.increment(c, "output"), d)
    steps = [s for s in plan.steps if isinstance(s, Aten)]
    assert [s.expect[0] is None for s in steps] == [False, True]
    y, z = load(plan)((x, w))
    assert torch.allclose(y, real + 1, atol=1e-5)
    assert torch.equal(z, real) and z.stride() == real.stride()


def test_lists_of_tensors_and_list_results():
    x = torch.randn(4, 2)
    p = Program(x)
    a = p.increment(0)
    c = p.extern(aten.cat.default, ([BufRef(0), BufRef(a)], 1), torch.empty(4, 4))
    left, right = p.buffer(torch.empty(2, 4)), p.buffer(torch.empty(2, 4))
    p.items.append(ExternItem(aten.split.Tensor, (BufRef(c), 2), {}, (left, right)))
    y = p.extern(aten.add.Tensor, (BufRef(left), BufRef(right)), torch.empty(2, 4), "output")
    plan = p.plan(y)
    expected = torch.cat([x, x + 1], 1)
    assert torch.allclose(load(plan)((x,))[0], expected[:2] + expected[2:])
    assert plan.arena_bytes == 128


@pytest.mark.parametrize("threads, grain", [(0, 1 << 14), (1, 1 << 16), (2, 1 << 15)])
def test_threads_option_limits_the_share(threads, grain):
    x = torch.zeros(1 << 16)
    p = Program(x)
    plan = p.plan(p.increment(0, "output"), threads=threads)
    assert [s.grain for s in plan.steps if isinstance(s, Launch)] == [grain]


def test_short_plans_keep_the_gil_and_long_ones_release_it():
    for n, long in ((8, False), (1 << 20, True)):
        p = Program(torch.zeros(n))
        assert p.plan(p.increment(0, "output")).release_gil == long


def test_empty_tensors():
    x = torch.zeros(0, 3)
    p = Program(x)
    a = p.increment(0)
    plan = p.plan(p.increment(a, "output"))
    assert not any(isinstance(s, Launch) for s in plan.steps)
    assert load(plan)((x,))[0].shape == (0, 3)


# --------------------------------------------------------------------------------------------------- matrix products


def silu_kernel(rows, cols, transposed=False, repeat=1):
    """out = a * sigmoid(a) + bias[column], over one flat loop; `transposed`: stored column by column; `repeat`: a bias
    serves so many neighbouring elements."""
    i = Sym("i", 0, rows * cols - 1)
    a = Value("load", (0, i, None), torch.float32)
    bias = Value("load", (1, i // repeat % cols, None), torch.float32)
    value = Value("mul", (a, Value("sigmoid", (a,), torch.float32)), torch.float32)
    value = Value("add", (value, bias), torch.float32)
    index = i % cols * rows + i // cols if transposed else i
    formals = (
        Buffer("a", torch.float32, "in", rows * cols),
        Buffer("bias", torch.float32, "in", cols),
        Buffer("out", torch.float32, "out", rows * cols),
    )
    return Kernel("silu_bias", formals, (Loop(i, rows * cols),), (MapStage((), (Store(2, index, value),)),))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_absorbs_the_kernel_behind_it(transposed):
    x, w, b, c = torch.randn(37, 24), torch.randn(40, 24), torch.randn(40), torch.randn(40)
    p = Program(x, w, b, c)
    wt = p.view(1, w.t())
    h = p.extern(aten.addmm.default, (BufRef(2), BufRef(0), BufRef(wt)), torch.empty(37, 40))
    y = p.buffer(torch.empty(40, 37).t() if transposed else torch.empty(37, 40), "output")
    p.items.append(KernelItem(silu_kernel(37, 40, transposed), (h, 3, y)))
    plan = p.plan(y, target=generating())
    assert [type(s).__name__ for s in plan.steps] == ["View", "Free", "Alloc", "Launch", "Free"]
    (got,) = load(plan)((x, w, b, c))
    assert torch.allclose(got, torch.nn.functional.silu(torch.addmm(b, x, w.t())) + c, atol=1e-5)
    assert got.stride() == ((1, 37) if transposed else (40, 1))


LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("image, batch", [(LAYOUTS[0], 1), (LAYOUTS[1], 1), (LAYOUTS[1], 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_1x1_convolutions_are_products(layout, image, batch, bias):
    x = torch.randn(batch, 24, 6, 5).to(memory_format=image)
    w, b, c = torch.randn(40, 24, 1, 1), torch.randn(40), torch.randn(40)
    p = Program(x, w, b, c)
    rest = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    like = torch.empty(batch, 40, 6, 5).to(memory_format=layout)
    h = p.extern(aten.convolution.default, (BufRef(0), BufRef(1), BufRef(2) if bias else None, *rest), like)
    y = p.buffer(like, "output")
    repeat = 30 if layout is torch.contiguous_format else 1
    p.items.append(KernelItem(silu_kernel(30 * batch, 40, repeat=repeat), (h, 3, y)))
    plan = p.plan(y, target=generating())
    assert [type(s).__name__ for s in plan.steps] == ["Alloc", "Launch", "Free"]
    (got,) = load(plan)((x, w, b, c))
    want = torch.nn.functional.silu(torch.convolution(x, w, b if bias else None, *rest)) + c.view(40, 1, 1)
    assert torch.allclose(got, want, atol=1e-5) and got.stride() == like.stride()


def test_a_product_that_is_read_twice_absorbs_nothing():
    x, w, c = torch.randn(37, 24), torch.randn(24, 40), torch.randn(40)
    p = Program(x, w, c)
    h = p.extern(aten.mm.default, (BufRef(0), BufRef(1)), torch.empty(37, 40), "output")
    y = p.buffer(torch.empty(37, 40), "output")
    p.items.append(KernelItem(silu_kernel(37, 40), (h, 2, y)))
    plan = p.plan(h, y, target=generating())
    assert sum(isinstance(s, Launch) for s in plan.steps) == 2
    h, y = load(plan)((x, w, c))
    assert torch.allclose(h, x @ w, atol=1e-5) and torch.allclose(
        y, torch.nn.functional.silu(h) + c, atol=1e-5
    )


def test_of_two_products_that_a_kernel_reads_one_absorbs_it():
    x, w, v = torch.randn(37, 24), torch.randn(24, 40), torch.randn(24, 40)
    p = Program(x, w, v)
    gate = p.extern(aten.mm.default, (BufRef(0), BufRef(1)), torch.empty(37, 40))
    up = p.extern(aten.mm.default, (BufRef(0), BufRef(2)), torch.empty(37, 40))
    i = Sym("i", 0, 37 * 40 - 1)
    a, b = (Value("load", (n, i, None), torch.float32) for n in (0, 1))
    formals = tuple(Buffer(n, torch.float32, r, 37 * 40) for n, r in (("a", "in"), ("b", "in"), ("o", "out")))
    product = MapStage((), (Store(2, i, Value("mul", (a, b), torch.float32)),))
    y = p.buffer(torch.empty(37, 40), "output")
    p.items.append(KernelItem(Kernel("mul", formals, (Loop(i, 37 * 40),), (product,)), (gate, up, y)))
    plan = p.plan(y, target=generating())
    assert sum(isinstance(s, Launch) for s in plan.steps) == 2
    assert torch.allclose(load(plan)((x, w, v))[0], (x @ w) * (x @ v), atol=1e-4)


def test_equal_products_share_code():
    x = torch.randn(8, 8)
    p = Program(x)
    h = p.extern(aten.mm.default, (BufRef(0), BufRef(0)), x)
    h = p.extern(aten.mm.default, (BufRef(h), BufRef(0)), x)
    plan = p.plan(p.extern(aten.mm.default, (BufRef(h), BufRef(0)), x, "output"), target=generating())
    assert len(plan.kernels) == 1
    assert torch.allclose(load(plan)((x,))[0], x @ x @ x @ x, atol=1e-3)


# ------------------------------------------------------------------------------------------------------------- arena


def peak(intervals):
    """The most bytes that live at once: no placement can be smaller."""
    grow = [(i.begin, -(-i.nbytes // 64) * 64) for i in intervals]
    shrink = [(i.end + 1, i.nbytes // -64 * 64) for i in intervals]
    changes = sorted(grow + shrink)
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def test_placement_never_overlaps_and_stays_near_the_peak():
    generator = torch.Generator().manual_seed(0)

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    for _ in range(20):
        intervals = [
            Interval(k, number(1, 4000), begin := number(0, 60), begin + number(0, 12)) for k in range(80)
        ]
        placement = place(intervals, 64)
        for a in intervals:
            assert placement.offsets[a.key] % 64 == 0
            for b in intervals:
                if a.key < b.key and a.begin <= b.end and b.begin <= a.end:
                    x, y = placement.offsets[a.key], placement.offsets[b.key]
                    assert x + a.nbytes <= y or y + b.nbytes <= x
        assert peak(intervals) <= placement.nbytes <= 1.4 * peak(intervals)


def test_placement_of_nothing():
    assert place([], 64).nbytes == 0 == peak([])
    assert all(isinstance(s, Alloc) is False for s in Program(torch.zeros(1)).plan(0).steps)
