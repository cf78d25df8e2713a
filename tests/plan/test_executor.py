"""The plan executor on hand-made plans. Kernels are C functions made by llvmlite from a few lines of LLVM IR."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import threading
import warnings
from dataclasses import replace

import pytest
import torch

from smelt.codegen.llvm.host_cpu import host, processor
from smelt.codegen.plan_loading import load
from smelt.errors import VerificationError
from smelt.graph.ir import TensorSpec
from smelt.plan.executable_plan import executable
from smelt.plan.machine_code import Function, Library
from smelt.plan.plan_printer import print_plan
from smelt.plan.steps import Alloc, Aten, BumpVersion, Free, Launch, Plan, Reg, View
from smelt.plan.verify_plan import verify
from tests.harness.kernels import hand_written
from tests.harness.threads import in_threads

aten = torch.ops.aten
CPU = torch.device("cpu")
F32 = torch.float32


def alloc(out, shape, arena=None, dtype=F32):
    return Alloc(out, tuple(shape), contiguous(shape), dtype, CPU, arena)


def contiguous(shape):
    stride, n = [], 1
    for size in reversed(shape):
        stride.append(n)
        n *= size
    return tuple(reversed(stride))


def spec(t):
    return TensorSpec(tuple(t.shape), tuple(t.stride()), t.dtype, t.device)


def native(plan):
    verify(plan)
    return load(replace(plan, kernels=hand_written()))


def increment_plan(n=8, **options):
    steps = (alloc(1, (n,)), Launch("increment", (0, 1), n, 1024))
    return Plan(1, (), 2, steps, (1,), **options)


def temp_plan(n, then=()):
    """out = mm(x + 1, x + 1) with the two temporaries in the arena."""
    steps = (
        alloc(1, (n, n), arena=0),
        Launch("increment", (0, 1), n * n, 1 << 14),
        alloc(2, (n, n), arena=4 * n * n),
        Aten(aten.mm.out, (Reg(1), Reg(1)), {"out": Reg(2)}, (None,)),
        Free((1,)),
        alloc(3, (n, n)),
        Launch("increment", (2, 3), n * n, 1 << 14),
        Free((2,)),
    )
    return Plan(1, (), 4, steps, (3,), arena_bytes=8 * n * n)


# ------------------------------------------------------------------------------------------------------------ basics


def test_a_kernel():
    x = torch.randn(8)
    (y,) = native(increment_plan())((x,))
    assert torch.equal(y, x + 1)


def test_large_extents_run_on_torchs_threads_and_follow_set_num_threads():
    n = 1 << 12
    steps = (alloc(0, (n,), dtype=torch.int64), Launch("thread", (0,), n, 16))
    plan = native(Plan(0, (), 1, steps, (0,)))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            torch.randn(1 << 20).add_(1)  # torch's own pool is up
            tasks = set(os.listdir("/proc/self/task"))
            (ids,) = plan(())
            assert len(set(ids.tolist())) == threads
            assert {str(i) for i in ids.tolist()} <= tasks  # no pool of its own
    finally:
        torch.set_num_threads(before)


def test_outputs_may_be_inputs_constants_none_and_repeated():
    x, c = torch.nn.Parameter(torch.randn(3)), torch.randn(2)
    plan = native(Plan(1, (c,), 2, (), (0, None, 1, 0)))
    a, none, b, d = plan((x,))
    assert a is x and d is x and b is c and none is None


def test_arguments_of_every_kind():
    x, y, i = torch.randn(2, 3), torch.randn(2, 3), torch.tensor([4, 0])
    steps = (
        Aten(aten.cat.default, ((Reg(0), Reg(1)), 1), {}, (3,)),
        Aten(aten._to_copy.default, (Reg(3),), {"dtype": torch.float64}, (4,)),
        Aten(aten.index.Tensor, (Reg(4), (None, Reg(2))), {}, (5,)),
        Aten(aten.split.Tensor, (Reg(5), 1, 1), {}, (6, 7), user_visible=True),
        Aten(aten.sum.dim_IntList, (Reg(5), [0, 1], True), {"dtype": torch.float32}, (8,)),
        Aten(aten.add.Tensor, (Reg(0), Reg(1)), {"alpha": 2.5}, (9,)),
        Aten(aten.max.dim, (Reg(0), 1), {}, (None, 10)),
        Aten(aten.full.default, ([2], float("inf")), {"device": CPU, "pin_memory": False}, (11,)),
    )
    out = native(Plan(3, (), 12, steps, (5, 6, 7, 8, 9, 10, 11)))((x, y, i))
    indexed = torch.cat([x, y], 1).double()[:, i]
    total = indexed.sum((0, 1), True, dtype=F32)
    expected = (
        indexed,
        *indexed.split(1, 1),
        total,
        torch.add(x, y, alpha=2.5),
        x.max(1)[1],
        torch.full([2], torch.inf),
    )
    for got, want in zip(out, expected):
        assert torch.equal(got, want) and got.dtype == want.dtype


def test_wrong_calls_raise():
    plan = native(increment_plan())
    for bad in ((), (torch.ones(8), torch.ones(8)), (1,)):
        with pytest.raises(TypeError, match="Plan:"):
            plan(bad)
    with pytest.raises(TypeError, match="one tuple"):
        plan([torch.ones(8)])


# ------------------------------------------------------------------------------------------------------------- arena


def test_temporaries_live_in_an_arena_that_is_kept_and_released():
    n = 64
    plan = native(temp_plan(n))
    x = torch.randn(n, n)
    assert plan.arena_bytes == 8 * n * n and plan.idle_bytes == 0
    results = [plan((x,))[0] for _ in range(3)]
    assert plan.idle_bytes == plan.arena_bytes
    expected = (x + 1) @ (x + 1) + 1
    assert all(torch.allclose(r, expected, atol=1e-4) for r in results)
    assert len({r.data_ptr() for r in results}) == 3
    assert plan.release() == plan.arena_bytes and plan.idle_bytes == 0
    assert torch.allclose(plan((x,))[0], expected, atol=1e-4)


def test_an_operator_that_returns_its_argument_does_not_leak_the_arena():
    """native_dropout and friends may return an argument itself on some paths; `detach`-like lies are caught too."""
    lib = torch.library.Library("smelt_test_alias", "FRAGMENT")
    lib.define("same(Tensor x) -> Tensor")
    lib.impl("same", lambda x: x, "CPU")
    steps = (
        alloc(1, (8,), arena=0),
        Launch("increment", (0, 1), 8, 64),
        Aten(torch.ops.smelt_test_alias.same.default, (Reg(1),), {}, (2,)),
    )
    plan = native(Plan(1, (), 3, steps, (2,), arena_bytes=64))
    (a,) = plan((torch.zeros(8),))
    plan((torch.ones(8),))
    assert torch.equal(a, torch.ones(8))


def test_an_arena_tensor_outlives_its_plan():
    kept = []
    lib = torch.library.Library("smelt_test_keep", "FRAGMENT")
    lib.define("keep(Tensor x) -> Tensor")
    lib.impl("keep", lambda x: (kept.append(x), x + 1)[1], "CPU")
    steps = (
        alloc(1, (1 << 20,), arena=0),
        Launch("increment", (0, 1), 1 << 20, 1 << 14),
        Aten(torch.ops.smelt_test_keep.keep.default, (Reg(1),), {}, (2,)),
    )
    plan = native(Plan(1, (), 3, steps, (2,), arena_bytes=4 << 20))
    plan((torch.zeros(1 << 20),))
    del plan
    gc.collect()
    assert kept[0].sum() == 1 << 20  # its memory is still mapped
    with pytest.raises(RuntimeError, match="resiz"):
        kept[0].resize_(1 << 21)


def test_results_in_another_layout_are_made_to_conform():
    x = torch.randn(2, 3, 4, 4)
    lib = torch.library.Library("smelt_test_layout", "FRAGMENT")
    lib.define("last(Tensor x) -> Tensor")
    lib.impl("last", lambda x: x.clone(memory_format=torch.channels_last), "CPU")

    def plan(expect):
        steps = (
            Aten(torch.ops.smelt_test_layout.last.default, (Reg(0),), {}, (1,), "", (expect,)),
            alloc(2, x.shape),
            Launch("increment", (1, 2), x.numel(), 64),
        )
        return native(Plan(1, (), 3, steps, (2,)))

    assert torch.equal(plan(spec(x))((x,))[0], x + 1)
    with pytest.raises(RuntimeError, match="smelt_test_layout::last returned .*captured"):
        plan(spec(x[:1]))((x,))


# ------------------------------------------------------------------------------------- views, versions, autograd modes


def test_views_that_the_user_sees_are_views_to_autograd():
    plan = native(Plan(1, (), 2, (View(1, 0, (2,), (1,), 2, user_visible=True),), (1,)))
    base = torch.arange(6.0)
    x = base[1:]
    (v,) = plan((x,))
    assert torch.equal(v, x[2:4]) and v._base is base and v.data_ptr() == x[2:4].data_ptr()
    version = base._version
    v.add_(1)
    assert base._version == version + 1 == x._version


def test_raw_views_chain_and_reach_kernels():
    x = torch.arange(24.0)
    steps = (
        View(1, 0, (2, 8), (8, 1), 4),
        View(2, 1, (8,), (1,), 8),
        alloc(3, (8,)),
        Launch("increment", (2, 3), 8, 64),
        alloc(4, (16,), arena=0),
        View(5, 4, (8,), (1,), 8),
        Launch("increment", (3, 5), 8, 64),
        Aten(aten.neg.default, (Reg(5),), {}, (6,)),
    )
    three, negated = native(Plan(1, (), 7, steps, (3, 6), arena_bytes=64))((x,))
    assert torch.equal(three, x[12:20] + 1) and torch.equal(negated, -(x[12:20] + 2))


def test_kernels_and_copies_that_write_inputs_bump_versions():
    steps = (
        BumpVersion((0,)),
        Launch("increment", (0, 0), 8, 64),
        Aten(aten.copy_.default, (Reg(1), Reg(0)), {}, (None,), user_visible=True),
    )
    plan = native(Plan(2, (), 2, steps, ()))
    x, y = torch.zeros(8), torch.zeros(8)
    plan((x, y))
    assert x._version == y._version == 1 and torch.equal(x, torch.ones(8)) and torch.equal(y, x)
    with torch.inference_mode():
        i = torch.zeros(8)
        plan((i, i))
    with pytest.raises(RuntimeError, match="inference tensor"):
        plan((i, y))


@pytest.mark.parametrize("first", [True, False])
def test_outputs_are_inference_tensors_exactly_in_inference_mode(first):
    plan = native(temp_plan(8))
    external = native(Plan(1, (), 2, (Aten(aten.neg.default, (Reg(0),), {}, (1,)),), (1,)))
    x = torch.randn(8, 8)
    for mode in (first, not first, first):
        with torch.inference_mode(mode):
            assert plan((x,))[0].is_inference() == external((x,))[0].is_inference() == mode
    y = plan((x,))[0].requires_grad_()
    (y * 2).sum().backward()
    assert torch.equal(y.grad, torch.full((8, 8), 2.0))


def test_autocast_applies_once_when_traced():
    plan = native(Plan(1, (), 2, (Aten(aten.mm.default, (Reg(0), Reg(0)), {}, (1,)),), (1,)))
    x = torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        (y,) = plan((x,))
        assert y.dtype == F32
        assert (x @ x).dtype == torch.bfloat16  # the caller's own mode is as it was


# ------------------------------------------------------------------------------------------------------------ errors


def test_errors_are_those_of_eager_and_leave_the_plan_usable():
    table, index = torch.randn(4, 3), torch.tensor([1, 9])
    steps = (Aten(aten.embedding.default, (Reg(0), Reg(1)), {}, (2,)),)
    plan = native(Plan(2, (), 3, steps, (2,)))
    with pytest.raises(IndexError) as eager:
        torch.nn.functional.embedding(index, table)
    with pytest.raises(IndexError) as ours:
        plan((table, index))
    assert str(ours.value) == str(eager.value)
    assert torch.equal(plan((table, index.clamp(max=3)))[0], table[[1, 3]])


def test_warnings_and_python_errors_of_operators_pass_through():
    lib = torch.library.Library("smelt_test_errors", "FRAGMENT")
    lib.define("complain(Tensor x) -> Tensor")

    def complain(x):
        warnings.warn("look out", UserWarning, stacklevel=1)
        raise KeyError("mine")

    lib.impl("complain", complain, "CPU")
    plan = native(
        Plan(1, (), 2, (Aten(torch.ops.smelt_test_errors.complain.default, (Reg(0),), {}, (1,)),), (1,))
    )
    with pytest.warns(UserWarning, match="look out"), pytest.raises(KeyError, match="mine"):
        plan((torch.ones(2),))


# ----------------------------------------------------------------------------------------------------------- threads


def test_a_plan_may_be_entered_again_by_an_operator_it_calls():
    lib = torch.library.Library("smelt_test_again", "FRAGMENT")
    lib.define("again(Tensor x, int depth) -> Tensor")
    depth = 3

    def again(x, _):
        nonlocal depth
        depth -= 1
        return plan((x,))[0] if depth else x * 10

    lib.impl("again", again, "CPU")
    steps = (
        alloc(1, (8,), arena=0),
        Launch("increment", (0, 1), 8, 64),
        Aten(torch.ops.smelt_test_again.again.default, (Reg(1), 0), {}, (2,), user_visible=True),
        Aten(aten.add.Tensor, (Reg(2), Reg(1)), {}, (3,)),
    )
    plan = native(Plan(1, (), 4, steps, (3,), arena_bytes=64))
    # x = 0: the levels see 1, 2, 3; the innermost gives 30.
    assert torch.equal(plan((torch.zeros(8),))[0], torch.full((8,), 36.0))


def test_two_plans_from_several_threads():
    plans = [native(temp_plan(n)) for n in (32, 48)]
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for i in range(60):
            n, plan = ((32, plans[0]), (48, plans[1]))[i % 2]
            x = torch.randn(n, n, generator=generator)
            if not torch.allclose(plan((x,))[0], (x + 1) @ (x + 1) + 1, atol=1e-3):
                failures.append(seed)

    in_threads(functools.partial(work, s) for s in range(6))
    assert not failures
    assert all(p.idle_bytes == p.arena_bytes for p in plans)  # one arena each is kept, however many were used


def test_the_gil_is_free_while_a_plan_runs():
    entered, leave = threading.Event(), threading.Event()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

    @callback  # takes the GIL itself: would deadlock if the plan held it
    def wait(_, begin, end):
        entered.set()
        assert leave.wait(20)

    address = ctypes.cast(wait, ctypes.c_void_p).value
    held = {"wait": Function(Library(processor(host()), (), ("wait",)), "wait")}
    plan = Plan(0, (), 0, (Launch("wait", (), 1, 1),), (), kernels=held)
    plan = executable(plan, lambda function: address)
    thread = threading.Thread(target=plan, args=((),))
    thread.start()
    assert entered.wait(20)
    leave.set()
    thread.join(20)
    assert not thread.is_alive()


# ------------------------------------------------------------------------------------------------- verifier, printer


def test_verify_names_the_broken_step():
    def check(steps, outputs, message, arena=0, n=4):
        with pytest.raises(VerificationError, match=message):
            verify(Plan(1, (), n, tuple(steps), outputs, arena_bytes=arena))

    launch = Launch("k", (0, 1), 8, 8)
    check([launch], (), "r1 is not defined here")
    check([alloc(1, (8,)), Free((1,)), launch], (), "r1 is freed here")
    check([alloc(1, (8,)), alloc(1, (8,))], (), "r1 is defined twice")
    check([alloc(1, (8,), arena=0)], (1,), "output r1 is in the arena", arena=64)
    check([alloc(1, (8,), arena=4)], (), "does not fit", arena=64)
    check([alloc(1, (8,), arena=0), View(2, 1, (8,), (1,), 0, True)], (), "user sees", arena=64)
    check([alloc(1, (8,), arena=0), alloc(2, (8,), arena=0), launch], (), "overlap", arena=64)
    check([], (3,), "not live at the end")


def test_print():
    plan = temp_plan(4)
    assert print_plan(plan) == "\n".join(
        [
            "plan(inputs r0..r0), arena 128 bytes",
            "  r1 = alloc float32[4, 4] stride [4, 1] arena[0]",
            "  launch increment(r0, r1) over 16 by 16384",
            "  r2 = alloc float32[4, 4] stride [4, 1] arena[64]",
            "  _ = aten.mm.out(r1, r1, out=r2)",
            "  free r1",
            "  r3 = alloc float32[4, 4] stride [4, 1] own memory",
            "  launch increment(r2, r3) over 16 by 16384",
            "  free r2",
            "  return r3",
        ]
    )
