"""Kernels with symbols for sizes, printed as Triton: run by its interpreter at many sizes, beside eager."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "Triton compiles for the GPU here (tests/gpu); needs TRITON_INTERPRET=1", allow_module_level=True
    )

from smelt.codegen.triton.compile import General, Request
from smelt.codegen.triton.symbolic_kernels import numbered, takes_sizes, variant
from smelt.loops.kernel_ir import Kernel, Loop, MapStage, ReduceStage, Reduction, Store
from smelt.loops.kernel_sizes import at_sizes
from smelt.loops.verify_kernel import verify
from smelt.shapes.expr import loop_sym
from tests.harness import interpreted
from tests.harness.kernel_interpreter import run as interpret
from tests.harness.kernels import buffers, load, result
from tests.harness.sized_kernels import COSTS, FEW_PROCESSORS, Once
from tests.harness.sized_programs import BACKWARD, ELEMENTWISE, REDUCED, ROWS, SCANS
from tests.harness.symbolic import S0, S1
from tests.harness.symbolic_kernels import same
from tests.harness.traced import flatten
from tests.harness.triton_launcher import launch_sized

interpreted.by_halves()
f32, bf16 = torch.float32, torch.bfloat16
NUMBERS = (
    (2, 3),
    (17, 2),
    (3, 64),
    (32, 17),
    (64, 48),
)  # of S0, S1: primes, multiples of 16 alone and together
LONG = ((2, 1000), (1000, 3), (1, 4500))


def check(f, *shapes, sets=NUMBERS, rtol=1e-4, atol=1e-3, dtype=f32):
    """What was printed gives what eager gives, at each of these sizes; returns it."""
    once = Once(f, *shapes, dtype=dtype, costs=FEW_PROCESSORS)
    for a, b in sets:
        sizes = {S0: a, S1: b}
        inputs = once.inputs(sizes)
        with torch.no_grad():
            same(once(sizes, inputs), flatten(f(*inputs)), sizes, rtol=rtol, atol=atol)
    return once


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    once = check(*ELEMENTWISE[name])
    assert len(once.texts) <= 2  # where sizes are multiples of 16, and elsewhere
    assert not once.fixed or not once.texts  # over one loop: no size is known anyway


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_a_fixed_size_are_one_text(name):
    once = check(*ROWS[name], sets=NUMBERS[:3])
    assert len(once.texts) == len(once.kernels) and not once.fixed


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_over_sizes(name):
    once = check(*REDUCED[name], sets=NUMBERS[:1] + NUMBERS[3:])
    assert not once.fixed


@pytest.mark.parametrize("name", ["softmax", "columns", "rows", "largest", "stored and summed"])
def test_long_rows(name):
    check(*REDUCED[name], sets=LONG[:2])


def test_rows_that_registers_do_not_hold():
    """Parts of rows, each of several blocks, of which the last ends anywhere."""
    for f in (lambda x: x.softmax(-1), lambda x: (x.sigmoid().sum(-1), x.amax(-1))):
        once = check(f, (S0, S1), sets=((2, 20_011), (2, 70_001), (2, 16_400)))
        assert len(once.texts) <= 2 * len(once.kernels)


def test_sums_over_many_rows_are_cut_into_parts():
    """As many as likely sizes want, some of which are empty here."""
    once = check(lambda x: x.sum((0, 1)), (S0, S1, 8), sets=((2, 3), (17, 5), (64, 48)))
    assert len(once.kernels) == 2


@pytest.mark.parametrize("name", SCANS)
def test_scans(name):
    check(*SCANS[name], rtol=1e-3)


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name):
    _, f, *shapes = BACKWARD[name]
    once = check(f, *shapes, sets=NUMBERS[1:3])
    assert len(once.kernels) == len(
        Once(f, *shapes, costs=COSTS).kernels
    )  # sums are cut for few processors, too


@pytest.mark.parametrize("case", [ELEMENTWISE["a row for all"], ROWS["softmax"], REDUCED["softmax"]])
def test_half_precision(case):
    check(*case, dtype=bf16, rtol=0.02, atol=0.02)


# ---- one kernel


def kernel_of(f, *shapes):
    (kernel,) = Once(f, *shapes).kernels
    assert takes_sizes(kernel)
    return kernel


def general(kernel, s0, s1):
    made = numbered(kernel)
    return General(made, tuple({S0: s0, S1: s1}[s] for s in kernel.sizes))


def printed(kernel, s0, s1):
    return Request(numbered(kernel), general=general(kernel, s0, s1)).printed()


def layer_norm(x, w, b):
    return torch.layer_norm(x, (768,), w, b)


def test_the_number_of_rows_changes_nothing():
    kernel = kernel_of(layer_norm, (S0, S1, 768), (768,), (768,))
    assert len({printed(kernel, a, b).text for a, b in ((2, 3), (16, 512), (512, 1024))}) == 1


def test_a_row_of_a_fixed_size_is_computed_as_in_the_kernel_of_fixed_sizes():
    kernel = kernel_of(layer_norm, (S0, S1, 768), (768,), (768,))
    fixed = Request(at_sizes(kernel, {S0: 16, S1: 512})).printed()
    sized = printed(kernel, 16, 512)
    ours = [line for line in sized.text.splitlines() if "n0" not in line and "n1" not in line]
    theirs = [line for line in fixed.text.splitlines() if "def kernel" not in line]
    assert ours == theirs
    assert (sized.points, sized.block, sized.warps) == (fixed.points, fixed.block, fixed.warps)


def softmax(x):
    return x.softmax(-1)


def test_lengths_of_rows_are_of_few_classes():
    kernel = kernel_of(softmax, (S0, S1))
    lengths = (2, 3, 63, 65, 255, 257, 1023, 1025, 4000, 60_001, 100_001)
    texts = {n: repr(printed(kernel, 8, n)).replace(f"points={n}", "") for n in lengths}
    assert texts[2] == texts[3] == texts[63] != texts[65] == texts[255] != texts[257] == texts[1023]
    assert texts[60_001] == texts[100_001]
    assert len(set(texts.values())) <= 6


def test_sizes_that_are_multiples_of_16_are_said_to_be():
    kernel = kernel_of(softmax, (S0, S1))
    length = f"n{kernel.sizes.index(S1)}"
    for sizes, aligned in (((5, 64), True), ((16, 40), False)):
        assert (length in printed(kernel, *sizes).aligned) == aligned


def transposed(x):
    return x.t().contiguous() * 2


def test_indices_beyond_32_bits_are_another_variant():
    kernel = kernel_of(transposed, (S0, S1))
    few, many = (
        variant(g.kernel, g.sizes) for g in (general(kernel, n, 1 << 15) for n in (1 << 15, 1 << 16))
    )
    assert not few.wide and many.wide and replace(many, wide=False) == few
    assert "int64" in printed(kernel, 1 << 16, 1 << 15).text
    assert "tl.int32" in printed(kernel, 1 << 15, 1 << 15).text


@pytest.mark.parametrize("name", ["transposed", "rolled", "by heads"])
def test_the_variant_for_large_indices_is_right(name):
    """Whatever the sizes are: they are small here."""
    f, *shapes = ELEMENTWISE[name]
    once = Once(f, *shapes)
    sizes = {S0: 5, S1: 7}
    (x,) = once.inputs(sizes)
    (kernel,) = once.kernels
    numbers = [sizes[s] for s in kernel.sizes]
    out = torch.empty_like(f(x))
    launch_sized(kernel, numbers, x, out, chosen=replace(variant(numbered(kernel), numbers), wide=True))
    torch.testing.assert_close(out, f(x))


EXPRESSIONS = [S0 - 1, 3 * S0 + 2, (S0 + 1) // 2, 16 * S0, 64 * S0 - 16]


@pytest.mark.parametrize("size", EXPRESSIONS, ids=str)
def test_expressions_as_sizes(size):
    sym = loop_sym("i0", size)
    row = Loop(sym, size)
    stages = (
        ReduceStage((row,), (Reduction("s", "sum", load(0, sym)),)),
        MapStage((row,), (Store(1, sym, load(0, sym) * result("s")),)),
    )
    kernel = Kernel("row", buffers((f32, "in"), (f32, "out")), (), stages, sizes=(S0,))
    verify(kernel)
    for n in (2, 3, 17, 64):
        x = torch.randn(64 * n + 80)
        got, want = torch.zeros(64 * n + 80), torch.zeros(64 * n + 80)
        launch_sized(kernel, (n,), x, got)
        interpret(kernel, [x, want], {S0: n})
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_what_registers_do_not_hold_is_printed_for_numbers():
    """A row that is kept between its stages: it may be longer than a block."""
    sym = loop_sym("i0", S0)
    row = Loop(sym, S0)
    local = replace(buffers((f32, "local"))[0], size=S0)
    stages = (
        MapStage((row,), (Store(1, sym, load(0, sym) * 2.0),)),
        MapStage((row,), (Store(2, sym, load(1, sym) + 1.0),)),
    )
    (first, last) = buffers((f32, "in"), (f32, "out"))
    kernel = Kernel("kept", (first, local, last), (), stages, sizes=(S0,))
    verify(kernel)
    made = numbered(kernel)
    assert Request(made, general=General(made, (100,))).printed().sizes == made.sizes
    with pytest.raises(NotImplementedError):  # neither with symbols nor with numbers
        Request(made, general=General(made, (100_000,))).printed()
