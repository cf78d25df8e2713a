"""Graphs of symbolic sizes on a CPU: products, windows and rows are generated as for numbers, by code that others share."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import events
from smelt.codegen.cpu_symbolic_launches import MAX_WINDOW_SETS
from smelt.codegen.gemm_profitability import prefers_product
from smelt.codegen.llvm.host_cpu import host
from smelt.codegen.plan_loading import load, load_symbolic
from smelt.config import Config
from smelt.ops.lowering import lower
from smelt.plan.plan_template import Loader, SymbolicLaunches, Template
from smelt.plan.steps import Aten, launches
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule_program import fuse
from smelt.targets import cpu
from tests.harness.hosts import generate_products
from tests.harness.symbolic import S0, S1, symbolic
from tests.harness.traced import flatten

LANES = host().lanes(4)
w, b = torch.randn(40, 24), torch.randn(40)
filters = torch.randn(6, 1, 3, 3)
wide = torch.randn(64, 1024) / 32


class AtSizes:
    """Plans of `f` of tensors of `shapes`, of one template, for `threads` on a host where products are generated."""

    def __init__(self, f, *shapes, threads=2):
        self.f, self.shapes = f, shapes
        inputs = self.inputs(101, 211)
        graph, real = symbolic(f, *inputs)
        self.order = [next((k for k, t in enumerate(inputs) if t is r), r) for r in real]
        target = cpu.target(Config(verify_stages=True, threads=threads), "znver5")
        schedule = fuse(lower(graph, target.costs), target.costs)
        self.template = Template(schedule, target.generate_symbolic(schedule), target)
        is_symbolic = isinstance(self.template.launches, SymbolicLaunches)
        self.loader = Loader(self.template, load_symbolic, (S0, S1)) if is_symbolic else None

    def inputs(self, s, t):
        sizes = {S0: s, S1: t}
        return [torch.randn([sizes.get(n, n) for n in shape]) for shape in self.shapes]

    def plan(self, s, t=5):
        """The plan, whose results are eager's."""
        plan = self.template.at({S0: s, S1: t})
        verify(plan)
        inputs = self.inputs(s, t)
        self.agrees(load(plan), inputs)
        if self.loader is not None:
            native, sized = self.loader({S0: s, S1: t})
            self.loader.check(native, sized, {S0: s, S1: t})
            self.agrees(native, inputs)
        return plan

    def agrees(self, native, inputs):
        got = native(tuple(inputs[k] if isinstance(k, int) else k for k in self.order))
        for g, e in zip(got, flatten(self.f(*inputs)), strict=True):
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-4, check_stride=True)

    def shared(self, s, t=5):
        """The plan that is also that of other sizes."""
        return self.loader({S0: s, S1: t})[1]


def functions(plan):
    return [plan.kernels[launch.kernel] for launch in launches(plan.steps)]


def calls(plan):
    return [str(step.op) for step in plan.steps if isinstance(step, Aten)]


# ---- products

PRODUCTS = {
    "linear": (lambda x: F.linear(x, w, b), (S0, 24)),
    "with what is behind": (lambda x: F.gelu(F.linear(x, w, b)) * 2, (S0, 24)),
    "residual": (lambda x, y: F.linear(x, w, b) + y, (S0, 24), (S0, 40)),
    "of rows in batches": (lambda x: F.relu(F.linear(x, w, b)), (S0, S1, 24)),
    "scores": (lambda q, k: (q @ k.transpose(-1, -2)) * 0.125, (3, S0, 24), (3, S1, 24)),
    "masked scores": (lambda q, k, m: q @ k.mT + m, (3, S0, 24), (3, S1, 24), (S0, S1)),
    "deep": (lambda x, y: x @ y, (7, S0), (S0, S1)),
    "pointwise": (lambda x: F.relu(F.conv2d(x, w[:, :, None, None], b)), (2, 24, S0, S1)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name):
    """Whatever their sizes, no product is ATen's, and what is behind one is part of it."""
    f, *shapes = PRODUCTS[name]
    graph = AtSizes(f, *shapes)
    for s, t in [(2, 4), (3, 5), (14, 32), (15, 33), (64, 7), (101, 211), (300, 40)]:
        plan = graph.plan(s, t)
        assert not calls(plan) and len(functions(plan)) == 1, name


def test_products_of_other_sizes_share_code():
    graph = AtSizes(*PRODUCTS["with what is behind"])
    (few,), (more,), (fewer,) = (functions(graph.plan(s)) for s in (1400, 2800, 3))
    assert few is more and fewer is not few  # tiles of as many rows
    assert all(e is f for e, f in zip(*map(epilogues, (few, fewer))))


def epilogues(function):
    """The libraries of the epilogues that a product's entry point calls."""
    return [library for name, library in function.library.imports.items() if name.startswith("epilogue")]


SHARED = {
    **{name: PRODUCTS[name] for name in ("linear", "with what is behind", "residual", "of rows in batches")},
    "rows far apart": (lambda x: F.relu(F.linear(x[:, 0], w, b)), (S0, S1, 24)),
    "deep, of few columns": (lambda x, y: x.t() @ y, (S0, 24), (S0, 40)),
    "deep, of rows in batches": (
        lambda x, y: x.flatten(0, 1).t() @ y.flatten(0, 1),
        (S0, S1, 24),
        (S0, S1, 40),
    ),
    "one operand twice": (lambda x: x.t() @ x, (S0, 24)),
    "double": (lambda x: F.linear(x.double(), w.double()) * 2, (S0, 24)),
}


@pytest.mark.parametrize("name", SHARED)
def test_products_are_part_of_plans_that_others_share(name, monkeypatch):
    """Where rows, the depth and how A lies are all that depends on sizes. The threads of the configuration count, not those
    of torch."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    f, *shapes = SHARED[name]
    graph = AtSizes(f, *shapes)
    made = {id(graph.shared(s, t)) for s, t in [(1400, 3), (1407, 5), (2804, 7), (1402, 5), (5000, 7)]}
    assert len(made) <= 2  # tiles of 13 rows, or of 14
    for s, t in [(2, 4), (3, 5), (13, 2), (14, 32), (15, 3), (28, 2), (29, 2), (64, 7), (1021, 3), (1407, 2)]:
        assert not calls(graph.plan(s, t))


def test_products_of_which_more_depends_on_sizes_are_planned_for_numbers():
    for name in ("scores", "deep", "pointwise"):
        assert AtSizes(PRODUCTS[name][0], *PRODUCTS[name][1:]).loader is None


def test_a_product_in_place_of_atens_is_decided_for_its_rows(monkeypatch):
    """With many threads, few rows are not enough for each."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    graph = AtSizes(lambda x: F.linear(x, wide), (S0, 1024), threads=0)
    found = {s: bool(calls(graph.plan(s))) for s in (2, 30, 700, 30, 40, 6000)}
    assert found == {s: not prefers_product(cpu.ZEN5, s, 64, 1024, 1, torch.float32, 8) for s in found}
    assert set(found.values()) == {True, False}


def test_too_few_columns_are_atens():
    """That is decided for the numbers."""
    graph = AtSizes(lambda x, y: x @ y, (S0, 24), (24, S1))
    assert [bool(calls(graph.plan(8, t))) for t in (3, 4, 40, 2)] == [True, False, False, True]


# ---- windows


def test_the_first_sets_of_sizes_have_windows():
    graph = AtSizes(lambda x: F.relu(F.conv2d(x, filters, padding=1, groups=6)), (2, 6, S0, S1))
    for s in range(5, 5 + MAX_WINDOW_SETS):
        assert not calls(graph.plan(s, 9))
    assert calls(graph.plan(30, 9))
    assert not calls(graph.plan(5, 9))


@pytest.fixture
def generated(monkeypatch):
    """Products are generated on this host."""
    generate_products(monkeypatch)


def calls_of(f, shapes):
    """The ATen calls of each plan of `f`, compiled once, whose results are eager's, of tensors of these shapes."""
    compiled, seen = smelt.compile(f, dynamic=True, fullgraph=True), []
    with events.subscribed(seen.append):
        for shape in shapes:
            x = torch.randn(shape)
            torch.testing.assert_close(compiled(x), f(x), rtol=1e-4, atol=1e-4)
    assert sum(e.kind == "entry-installed" for e in seen) == 1
    return [e.data["externs"] for e in seen if e.kind == "plan"]


def test_disjoint_patches_are_products(generated):
    found = calls_of(
        torch.nn.Conv2d(3, 8, 4, 4).requires_grad_(False), [(2, 3, 101, 211), (2, 3, 64, 80), (3, 3, 47, 99)]
    )
    assert found == [(), (), ()]


def test_sizes_that_guards_bound_are_not_empty():
    """A result of s // 4 rows has two at least, which is a guard; so what reads it is a loop."""
    patches = torch.nn.Conv2d(3, 8, 4, 4).requires_grad_(False)
    found = calls_of(lambda x: patches(x).exp(), [(2, 3, 101, 211), (2, 3, 64, 80)])
    assert not {"aten.exp.default"} & {call for externs in found for call in externs}


# ---- rows

ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "sum": lambda x: x.sum(-1),
    "largest": lambda x: x.amax(-1),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_any_length(name):
    graph = AtSizes(ROWS[name], (S0, S1))
    for length in (2, 3, 7, 15, 16, 17, 32, 33, 48, 64, 100, 128, 129, 160, 500, 512, 1000, 4096, 5000):
        graph.plan(3, length)


def test_rows_of_as_many_vectors_share_code():
    graph = AtSizes(ROWS["softmax"], (S0, S1))

    def code(length, rows=3):
        (function,) = functions(graph.plan(rows, length))
        return function

    two = code(LANES + 1)
    assert two is code(2 * LANES - 1) is code(LANES + 2, rows=50)
    assert len({two, code(2 * LANES), code(LANES), code(LANES - 1), code(2 * LANES + 1)}) == 5
    assert code(600 * LANES) is code(300 * LANES + 1)  # of long rows there is one


# ---- indices


def test_places_of_symbolic_sizes_are_known():
    """So many rows and columns as there are: no call looks whether they are."""

    def f(x):
        rows, columns = torch.arange(x.shape[0]), torch.arange(x.shape[1])
        return x[rows[:, None], columns] + x[rows] * 2

    assert calls_of(f, [(5, 3), (2, 2), (64, 33)]) == [(), (), ()]


def test_places_that_may_be_out_of_range_are_looked_at():
    table = torch.randn(50, 3)

    def f(x):
        return table[torch.arange(x.shape[0])] + x

    compiled = smelt.compile(f, dynamic=True)
    torch.testing.assert_close(compiled(torch.ones(20, 3)), f(torch.ones(20, 3)))
    with pytest.raises(IndexError):
        compiled(torch.ones(51, 3))
