"""Hand-made schedules with symbols, compiled once: plans for numbers, which give what plans for fixed sizes give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.sweep_plans import journey
from smelt.codegen.plan_loading import load, load_symbolic
from smelt.config import Config
from smelt.errors import NeedsFixedSize, VerificationError
from smelt.graph.ir import TensorSpec
from smelt.plan.buffer_reuse import LARGE
from smelt.plan.build_plan import build_plan
from smelt.plan.machine_code import Block, CompiledKernel
from smelt.plan.plan_items import LaunchItem
from smelt.plan.plan_printer import print_plan
from smelt.plan.plan_template import Loader, SymbolicLaunches, Template
from smelt.plan.steps import Alloc, Aten, Launch, ParallelLaunch, Plan, launches
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule import BufferSpec, BufRef, ExternItem, Schedule, ViewItem
from smelt.shapes.expr import Sym, contiguous_stride, evaluate
from smelt.targets import cpu
from tests.harness.kernels import hand_written

aten = torch.ops.aten
CPU = torch.device("cpu")
S, T = Sym("s0", 2), Sym("s1", 2)
SIZES = [(2, 2), (3, 5), (5, 3), (64, 2), (17, 129), (301, 33)]


class Program:
    """Writes a schedule and what it is compiled to. `grain`: of launches; `joins`: they may be parts of a
    `ParallelLaunch`."""

    def __init__(self, *shapes, grain=1 << 14, joins=True):
        self.code, self.grain, self.joins = hand_written(), grain, joins
        self.buffers, self.items = [], []
        self.inputs = [self.buffer(shape, kind="input") for shape in shapes]

    def buffer(self, shape, kind="temp", stride=None):
        spec = TensorSpec(tuple(shape), stride or contiguous_stride(shape), torch.float32, CPU)
        self.buffers.append(BufferSpec(len(self.buffers), spec, kind))
        return len(self.buffers) - 1

    def launch(self, name, src, out, extent, sizes=(), in_place=()):
        code = CompiledKernel(name, self.code[name], extent, self.grain, sizes)
        self.items.append(LaunchItem(code, (src, out), ("in", "out"), "", self.joins, in_place=in_place))
        return out

    def transposed(self, src, kind="temp"):
        rows, columns = self.buffers[src].spec.shape
        out = self.buffer((columns, rows), kind)
        return self.launch("transposed", src, out, rows * columns, (rows, columns))

    def increment(self, src, kind="temp", in_place=()):
        rows, columns = self.buffers[src].spec.shape
        return self.launch("increment", src, self.buffer((rows, columns), kind), rows * columns, (), in_place)

    def extern(self, op, args, shape, kind="temp"):
        out = self.buffer(shape, kind)
        self.items.append(ExternItem(op, args, {}, (out,)))
        return out

    def view(self, src, shape, stride, offset=0, visible=False, kind="temp"):
        out = self.buffer(shape, kind, stride)
        self.items.append(ViewItem(out, src, tuple(shape), tuple(stride), offset, visible))
        return out

    def template(self, *outputs, threads=1):
        schedule = Schedule(self.buffers, (), [i for i in self.items if isinstance(i, ExternItem)], outputs)
        return Template(schedule, SymbolicLaunches(lambda _: self.items), target(threads))


def target(threads=1):
    made = cpu.target(Config())
    return replace(made, costs=replace(made.costs, threads=threads))


def run(template, s, t, *inputs):
    """The plan for these sizes and what it gives, which is what the native template's plan gives."""
    values = {S: s, T: t}
    plan = template.at(values)
    verify(plan)
    outputs = load(plan)(copies(inputs))
    if isinstance(template.launches, SymbolicLaunches):
        loader = Loader(template, load_symbolic, (S, T))
        native, sized = loader(values)
        loader.check(native, sized, values)
        for got, want in zip(native(copies(inputs)), outputs, strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride()
    return plan, load(plan)(inputs)


def copies(inputs):
    return tuple(x.clone() for x in inputs)


# ---------------------------------------------------------------------------------------------------------- code


@pytest.mark.parametrize("grain", [1, 7, 1 << 14])
@pytest.mark.parametrize("s, t", SIZES)
def test_code_takes_sizes_behind_the_addresses(s, t, grain):
    p = Program((S, T), grain=grain)
    x = torch.randn(s, t)
    plan, (y, z) = run(p.template(y := p.transposed(0, "output"), p.transposed(y, "output")), s, t, x)
    assert torch.equal(y, x.t()) and torch.equal(z, x)
    assert [(l.extent, l.sizes) for l in launches(plan.steps)] == [(s * t, (s, t)), (s * t, (t, s))]
    assert f"launch transposed(r0, r1, {s}, {t}) over {s * t}" in print_plan(plan)


@pytest.mark.parametrize("s, t", SIZES)
def test_launches_side_by_side_take_sizes_of_their_own(s, t):
    p = Program((S, T), (T, S), grain=64)
    template = p.template(p.transposed(0, "output"), p.transposed(1, "output"), threads=2)
    x, y = torch.randn(s, t), torch.randn(t, s)
    plan, (a, b) = run(template, s, t, x, y)
    assert torch.equal(a, x.t()) and torch.equal(b, y.t())
    joined = any(isinstance(step, ParallelLaunch) for step in plan.steps)
    assert joined == (64 <= s * t < 1024)  # decided by numbers
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        a, b = load(plan)((x, y))
        assert torch.equal(a, x.t()) and torch.equal(b, y.t())
    finally:
        torch.set_num_threads(before)


def test_many_buffers_and_sizes():
    """More than the launcher has room for on its stack."""
    p = Program((S, T))
    out = p.buffer((T, S), "output")
    code = CompiledKernel(
        "transposed", p.code["transposed"], S * T, 1 << 14, (S, T, *[S + k for k in range(60)])
    )
    p.items.append(LaunchItem(code, (0, out), ("in", "out")))
    x = torch.randn(5, 7)
    plan, (y,) = run(p.template(out), 5, 7, x)
    assert torch.equal(y, x.t())
    assert next(launches(plan.steps)).sizes[-1] == 64


def test_code_is_shared_by_all_instances():
    p = Program((S, T))
    template = p.template(p.transposed(0, "output"))
    a, b = template.at({S: 3, T: 4}), template.at({S: 30, T: 4})
    assert a.kernels == b.kernels and a.kernels["transposed"] is b.kernels["transposed"]


def test_an_empty_range_is_not_launched():
    p = Program((S, T))
    p.launch("increment", 0, p.buffer((S - 2, T), "output"), (S - 2) * T)
    plan, (y,) = run(p.template(1), 2, 3, torch.randn(2, 3))
    assert y.shape == (0, 3) and not list(launches(plan.steps))


def test_items_may_be_made_for_numbers():
    """As on a GPU: with the rest of the schedule at these."""
    p = Program((S, T))
    seen = []

    def launches(numbers, values):
        seen.append((numbers.buffers[0].spec.shape, dict(values)))
        return [replace(i, code=replace(i.code, extent=values[S] * values[T])) for i in p.items]

    p.launch("increment", 0, p.buffer((S, T), "output"), S * T)
    template = p.template(1)
    template = replace(template, launches=launches)
    x = torch.randn(2, 3)
    _, (y,) = run(template, 2, 3, x)
    torch.testing.assert_close(y, x + 1)
    assert seen == [((2, 3), {S: 2, T: 3})]


# ------------------------------------------------------------------------------------------------- views and calls


@pytest.mark.parametrize("s, t", SIZES)
def test_views_and_arguments_of_calls(s, t):
    p = Program((S, T))
    y = p.transposed(0)
    last = p.view(y, (S,), (1,), (T - 1) * S)  # the last row of y
    wide = p.extern(aten.expand.default, (BufRef(last), [T * 2, S]), (T * 2, S))
    cut = p.extern(aten.slice.Tensor, (BufRef(wide), 0, T // 2, T + 1), (T - T // 2 + 1, S), "output")
    flat = p.view(0, (S * T,), (1,), 0, visible=True, kind="output")
    x = torch.randn(s, t)
    _, (got, same) = run(p.template(cut, flat), s, t, x)
    want = x.t()[-1].expand(2 * t, s)[t // 2 : t + 1]
    assert torch.equal(got, want) and got.stride() == (0, 1)
    assert torch.equal(same, x.view(-1)) and same._base is x


# ------------------------------------------------------------------------- what is decided by numbers: memory, threads


def fixed(p, outputs, s, t):
    """The plan of the same program at these sizes, symbol by symbol put there by hand."""
    at = lambda e: evaluate(e, {S: s, T: t})  # noqa: E731
    buffers = [
        replace(
            b, spec=replace(b.spec, shape=tuple(map(at, b.spec.shape)), stride=tuple(map(at, b.spec.stride)))
        )
        for b in p.buffers
    ]
    items = [
        replace(i, code=replace(i.code, extent=at(i.code.extent), sizes=tuple(map(at, i.code.sizes))))
        for i in p.items
    ]
    return build_plan(Schedule(buffers, (), [], outputs), items, target())


@pytest.mark.parametrize("s, t", [(8, 16), (200, 300), (1100, 1300)])
def test_plans_are_those_of_fixed_sizes(s, t):
    p = Program((S, T))
    y = p.increment(p.increment(p.transposed(0), in_place=((1, 0),)), in_place=((1, 0),))
    out = p.transposed(y, "output")
    template = p.template(out)
    x = torch.randn(s, t)
    plan, (got,) = run(template, s, t, x)
    torch.testing.assert_close(got, x + 2)
    want = fixed(p, (out,), s, t)
    assert print_plan(plan) == print_plan(want)
    assert (plan.arena_bytes, plan.release_gil) == (want.arena_bytes, want.release_gil)
    over = [step.over for step in plan.steps if isinstance(step, Alloc)]
    assert any(o is not None for o in over) == (4 * s * t >= LARGE)
    assert plan.release_gil == (16 * s * t > cpu.COSTS.gil_bytes)


def test_numbers_among_the_inputs_stay():
    p = Program((S, T))
    template = replace(p.template(p.increment(0, "output")), numbers=(3,))
    assert template.at({S: 3, T: 3}).numbers == (3,)


# --------------------------------------------------------------------------------------- bytes, verifier, symbols


def test_bytes_carry_sizes():
    p = Program((S, T))
    plan, _ = run(p.template(p.transposed(0, "output")), 4, 6, x := torch.randn(4, 6))
    assert [l.sizes for l in launches(plan.steps)] == [(4, 6)]
    assert torch.equal(journey(plan)[0]((x,))[0], x.t())


def _with_sizes(step, sizes):
    return replace(step, sizes=sizes) if isinstance(step, Launch) else step


def test_symbols_are_refused_where_numbers_are_needed():
    p = Program((S, T))
    plan, _ = run(p.template(p.transposed(0, "output")), 4, 6, torch.randn(4, 6))
    symbolic = replace(plan, steps=tuple(_with_sizes(step, (S,)) for step in plan.steps))
    with pytest.raises(NeedsFixedSize):
        load(symbolic)


def test_sizes_fit_the_slots_of_a_cpus_code():
    function = hand_written()["increment"]
    for number, fits in ((1 << 62, True), (-5, True), (1 << 63, False)):
        launch = Launch("increment", (0, 0), 0, 1, sizes=(number,))
        plan = Plan(1, (), 1, (launch,), (0,), kernels={"increment": function})
        if fits:
            verify(plan)
        else:
            with pytest.raises(VerificationError, match="64 bits"):
                verify(plan)
    launch = Launch("increment", (0, 0), 1, 1, sizes=(3,))
    verify(Plan(1, (), 1, (launch,), (0,), kernels={"increment": replace(function, block=Block(32, 0))}))
    together = ParallelLaunch((launch,), (1,), 1)
    of_parts = {"increment": replace(function, block=Block(32, 0, parts=4))}
    with pytest.raises(VerificationError, match="a kernel for several launches is given sizes"):
        verify(Plan(1, (), 1, (together,), (0,), kernels=of_parts))


def test_calls_of_an_instance_take_numbers_only():
    p = Program((S, T))
    out = p.extern(aten.expand.default, (BufRef(p.transposed(0)), [S * 0 + 2, T, S]), (2, T, S), "output")
    plan = p.template(out).at({S: 3, T: 5})
    [call] = [step for step in plan.steps if isinstance(step, Aten)]
    assert call.args[1] == [2, 5, 3] and all(type(n) is int for n in call.args[1])


# --------------------------------------------------------------------------------------- plans that others may share


def loader_of(template):
    return Loader(template, load_symbolic, (S, T))


def test_a_plan_is_made_once_for_all_sizes_that_give_the_same_answers():
    p = Program((S, T))
    loader = loader_of(p.template(p.increment(p.transposed(0), "output")))
    x = torch.randn(300, 200)
    plans = {}
    for s, t in ((2, 3), (7, 5), (300, 200), (3, 3), (250, 200), (2, 3)):
        native, sized = loader({S: s, T: t})
        loader.check(native, sized, {S: s, T: t})
        assert torch.equal(native((x[:s, :t].contiguous(),))[0], x[:s, :t].t() + 1)
        plans.setdefault(sized.plan.release_gil, set()).add(id(sized))
    assert {answer: len(made) for answer, made in plans.items()} == {False: 1, True: 1}


def test_conditions_say_for_which_sizes_a_plan_is():
    p = Program((S, T))
    out = p.buffer((S - 2, T), "output")
    p.launch("increment", 0, out, (S - 2) * T)
    template = p.template(out)
    empty, full = template.symbolic({S: 2, T: 3}), template.symbolic({S: 9, T: 3})
    assert not list(launches(empty.plan.steps)) and len(list(launches(full.plan.steps))) == 1
    for sized, fits, other in ((empty, 2, 5), (full, 5, 2)):
        instance = load_symbolic(sized, (S, T))
        assert instance({S: other, T: 7}) is None
        assert instance({S: fits, T: 7})((torch.randn(fits, 7),))[0].shape == (fits - 2, 7)


def test_few_plans_are_kept():
    p = Program((S, T))
    made, reported = [], []

    def load(sized, syms):
        made.append(sized)
        return load_symbolic(replace(sized, conditions=((S - sizes, True), (sizes - S, True))), syms)

    template = p.template(p.increment(0, "output"))
    loader = Loader(template, load, (S, T), lambda plan, values: reported.append((plan, values[S])))
    for sizes in (*range(2, 2 + Loader._CAPACITY), 2, 2 + Loader._CAPACITY, 2, 3):
        native, _ = loader({S: sizes, T: 3})
        assert native((torch.zeros(sizes, 3),))[0].shape == (sizes, 3)
    assert len(made) == Loader._CAPACITY + 2  # of the last, and of 3 again, which was used longest ago
    assert all(plan is sized for (plan, _), sized in zip(reported, made, strict=True))
    assert [sizes for _, sizes in reported] == [*range(2, 3 + Loader._CAPACITY), 3]


def test_numbers_of_calls_follow_from_sizes():
    """A number, a list of them, one where the operator takes a float, and one where it takes a tensor."""
    p = Program((S, T))
    full = p.extern(aten.new_full.default, (BufRef(0), [S, T * 2], S + T), (S, T * 2))
    scaled = p.extern(aten.mul.Tensor, (BufRef(full), T // 2), (S, T * 2))
    cut = p.extern(aten.narrow_copy.default, (BufRef(scaled), 1, T % 3, T), (S, T), "output")
    filled = p.extern(aten.nan_to_num.default, (BufRef(0), S * T), (S, T), "output")
    template = p.template(cut, filled)
    for s, t in SIZES:
        _, (got, numbers) = run(template, s, t, torch.full((s, t), torch.nan))
        torch.testing.assert_close(got, torch.full((s, t), float((s + t) * (t // 2))))
        torch.testing.assert_close(numbers, torch.full((s, t), float(s * t)))
