"""Kernels as text: what they compute, to be read."""

import torch
import torch.nn.functional as F

from smelt.loops.kernel_ir import Buffer, Kernel, Loop, MapStage, Store, Value
from smelt.loops.kernel_printer import print_kernel
from smelt.shapes.expr import Sym
from tests.harness.scheduled import kernels, scheduled

r = torch.randn


def printed(f, *inputs):
    return "\n\n".join(print_kernel(kernel) for kernel in kernels(scheduled(f, *inputs)[0]))


def test_stages_and_their_loops():
    assert (
        printed(lambda x: torch.softmax(x, -1), r(32, 64))
        == """\
softmax(in p0: float32, out p1: float32)
for o0 in 32:
  reduce i0 in 64:
    r0 = max(p0[i0 + 64*o0])
  reduce i0 in 64:
    r1 = sum(exp(p0[i0 + 64*o0] - r0))
  map i0 in 64:
    p1[i0 + 64*o0] = exp(p0[i0 + 64*o0] - r0) / r1"""
    )


def test_a_value_that_is_needed_twice_has_a_name():
    assert (
        printed(lambda x: F.layer_norm(x, (64,)), r(32, 64))
        == """\
native_layer_norm(in p0: float32, out p1: float32)
for o0 in 32:
  reduce i0 in 64:
    r0 = sum(p0[i0 + 64*o0] * 0.015625)
  reduce i0 in 64:
    v0 = p0[i0 + 64*o0] - r0
    r1 = sum(v0)
    r2 = sum(v0 * v0)
  map i0 in 64:
    p1[i0 + 64*o0] = (p0[i0 + 64*o0] - (r0 + r1 * 0.015625 if r1 == r1 else r0))\
 * rsqrt(maximum(r2 - r1 * r1 * 0.015625, 0.0) * 0.015625 + 1e-05)"""
    )


def test_scratch_of_one_outer_point():
    assert (
        printed(lambda x: torch.softmax(x, -1), r(1024, 1024))
        == """\
softmax(in p0: float32, local[1024] p1: float32, out p2: float32)
for o0 in 1024:
  reduce i0 in 1024:
    r0 = max(p0[i0 + 1024*o0])
  reduce i0 in 1024:
    v0 = exp(p0[i0 + 1024*o0] - r0)
    r1 = sum(v0)
    p1[i0] = v0
  map i0 in 1024:
    p2[i0 + 1024*o0] = p1[i0] / r1"""
    )


def test_a_scan():
    assert (
        printed(lambda x: torch.cumsum(x, -1), r(4, 5))
        == """\
cumsum(in p0: float32, out p1: float32)
for o0 in 4:
  scan i0 in 5:
    p1[i0 + 5*o0] = sum(p0[i0 + 5*o0])"""
    )


def test_stages_without_loops_and_what_is_overwritten():
    assert (
        printed(lambda x: x.add_(1).sum(), r(8, 8))
        == """\
add_sum(in p0: float32, out p1: float32)
reduce i0 in 64:
  r0 = sum(p0[i0] + 1.0)
p1[0] = r0

add_copy_(inout p0: float32)
for o0 in 64:
  p0[o0] = p0[o0] + 1.0"""
    )


def test_conversions_conditions_and_masks():
    assert (
        printed(lambda x: F.pad(x.half(), (1, 1)).argmax(-1), r(8, 8))
        == """\
to_copy_constant_pad_nd_argmax(in p0: float32, out p1: int64)
for o0 in 8:
  reduce i0 in 10:
    v0 = i0 >= 1 and i0 < 9
    r0 = argmax(float32(float16(p0[i0 + 8*o0 - 1] if v0 else 0) if v0 else 0.0))
  p1[o0] = r0"""
    )


def test_brackets_only_where_they_are_needed():
    f32 = torch.float32
    a, b, c = (Value("load", (i, 0, None), f32) for i in range(3))
    for value, text in (
        (a - (b - c), "p0[0] - (p1[0] - p2[0])"),
        ((a - b) - c, "p0[0] - p1[0] - p2[0]"),
        ((a + b) * c, "(p0[0] + p1[0]) * p2[0]"),
        (a + b * c, "p0[0] + p1[0] * p2[0]"),
        (-(a * b), "-(p0[0] * p1[0])"),
        (Value("maximum", (a + b, c), f32), "maximum(p0[0] + p1[0], p2[0])"),
        (Value("where", (Value("lt", (a, b), torch.bool), b, c), f32) * a, "(p1[0] if p0[0] < p1[0] else p2[0]) * p0[0]"),
    ):  # fmt: skip
        buffers = (*(Buffer(f"in{i}", f32, "in") for i in range(3)), Buffer("out", f32, "out"))
        kernel = Kernel("k", buffers, (), (MapStage((), (Store(3, 0, value),)),))
        assert print_kernel(kernel).splitlines()[1] == f"p3[0] = {text}"


def test_towers_of_shared_values_print_in_one_line_each():
    sym = Sym("o0", 0, 3)
    value = Value("load", (0, sym, None), torch.float32)
    for _ in range(40):
        value = value * value
    buffers = (Buffer("in", torch.float32, "in"), Buffer("out", torch.float32, "out"))
    kernel = Kernel("k", buffers, (Loop(sym, 4),), (MapStage((), (Store(1, sym, value),)),))
    assert len(print_kernel(kernel).splitlines()) == 2 + 40
