"""`_native.SizeDispatch`: which instance a call runs, how many are kept, and what else may happen meanwhile."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch

from smelt import _native
from smelt.codegen.plan_loading import load
from smelt.plan.steps import Alloc, Aten, Free, Plan, Reg, View
from tests.harness.threads import in_threads

aten = torch.ops.aten
CPU = torch.device("cpu")
F32 = torch.float32


class Maker:
    """Makes instances that say which they are, and counts them."""

    def __init__(self, keep: bool = True) -> None:
        self.made: list[tuple[int, ...]] = []
        self.keep = keep

    def __call__(self, values):
        self.made.append(values)

        def instance(inputs):
            return (values, *inputs)

        return (instance,) if self.keep else instance


def by_sizes(make, *sources, budget=None):
    """Of sources (input, dim, divisor=1, over=None, rest=False)."""
    full = [(*source, *(1, None, False)[len(source) - 2 :]) for source in sources or ((0, 0),)]
    return _native.SizeDispatch(full, make, threading.RLock(), budget)


def of(n):
    return (torch.empty(n),)


def doubled(n):
    """((x + x) + (x + x), by a plan with an arena of 4 n bytes)"""
    steps = (
        Alloc(1, (n,), (1,), F32, CPU, 0),
        Aten(aten.add.out, (Reg(0), Reg(0)), {"out": Reg(1)}, (None,)),
        Alloc(2, (n,), (1,), F32, CPU),
        Aten(aten.add.out, (Reg(1), Reg(1)), {"out": Reg(2)}, (None,)),
        Free((1,)),
    )
    return load(Plan(1, (), 3, steps, (2,), arena_bytes=4 * n))


def plans(values):
    return (doubled(*values),)


def with_plans(program=doubled):
    """A dispatch whose instances are plans, with a budget of two arenas."""
    budget = _native.ArenaBudget(2)

    def make(values):
        plan = program(*values)
        budget.add(plan)
        return (plan,)

    return by_sizes(make, budget=budget), budget


# ------------------------------------------------------------------------------------------------ which instance runs


def test_sizes_are_read_from_where_the_sources_say():
    make = Maker()
    b = by_sizes(make, (1, 0), (0, 1), (1, 2))
    x, y = torch.empty(2, 3), torch.empty(4, 5, 6)
    values, *inputs = b((x, y))
    assert values == (4, 3, 6)
    assert inputs[0] is x and inputs[1] is y
    assert b((x.t().contiguous().t(), y))[0] == (4, 3, 6)
    assert make.made == [(4, 3, 6)]
    assert b((torch.empty(9, 7), y))[0] == (4, 7, 6)
    assert list(b.instances) == [(4, 7, 6), (4, 3, 6)]


def test_sizes_are_divided_and_numbers_are_themselves():
    b = by_sizes(Maker(), (0, 0, 3), (0, 0, 3, None, True), (1, -1), (1, -1, 4))
    assert b((torch.empty(17), 9))[0] == (5, 2, 9, 2)
    for wrong in (9.0, 1 << 70):
        with pytest.raises(TypeError, match=f"input 1 must be an int of 64 bits, got {type(wrong).__name__}"):
            b((torch.empty(17), wrong))


def test_gaps_between_rows():
    b = by_sizes(Maker(), (0, 0, 1, 1), (0, 1, 1, None))
    assert b((torch.empty(3, 8)[:, :5],))[0] == (3, 5)
    assert b((torch.empty(3, 8),))[0] == (0, 8)
    assert b((torch.empty(8, 9).t()[:, :3].t(),))[0] == (0, 9)
    with pytest.raises(TypeError, match="has 1 dimensions"):
        b((torch.empty(3),))


def test_no_sources_make_one_instance():
    make = Maker()
    b = _native.SizeDispatch((), make, threading.RLock())
    assert b(())[0] == () and b((1,))[0] == () and make.made == [()]


def test_plans_give_what_they_give_alone():
    b = by_sizes(plans)
    for n in (3, 5, 3, 100, 5):
        x = torch.randn(n)
        (got,) = b((x,))
        assert torch.equal(got, 4 * x)


KEPT = 64


def test_those_used_last_are_kept():
    make = Maker()
    b = by_sizes(make)
    for n in range(1, KEPT + 1):
        b(of(n))
    b(of(1))
    b(of(KEPT + 1))  # in the place of 2
    assert list(b.instances) == [(n,) for n in (KEPT + 1, 1, *range(KEPT, 2, -1))]
    b(of(1))
    assert len(make.made) == KEPT + 1
    b(of(2))
    assert len(make.made) == KEPT + 2 and (3,) not in b.instances


def test_more_are_kept_while_their_plans_are_small():
    b, budget = with_plans()
    for n in range(1, 1001):
        b(of(n))
    plans_of = [b.instances[n,] for n in range(1, 1001)]
    bytes_of_one = budget.program_bytes // 1000
    assert 200 < bytes_of_one < 4000
    for n in range(1, 1001):
        b(of(n))
    assert [b.instances[n,] for n in range(1, 1001)] == plans_of


ONES = (1,) * (1 << 15)


def with_large_program(n):
    """A view of many dimensions, whose program takes about half a MiB; it cannot run."""
    return load(Plan(1, (), 2, (View(1, 0, (n, *ONES), (1, *ONES), 0),), (1,)))


def test_programs_take_bounded_memory():
    b, budget = with_plans(with_large_program)
    b.prepare((1,))
    one = budget.program_bytes
    assert 1 << 19 <= one < 1 << 20
    most = (64 << 20) // (one + (8 << 10))  # 8 KiB for what an instance has besides
    for n in range(2, most + 10):
        b.prepare((n,))
    assert budget.program_bytes == most * one
    assert list(b.instances) == [(n,) for n in range(most + 9, 9, -1)]
    del b
    gc.collect()
    assert budget.program_bytes == 0


def test_what_is_pushed_out_is_freed():
    refs = []

    def make(values):
        made = plans(values)
        refs.append(weakref.ref(made[0]))
        return made

    b = by_sizes(make)
    for n in range(1, KEPT + 3):
        b(of(n))
    assert [r() is None for r in refs] == [True] * 2 + [False] * KEPT


def test_bare_callables_are_not_kept():
    make = Maker(keep=False)
    b = by_sizes(make)
    b(of(3))
    b(of(3))
    assert make.made == [(3,), (3,)] and b.instances == {}


def test_an_instance_can_be_made_before_any_call():
    make = Maker()
    b = by_sizes(make)
    instance = b.prepare((5,))
    assert instance is b.prepare((5,)) is b.instances[5,]
    assert b(of(5))[0] == (5,) and make.made == [(5,)]


# ------------------------------------------------------------------------------------------------------------- errors


def test_what_make_raises_is_raised_and_nothing_is_kept():
    class Refused(Exception):
        pass

    asked = []

    def make(values):
        asked.append(values)
        if len(asked) == 1:
            raise Refused("not yet")
        return plans(values)

    b = by_sizes(make)
    with pytest.raises(Refused, match="not yet"):
        b(of(4))
    assert b.instances == {}
    assert torch.equal(b((torch.ones(4),))[0], torch.full((4,), 4.0))  # the lock was given back
    assert asked == [(4,), (4,)]
    in_threads([lambda: b(of(6))])


def test_what_an_instance_raises_is_raised_and_it_stays():
    def fail(inputs):
        raise ZeroDivisionError("oh")

    b = by_sizes(lambda values: (fail,))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="oh"):
            b(of(4))
    assert list(b.instances) == [(4,)]


@pytest.mark.parametrize("made", [None, 3, (), (None,), (len, [])])
def test_make_must_give_a_callable(made):
    b = by_sizes(lambda values: made)
    with pytest.raises(TypeError, match="make returned neither"):
        b(of(4))
    assert b.instances == {}


@pytest.mark.parametrize(
    "args, message",
    [
        ((), "one tuple"),
        (([torch.empty(2)],), "one tuple"),
        (((),), "input 0 must be a Tensor, got none"),
        (((3,),), "input 0 must be a Tensor, got int"),
        (((torch.empty(()),),), "input 0 has 0 dimensions"),
    ],
)
def test_arguments_are_checked(args, message):
    b = by_sizes(Maker())
    with pytest.raises(TypeError, match=message):
        b(*args)


def test_the_constructor_checks_sources():
    for wrong in ((0, -2), (0, -1, 1, 0), (0, 1, 1, -1), (0, 0, 0, None)):
        with pytest.raises(ValueError, match="counted from 0"):
            by_sizes(Maker(), wrong)
    with pytest.raises(TypeError, match="2 numbers"):
        by_sizes(Maker(), (0, 0), (0, 1)).prepare((1,))


# --------------------------------------------------------------------------------------------- memory between calls


def test_all_instances_hold_as_much_as_two_of_the_largest():
    def held():
        return [i.idle_bytes for i in b.instances.values()]

    b, _ = with_plans()
    for n in (1000, 1001, 1002, 1003):
        b(of(n))
    assert held() == [4 * 1003, 4 * 1002, 0, 0]
    b(of(1000))
    assert held() == [4000, 4 * 1003, 0, 0]
    for n in (1000, 1003, 1000):  # in turn: both keep theirs
        b(of(n))
    assert held() == [4000, 4 * 1003, 0, 0]
    b(of(100_000))
    for n in (1, 2, 3):
        b(of(n))
    assert held() == [12, 8, 4, 400_000, 4000, 4 * 1003, 0, 0]


def test_plans_that_run_later_count_too():
    """As those of backwards, which run in the opposite order, and without a search of the cache."""
    budget = _native.ArenaBudget(2)
    several = [doubled(n) for n in range(1000, 1100)]
    for plan in several:
        budget.add(plan)
    for plan in reversed(several):
        plan((torch.empty(plan.arena_bytes // 4),))
    assert [p.idle_bytes for p in several] == [4000, 4 * 1001] + [0] * 98
    for plan in several[:2] * 3:  # in turn: both keep theirs
        plan((torch.empty(plan.arena_bytes // 4),))
    assert [p.idle_bytes for p in several[:3]] == [4000, 4 * 1001, 0]
    assert several[0].release() == 4000
    several[2]((torch.empty(1002),))  # there is room again
    assert [p.idle_bytes for p in several[:3]] == [0, 4 * 1001, 4 * 1002]


def test_a_budget_outlives_its_plans():
    budget = _native.ArenaBudget(2)
    for n in range(1000, 1010):
        plan = doubled(n)
        budget.add(plan)
        assert budget.program_bytes > 0
        plan(of(n))
        del plan
        assert budget.program_bytes == 0
    child = _native.ArenaBudget(2, budget)
    child.add(plan := doubled(9))
    assert child.program_bytes == budget.program_bytes > 0
    del plan
    assert child.program_bytes == budget.program_bytes == 0
    for wrong in ((), (0,), (2, 3)):
        with pytest.raises(TypeError):
            _native.ArenaBudget(*wrong)
    with pytest.raises(TypeError, match="takes a Plan"):
        budget.add(len)
    with pytest.raises(TypeError, match="ArenaBudget or None"):
        by_sizes(Maker(), budget=3)


# ------------------------------------------------------------------------------------------- threads, re-entry, garbage


def test_threads_with_different_sizes():
    b, _ = with_plans()  # 100 sizes in turn free the arenas of others

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for k in range(300):
            x = torch.randn(1 + (seed * 7 + k) % 100, generator=generator)
            (got,) = b((x,))
            assert torch.equal(got, 4 * x)

    in_threads([lambda s=s: work(s) for s in range(6)])
    assert len(b.instances) == 100


def test_threads_that_miss_at_once_share_one_instance():
    make, begun = Maker(), threading.Barrier(4)

    def slow(values):
        time.sleep(0.05)
        return make(values)

    b = by_sizes(slow)

    def work():
        begun.wait()
        assert b(of(3))[0] == (3,)

    in_threads([work] * 4)
    assert make.made == [(3,)]


def test_who_waits_for_an_instance_gives_the_gil_away():
    making, go_on = threading.Event(), threading.Event()

    def make(values):
        making.set()
        assert go_on.wait(60)
        return Maker()(values)

    b = by_sizes(make)

    def third():  # runs while the first makes, and the second waits for it
        making.wait(60)
        time.sleep(0.05)
        go_on.set()

    in_threads([lambda: b(of(3)), lambda: making.wait(60) and b(of(4)), third])
    assert set(b.instances) == {(3,), (4,)}


def test_kept_sizes_run_while_another_is_made():
    making, go_on = threading.Event(), threading.Event()

    def make(values):
        if values == (4,):
            making.set()
            assert go_on.wait(60)
        return Maker()(values)

    b = by_sizes(make)
    b(of(3))

    def other():
        making.wait(60)
        assert b(of(3))[0] == (3,)
        go_on.set()

    in_threads([lambda: b(of(4)), other])


def test_make_may_call_it():
    def make(values):
        if values == (4,):
            assert b(of(3))[0] == (3,)
        return Maker()(values)

    b = by_sizes(make)
    assert b(of(4))[0] == (4,)
    assert set(b.instances) == {(3,), (4,)}


def test_make_may_call_it_for_the_same_sizes():
    depth = []

    def make(values):
        depth.append(values)
        if len(depth) == 1:
            b(of(4))
        return Maker()(values)

    b = by_sizes(make)
    assert b(of(4))[0] == (4,)
    assert len(depth) == 2 and list(b.instances) == [(4,)]


def test_an_instance_may_call_it_and_be_pushed_out():
    def make(values):
        (n,) = values

        def instance(inputs):
            return (b(of(n + 1))[0] if n < 100 else 0,)

        return (instance,)

    b = by_sizes(make)
    assert b(of(1)) == (0,)
    assert list(b.instances) == [(n,) for n in range(100, 100 - KEPT, -1)]


def test_a_cycle_is_collected():
    def make(values):
        return (lambda inputs: held and inputs,)

    b = by_sizes(make)
    held = [b]
    b(of(3))
    gone = weakref.ref(b)
    b = make = held = None
    gc.collect()
    assert gone() is None
