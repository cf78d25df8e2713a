"""Launches side by side: which become one step, and that such a step does every item of each exactly once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import smelt
from smelt.codegen.plan_loading import load
from smelt.config import DEFAULT
from smelt.ops.lowering import lower
from smelt.plan.build_plan import build_plan
from smelt.plan.parallel_launches import Touched, merge_parallel_launches
from smelt.plan.plan_printer import print_plan
from smelt.plan.steps import WORK, Alloc, Aten, BumpVersion, Free, Launch, ParallelLaunch, Reg
from smelt.plan.verify_plan import verify
from smelt.schedule.schedule_program import fuse
from smelt.targets import cpu
from tests.harness.scheduled import costs
from tests.harness.traced import traced

aten = torch.ops.aten


def launch(*regs, extent=64, grain=16):
    return Launch("k", regs, extent, grain)


def touched(read, written):
    return Touched(frozenset(read), frozenset(written))


def joined(*pairs):
    """Steps, each with what it touches (None: no kernel's launch), for two threads; as lists of launches."""
    steps = [step for step, _ in pairs]
    known = {i: t for i, (_, t) in enumerate(pairs) if t is not None}
    return merge_parallel_launches(steps, known, costs(threads=2))


def planned(graph):
    target = cpu.target(DEFAULT)
    schedule = fuse(lower(graph, target.costs), target.costs)
    return build_plan(schedule, target.generate(schedule), target)


# ---- which


def test_independent_neighbours():
    a, b = launch(0, 1), launch(2, 3)
    (step,) = joined((a, touched([0], [1])), (b, touched([2], [3])))
    assert step.launches == (a, b) and step.work == (4 * WORK, 4 * WORK) and step.grain == 4 * WORK


@pytest.mark.parametrize("second", [([1], [3]), ([2], [1]), ([2], [0])])
def test_one_that_reads_or_writes_what_the_other_touches_stays_behind(second):
    a, b = launch(0, 1), launch(2, 3)
    assert joined((a, touched([0], [1])), (b, touched(*second))) == [a, b]


def test_both_may_read_the_same():
    a, b = launch(0, 1), launch(0, 2)
    assert len(joined((a, touched([0], [1])), (b, touched([0], [2])))) == 1


def test_allocations_and_version_counts_move_before_the_launches():
    a, b = launch(0, 1), launch(2, 3)
    alloc = Alloc(3, (8,), (1,), torch.float32, torch.device("cpu"))
    bump = BumpVersion((2,))
    steps = joined((a, touched([0], [1])), (bump, None), (alloc, None), (b, touched([2], [3])))
    assert steps[:2] == [bump, alloc] and isinstance(steps[2], ParallelLaunch)


def test_an_aten_call_separates():
    a, b = launch(0, 1), launch(2, 3)
    call = Aten(aten.neg.default, (Reg(4),), {}, (5,))
    assert joined((a, touched([0], [1])), (call, None), (b, touched([2], [3]))) == [a, call, b]


def test_little_work_and_large_launches_stay_alone():
    small = [launch(2 * i, 2 * i + 1, extent=4) for i in range(3)]
    large = [launch(2 * i, 2 * i + 1, extent=1 << 12) for i in range(3)]
    for launches in (small, large):
        pairs = [(l, touched([l.regs[0]], [l.regs[1]])) for l in launches]
        assert joined(*pairs) == launches


def test_one_thread_changes_nothing():
    a, b = launch(0, 1), launch(2, 3)
    known = {0: touched([0], [1]), 1: touched([2], [3])}
    assert merge_parallel_launches([a, b], known, costs(threads=1)) == [a, b]


# ---- that it runs


def optimizer(parameters, gradients, moments):
    for p, g, m in zip(parameters, gradients, moments):
        m.lerp_(g, 0.1)
        p.addcdiv_(m, (g * g).sqrt() + 1e-8, value=-0.01)


def state(sizes):
    return [[torch.randn(n) for n in sizes] for _ in range(3)]


SIZES = [1, 7, 16, 300, 5000, 64, 20001, 3, 128, 40000, 33]


@pytest.mark.parametrize("threads", (2, 4))
def test_an_optimizer_is_one_step(threads, two_threads):
    torch.set_num_threads(threads)
    tensors = state(SIZES)
    expected = [[t.clone() for t in group] for group in tensors]
    flat = [t for group in tensors for t in group]
    n = len(SIZES)
    graph, real = traced(lambda *t: optimizer(t[:n], t[n : 2 * n], t[2 * n :]) or (), *flat)
    plan = planned(graph)
    verify(plan)
    assert [type(s) for s in plan.steps if not isinstance(s, BumpVersion | Free)] == [ParallelLaunch]
    assert print_plan(plan).count("launch") == n
    for _ in range(3):
        load(plan)(tuple(real))
        optimizer(*expected)
    torch.testing.assert_close(tensors, expected, rtol=1e-5, atol=1e-6)


def test_every_item_runs_once(two_threads):
    """In place, so that an item that ran twice would show."""
    torch.manual_seed(0)
    for _ in range(30):
        sizes = torch.randint(1, 3000, (9,)).tolist()
        graph, real = traced(lambda *t: [x.add_(1) for x in t] and (), *[torch.zeros(n) for n in sizes])
        plan = planned(graph)
        launches = [s for s in plan.steps if isinstance(s, Launch)]
        if not launches:
            (together,) = [s for s in plan.steps if isinstance(s, ParallelLaunch)]
            launches = list(together.launches)
        work = tuple(int(w) for w in torch.randint(1, 400, (len(launches),)))
        step = ParallelLaunch(tuple(launches), work, int(torch.randint(1, 300, ())))
        counted = tuple(s for s in plan.steps if isinstance(s, BumpVersion))
        load(replace(plan, steps=(*counted, step)))(tuple(real))
        assert all(x.eq(1).all() for x in real)
        assert all(x._version == 1 for x in real)
        del plan


def test_results_that_are_allocated(two_threads):
    def f(*tensors):
        return [torch.sigmoid(t) * 2 for t in tensors]

    tensors = [torch.randn(n) for n in SIZES]
    compiled = smelt.compile(f)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*tensors), f(*tensors))


def test_an_input_is_let_go_after_the_step_that_reads_it(two_threads):
    tensors = [torch.randn(n) for n in SIZES]
    graph, real = traced(lambda *t: [torch.exp(x) for x in t], *tensors)
    plan = planned(graph)
    assert [type(s) for s in plan.steps[-2:]] == [ParallelLaunch, Free]
    assert plan.steps[-1].regs == tuple(range(len(tensors)))
    got = load(plan)(tuple(real))
    torch.testing.assert_close(list(got), [t.exp() for t in tensors])
