"""Calls that go from the guards to a plan, without a frame of Python and without tuples."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

from smelt import _native as native
from smelt.codegen.plan_loading import load
from smelt.plan.steps import Alloc, Aten, Launch, Plan, Reg
from tests.harness.kernels import hand_written
from tests.harness.threads import in_threads

F32, CPU = torch.float32, torch.device("cpu")


def alloc(out, n, arena=None):
    return Alloc(out, (n,), (1,), F32, CPU, arena)


def increments(count, n=8, arena=False):
    """Of `count` inputs the last one plus as many as there are launches: one, or two with a temporary in the arena."""
    if not arena:
        steps = (alloc(count, n), Launch("increment", (count - 1, count), n, 1024))
        return Plan(count, (), count + 1, steps, (count,))
    steps = (
        alloc(count, n, arena=0),
        Launch("increment", (count - 1, count), n, 1024),
        alloc(count + 1, n),
        Launch("increment", (count, count + 1), n, 1024),
    )
    return Plan(count, (), count + 2, steps, (count + 1,), arena_bytes=64)


def direct(plan, count):
    """A function of `count` arguments whose calls go to the plan, and the plan."""

    def by_python(*args):
        raise AssertionError("the compiled frame was called")

    names = ", ".join(f"x{i}" for i in range(count))
    scope = {}
    exec(f"def fn({names}): raise AssertionError('the function was called')", scope)
    nodes = tuple((-1, "arg", i, (), i) for i in range(count))
    made = load(replace(plan, kernels=hand_written()))
    compiled = native.wrap(scope["fn"])
    native.add_entry(compiled, native.GuardTree((nodes, count)), by_python, made)
    return compiled, made


@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 30])
def test_it_gives_the_one_output(count, arena):
    compiled, made = direct(increments(count, arena=arena), count)
    inputs = [torch.randn(8) for _ in range(count)]
    for _ in range(3):
        result = compiled(*inputs)
        assert torch.equal(result, made(tuple(inputs))[0]) and type(result) is torch.Tensor
        assert torch.equal(result, inputs[-1] + 1 + arena)


@pytest.mark.parametrize("output", [0, None])
def test_what_came_in_and_nothing_are_given_as_they_are(output):
    x = torch.nn.Parameter(torch.randn(3))
    compiled, _ = direct(Plan(1, (), 1, (), (output,)), 1)
    assert compiled(x) is (None if output is None else x)


def test_a_constant_that_is_returned():
    constant = torch.randn(3)
    compiled, _ = direct(Plan(1, (constant,), 2, (), (1,)), 1)
    assert compiled(torch.ones(1)) is constant and compiled(torch.ones(1)) is constant


@pytest.mark.parametrize("count", [1, 9])
def test_nothing_of_a_call_is_kept(count):
    compiled, _ = direct(increments(count), count)
    inputs = [torch.randn(8) for _ in range(count)]
    result = compiled(*inputs)
    seen = [weakref.ref(t) for t in [*inputs, result]]
    storages = [weakref.ref(t.untyped_storage()) for t in inputs]
    del inputs, result
    gc.collect()
    assert not any(ref() is not None for ref in [*seen, *storages])


def test_what_is_no_tensor_is_refused_and_the_next_call_is_right():
    compiled, _ = direct(increments(1), 1)
    with pytest.raises(TypeError, match="input 0 must be a Tensor, got str"):
        compiled("x")
    x = torch.randn(8)
    assert torch.equal(compiled(x), x + 1)


def test_a_number_of_inputs_that_the_plan_does_not_take():
    compiled, _ = direct(increments(2), 1)
    with pytest.raises(TypeError, match="2 inputs expected, got 1"):
        compiled(torch.ones(8))


def test_a_graph_of_two_results_is_refused():
    compiled, _ = direct(Plan(1, (), 1, (), (0, 0)), 1)
    with pytest.raises(SystemError, match="one result"):
        compiled(torch.ones(8))


def test_errors_of_operators_are_those_of_torch():
    steps = (Aten(torch.ops.aten.mm.default, (Reg(0), Reg(1)), {}, (2,)),)
    compiled, _ = direct(Plan(2, (), 3, steps, (2,)), 2)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        compiled(torch.ones(2, 3), torch.ones(2, 3))
    assert torch.equal(compiled(torch.ones(2, 3), torch.ones(3, 2)), torch.full((2, 2), 3.0))


@pytest.mark.parametrize("arena", [False, True])
def test_threads_have_frames_of_their_own(arena):
    compiled, _ = direct(replace(increments(1, arena=arena), release_gil=True), 1)

    def work(number):
        x = torch.full((8,), float(number))
        for _ in range(500):
            assert torch.equal(compiled(x), x + 1 + arena)

    in_threads([partial(work, number) for number in range(4)])
