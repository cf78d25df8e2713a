"""Operators that are lowered once for sizes that are symbols: with numbers in their place, programs give what eager gives,
and to the last bit what they give that were lowered at these numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from smelt.errors import NeedsFixedSize
from smelt.loops.lazy_tensor import Extern
from smelt.ops.lowering import lower
from smelt.schedule.schedule_printer import print_schedule
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.shapes.expr import Size, evaluate
from tests.harness.lowered_at import CompiledOnce, program_at
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import costs, kernels
from tests.harness.symbolic import S0, S1, symbol_of, with_sizes
from tests.harness.traced import flatten, traced

aten = torch.ops.aten
F = torch.nn.functional
PRIMES = {S0: 101, S1: 211}
AT = ({S0: 2, S1: 3}, {S0: 7, S1: 2}, {S0: 5, S1: 16}, {S0: 17, S1: 5})


@dataclass
class Row:
    """`f` of tensors of these shapes. `derived`: sizes that it makes of the symbols. `same`: kernels are those of fixed
    sizes. `calls`: how many operators stay calls. `fixed`: it needs fixed sizes."""

    name: str
    f: Callable[..., Any]
    shapes: tuple[tuple[Size, ...], ...]
    derived: tuple[Size, ...] = ()
    same: bool = False
    calls: int = 0
    fixed: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    inputs: Callable[[dict[Any, int]], list[torch.Tensor]] | None = None
    at: tuple[dict[Any, int], ...] = field(default=AT)

    def tensors(self, values: dict[Any, int]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        if self.inputs is not None:
            return self.inputs(values)
        dtypes = [*self.dtypes, *[self.dtypes[-1]] * len(self.shapes)]
        made = [torch.randn([evaluate(n, values) for n in shape]) for shape in self.shapes]
        return [
            t.to(dtype) if dtype.is_floating_point else (t * 3).to(dtype) for t, dtype in zip(made, dtypes)
        ]


def view(name, f, *shapes, **facts):
    """A row whose kernels are those of fixed sizes."""
    return Row(name, f, shapes, same=True, **facts)


def op(name, f, *shapes, **facts):
    return Row(name, f, shapes, **facts)


def fixed(name, f, *shapes, **facts):
    return Row(name, f, shapes, fixed=True, **facts)


def rows_of_classes(values):
    """Logarithms of probabilities, and classes."""
    n = values[S0]
    return [torch.randn(n, 10).log_softmax(-1), torch.randint(0, 10, (n,))]


def indices(values):
    return [torch.randint(0, 50, (values[S0], values[S1])), torch.randn(50, 8)]


def heads(x):
    """(s0, s1, 12 * 4) -> (s0, 12, s1, 4), and back."""
    n, t, _ = x.shape
    y = x.view(n, t, 12, 4).transpose(1, 2) * 2
    return y.transpose(1, 2).contiguous().view(n * t, 48)


def written_rows(x, y):
    x[:, 1:] = y * 2
    return x


def written_row(x, y):
    x[:, -1] = y * 2
    return x


VIEWS = [
    view("rows merged", lambda x: x.view(-1, 768) + 1, (S0, S1, 768)),
    view("rows split", lambda x, y: x.view(y.shape[0], y.shape[1], 48) * y, (S0 * S1, 48), (S0, S1, 48)),
    view("there and back", lambda x: x.view(-1, 48).relu().view(x.shape) * 2, (S0, S1, 48)),
    view("heads", heads, (S0, S1, 48)),
    view("heads of merged rows", lambda x, y: x.view(*y.shape[:2], 12, 4).transpose(1, 2) + 1, (S0 * S1, 48), (S0, S1)),
    view("last split", lambda x: x.view(x.shape[0], 4, -1) + 1, (S0, 4 * S1), derived=(4 * S1,)),
    view("first split", lambda x: x.view(4, x.shape[0] // 4, -1) + 1, (4 * S0, S1), derived=(4 * S0,)),
    view("ones between", lambda x: x.view(x.shape[0], 1, x.shape[1], 1, 6) * 2, (S0, S1, 6)),
    view("all flat", lambda x: x.reshape(-1).exp(), (S0, S1, 6)),
    view("symbol last", lambda x: x.view(6, -1).neg(), (2, 3, S1)),
    view("both last", lambda x: x.view(3, 4, x.shape[1], x.shape[2]).sin(), (12, S0, S1)),
    view("permuted", lambda x: x.permute(2, 0, 1).contiguous() + 1, (S0, S1, 6)),
    view("transposed and merged", lambda x: x.transpose(0, 1).reshape(-1, 6) + 1, (S0, S1, 6)),
    view("t", lambda x: x.t() + 1, (S0, S1)),
    view("expand", lambda x, y: x[:, None].expand(-1, y.shape[0], -1) + 1, (S0, 6), (S1, 2)),
    view("select", lambda x: x[:, 0] + x[:, -1] + x[:, 1], (S0, S1, 6)),
    view("unsqueeze, squeeze", lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(-1) + 1, (S0, S1)),
    view("squeeze all", lambda x: x.squeeze() + 1, (S0, 1, S1, 1)),
    view("slice from 0", lambda x: x[:, :3] + x[:, 0:3], (S0, 6, S1)),
    view("slice of all", lambda x: x[:, :] + x[0:, 0:], (S0, S1)),
    view("slice from 1", lambda x: x[:, 1:] * 2, (S0, S1), derived=(S1 - 1,)),
    view("slice to -1", lambda x: x[:, :-1] * 2, (S0, S1), derived=(S1 - 1,)),
    view("slice from -1", lambda x: x[-1:] * 2, (S0, S1)),
    view("every second", lambda x: x[:, ::2] * 2, (S0, S1), derived=((S1 + 1) // 2,)),
    view("slice by a size", lambda x, y: x[:, : y.shape[0]] + 1, (S0, S0 + S1), (S0,), derived=(S0 + S1,)),
    view("from a size", lambda x, y: x[:, y.shape[0] :] + 1, (S0, S0 + S1), (S0,), derived=(S0 + S1,)),
    view("split of a fixed dimension", lambda x: x.split(4, 1)[1] + x.chunk(3, 1)[0], (S0, 12, S1)),
    view("halves", lambda x: torch.mul(*x.chunk(2, -1)), (S0, 2 * S1), derived=(2 * S1,)),
    view("split by sizes", lambda x: torch.cat(x.split([4, 8], 1)[::-1], 1), (S0, 12, S1)),
    view("unbind of a fixed dimension", lambda x: x.unbind(1)[2] + 1, (S0, 3, S1)),
    view("diagonal", lambda x: x.diagonal(0, 1, 2) + 1, (S1, S0, S0)),
    view("diagonal beside", lambda x: x.diagonal(1, 1, 2) + 1, (S1, S0, S0), derived=(S0 - 1,)),
    view("windows", lambda x: x.unfold(1, 2, 1) + 1, (S0, S1), derived=(S1 - 1,)),
    view("fixed windows", lambda x: x.unfold(1, 3, 2) + 1, (S0, 9)),
]  # fmt: skip

ELEMENTS = [
    view("add", lambda x, y: x + y, (S0, S1), (S0, S1)),
    view("broadcast row", lambda x, y: x * y + 1, (S0, S1, 6), (6,)),
    view("broadcast column", lambda x, y: (x - y).relu(), (S0, S1), (S0, 1)),
    view("broadcast both", lambda x, y: x / y, (S0, 1), (1, S1)),
    view("gelu", lambda x: F.gelu(x), (S0, S1)),
    view("where", lambda x, y: torch.where(x > 0, x, y), (S0, 6), (6,)),
    op("times a size", lambda x: x * x.shape[0] + x.shape[1], (S0, S1)),
    op("over a root of a size", lambda x: x / x.shape[-1], (S0, S1)),
    op("power of a size", lambda x: (x.abs() + 1) ** (-x.shape[0]), (S0, 6), calls=1),
    op("compared to a size", lambda x: x.long() < x.shape[0], (S0, 6)),
    op("half times a size", lambda x: x * x.shape[0], (S0, 6), dtypes=(torch.bfloat16,)),
    op("remainder by a size", lambda x: x % x.shape[0], (S0, 6), dtypes=(torch.int64,), calls=1),
    op("int8 plus a size", lambda x: x + x.shape[0], (S0, 6), dtypes=(torch.int8,), calls=1),
    op("clamped to a size", lambda x: x.clamp(max=x.shape[0]), (S0, 6)),
    op("filled with a size", lambda x: x.masked_fill(x > 0, x.shape[0]), (S0, 6)),
    op("chosen from a size", lambda x: torch.where(x > 0, x, x.shape[0]), (S0, 6)),
    op("a size as alpha", lambda x: torch.add(x, x, alpha=x.shape[0]), (S0, 6)),
    op("floored by a size", lambda x: x // x.shape[0], (S0, 6)),
    op("subtracted from a size", lambda x: x.shape[0] - x, (S0, 6)),
    op("a size alone", lambda x: torch.scalar_tensor(x.shape[0]) * 2, (S0, 6)),
    op("int32 full of a size", lambda x: torch.full((2,), x.shape[0], dtype=torch.int32), (S0, S1), calls=1),
    view("written", lambda x, y: x.mul_(2) + y, (S0, S1), (S0, S1)),
    op("full of a size", lambda x: torch.full((2, x.shape[1]), x.shape[0]) + 1, (S0, S1)),
    op("half full of a size", lambda x: torch.full((2, x.shape[1]), x.shape[0], dtype=torch.float16), (S0, S1), calls=1),
    view("zeros", lambda x: x.new_zeros(x.shape[1], x.shape[0]) + x.t(), (S0, S1)),
    view("arange", lambda x: torch.arange(x.shape[1]) + x, (S0, S1)),
    op("arange between sizes", lambda x, y: torch.arange(x.shape[0], y.shape[0]), (S0,), (S0 + S1,), derived=(S0 + S1,)),
    op("floats between sizes", lambda x, y: torch.arange(x.shape[0], y.shape[0], dtype=torch.float32), (S0,), (S0 + S1,),
       derived=(S0 + S1,)),
    view("causal mask", lambda x: torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1), (S0, 6)),
    view("tril", lambda x: x.tril(), (S1, S0, S0)),
    view("eye", lambda x: torch.eye(x.shape[0]) + 1, (S0,)),
    view("rope", lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1) * x, (S0, S1, 8)),
]  # fmt: skip

MOVES = [
    op("cat of symbols", lambda x, y: torch.cat([x, y], 1) * 2, (S0, S1, 6), (S0, S0, 6), derived=(S0 + S1,)),
    op("cat of a row", lambda x, y: torch.cat([x, y], 1), (6, S0, 4), (6, 1, 4), derived=(S0 + 1,)),
    op("cat of a row in front", lambda x, y: torch.cat([y, x], 1), (S1, S0), (S1, 1), derived=(S0 + 1,)),
    op("cat of three", lambda x, y: torch.cat([x, y, x]), (S0, 4), (S1, 4), derived=(2 * S0 + S1,)),
    view("cat of other dimensions", lambda x, y: torch.cat([x, y], 1), (S0, 3, S1), (S0, 5, S1)),
    view("stack", lambda x, y: torch.stack([x, y], 1), (S0, S1), (S0, S1)),
    op("pad", lambda x: F.pad(x, (1, 2)), (S0, S1), derived=(S1 + 3,)),
    op("crop and pad", lambda x: F.pad(x, (-1, 2, 1, 0)), (S0, S1), derived=(S1 + 1, S0 + 1)),
    op("pad to a size", lambda x, y: F.pad(x, (0, y.shape[0])), (S0, S1), (S0,), derived=(S0 + S1,)),
    view("flip", lambda x: x.flip(0, 1), (S0, S1)),
    op("rot90", lambda x: x.rot90(1, (0, 1)), (S0, S1)),
    op("roll", lambda x: x.roll(1, 0), (S0, S1)),
    op("roll of all", lambda x: x.roll(3), (S0, S1)),
    op("repeat", lambda x: x.repeat(2, 3), (S0, S1), derived=(2 * S0, 3 * S1)),
    op("repeat by a size", lambda x, y: x.repeat(1, y.shape[0]), (S0, 4), (S1,), derived=(4 * S1,)),
    op("slice_scatter", lambda x, y: aten.slice_scatter(x, y, 1, 0, 3), (S0, S1 + 3), (S0, 3), derived=(S1 + 3,)),
    op("slice_scatter from 1", lambda x, y: aten.slice_scatter(x, y, 0, 1), (S0, 4), (S0 - 1, 4), derived=(S0 - 1,)),
    op("slice_backward", lambda g, x: aten.slice_backward(g, x.shape, 1, 1, 1 << 62, 1), (S0, S1 - 1), (S0, S1),
       derived=(S1 - 1,)),
    op("written rows", written_rows, (S0, S1), (S0, S1 - 1), derived=(S1 - 1,)),
    op("a written row", written_row, (S0, S1, 6), (S0, 6)),
    op("select_backward", lambda g, x: aten.select_backward(g, x.shape, 1, -1), (S0, 6), (S0, S1, 6)),
    op("select_scatter", lambda x, y: aten.select_scatter(x, y, 1, 1), (S0, S1), (S0,)),
    op("diagonal_backward", lambda g, x: aten.diagonal_backward(g, x.shape, 0, 0, 1), (S0,), (S0, S0)),
    op("unfold_backward", lambda g, x: aten.unfold_backward(g, x.shape, 1, 2, 1), (S0, S1 - 1, 2), (S0, S1),
       derived=(S1 - 1,)),
    view("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (S0, 8, 3, S1), derived=(2 * S1,)),
    view("channel_shuffle", lambda x: F.channel_shuffle(x, 2), (S0, 4, 3, S1)),
]  # fmt: skip

REDUCTIONS = [
    view("sum", lambda x: x.sum(), (S0, S1)),
    view("sum of rows", lambda x: x.sum(1), (S0, S1)),
    view("sum of columns", lambda x: x.sum(0, keepdim=True), (S0, S1)),
    op("mean", lambda x: x.mean(), (S0, S1)),
    op("mean of rows", lambda x: x.mean(1), (S0, S1)),
    op("mean of halves", lambda x: x.mean(1), (S0, S1), dtypes=(torch.bfloat16,)),
    op("mean of a part", lambda x: x[1:].mean(0), (S0, S1), derived=(S0 - 1,)),
    view("mean of fixed rows", lambda x: x.mean(-1), (S0, S1, 6)),
    view("amax", lambda x: x.amax(1), (S0, S1)),
    view("max and place", lambda x: x.max(1), (S0, S1)),
    view("argmax", lambda x: x.argmax(), (S0, S1)),
    view("any, all", lambda x: ((x > 1).any(0), (x > -3).all()), (S0, S1)),
    view("prod", lambda x: x.prod(1), (S0, S1)),
    view("norm", lambda x: torch.linalg.vector_norm(x, 2, 1), (S0, S1)),
    op("dist", lambda x, y: torch.dist(x, y), (S0, S1), (S1,)),
    view("trace", lambda x: x.trace(), (S0, S0)),
    view("logsumexp", lambda x: x.logsumexp(0), (S0, S1)),
    op("var", lambda x: x.var(1), (S0, S1)),
    op("var of a part", lambda x: x[1:].var(0), (S0, S1), derived=(S0 - 1,)),
    op("std, by the count", lambda x: x.std(0, correction=0), (S0, S1)),
    op("var_mean", lambda x: torch.var_mean(x, 0), (S0, S1)),
    op("part of a correction", lambda x: x.var(0, correction=0.5), (S0, S1)),
    op("more than there is", lambda x: x.var(0, correction=4), (S0, S1)),
    view("cumsum", lambda x: x.cumsum(1), (S0, S1)),
    view("softmax", lambda x: x.softmax(-1), (S0, S1)),
    view("softmax of columns", lambda x: x.softmax(0), (S0, S1)),
    view("log_softmax", lambda x: x.log_softmax(-1), (S0, S1)),
    view("softmax_backward", lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float32), (S0, S1), (S0, S1)),
]  # fmt: skip

NORMS = [
    view("layer_norm", lambda x, w, c: F.layer_norm(x, (12,), w, c), (S0, S1, 12), (12,), (12,)),
    op("layer_norm of a symbol", lambda x: F.layer_norm(x, x.shape[1:]), (S0, S1)),
    view("layer_norm_backward", lambda g, x, m, r, w: aten.native_layer_norm_backward(
        g, x, [12], m, r, w, w, [True] * 3), (S0, S1, 12), (S0, S1, 12), (S0, S1, 1), (S0, S1, 1), (12,)),
    op("layer_norm_backward of a symbol", lambda g, x, m, r: aten.native_layer_norm_backward(
        g, x, x.shape[1:], m, r, None, None, [True, False, False]), (S0, S1), (S0, S1), (S0, 1), (S0, 1)),
    view("rms_norm", lambda x, w: F.rms_norm(x, (12,), w), (S0, S1, 12), (12,)),
    op("rms_norm of a symbol", lambda x: F.rms_norm(x, x.shape[1:]), (S0, S1)),
    op("group_norm", lambda x, w: F.group_norm(x, 2, w, w), (S0, 4, S1), (4,)),
    view("group_norm of fixed images", lambda x, w: F.group_norm(x, 2, w, w), (S0, 4, 3, 3), (4,)),
    op("group_norm_backward", lambda g, x, m, r, w: aten.native_group_norm_backward(
        g, x, m, r, w, x.shape[0], 4, x.shape[2], 2, [True] * 3), (S0, 4, S1), (S0, 4, S1), (S0, 2), (S0, 2), (4,)),
    op("batch_norm in training", lambda x, w, m, v: aten._native_batch_norm_legit_functional(
        x, w, w, m, v, True, 0.1, 1e-5), (S0, 4, S1), (4,), (4,), (4,)),
    view("batch_norm", lambda x, m, v: F.batch_norm(x, m, v.abs()), (S0, 4, S1, 3), (4,), (4,)),
    op("batch_norm_backward", lambda g, x, m, r: aten.native_batch_norm_backward(
        g, x, m, None, None, m, r, True, 1e-5, [True] * 3), (S0, 4, S1), (S0, 4, S1), (4,), (4,)),
]  # fmt: skip

LOSSES = [
    op("mse_loss", lambda x, y: F.mse_loss(x, y), (S0, S1), (S0, S1)),
    view("mse_loss, summed", lambda x, y: F.mse_loss(x, y, reduction="sum"), (S0, S1), (S0, S1)),
    op("mse_loss_backward", lambda g, x, y: aten.mse_loss_backward(g, x, y, 1), (), (S0, S1), (S0, S1)),
    op("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y), (S0, 6), (S0, 6)),
    op("bce with logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), (S0, 6), (S0, 6)),
    op("soft_margin_loss", lambda x, y: F.soft_margin_loss(x, y.sign()), (S0, S1), (S0, S1)),
    op("soft_margin_loss_backward", lambda g, x, y: aten.soft_margin_loss_backward(g, x, y, 1), (), (S0, S1), (S0, S1)),
    op("nll_loss", lambda x, y: F.nll_loss(x, y), inputs=rows_of_classes, calls=1),
    op("nll_loss_backward", lambda x, y: aten.nll_loss_backward(x.new_ones(()), x, y, None, 1, -100, x.new_ones(())),
       inputs=rows_of_classes),
    op("nll_loss_backward, one ignored", lambda x, y: aten.nll_loss_backward(
        x.new_ones(()), x, y, None, 1, 3, x.new_ones(())), inputs=rows_of_classes),
]  # fmt: skip

CALLS = [
    op("mm", lambda x, y: (x @ y).relu(), (S0, 8), (8, 6), calls=1),
    op("linear of rows", lambda x, w, c: F.gelu(F.linear(x, w, c)) + 1, (S0, S1, 8), (6, 8), (6,), calls=1),
    op("bmm", lambda x, y: (x @ y).softmax(-1), (S0, S1, 8), (S0, 8, S1), calls=1),
    op("embedding", lambda i, w: F.embedding(i, w) * 2, inputs=indices, calls=1),
    op("attention", lambda q, k: F.scaled_dot_product_attention(q, k, k), (2, 3, S0, 8), (2, 3, S1, 8), calls=1),
    op("convolution", lambda x, w, c: F.conv2d(x, w, c, padding=1).relu(), (S0, 3, 8, 8), (4, 3, 3, 3), (4,), calls=1),
    op("max_pool2d", lambda x: F.max_pool2d(x, 2) + 1, (S0, 3, 8, 8), calls=1),
    op("index by known places", lambda x: x[:, torch.tensor([0, 2])] + 1, (S0, 6), calls=1),
    op("what may be empty", lambda x: x[2:] * 2 + 1, (S0, S1), derived=(S0 - 2,), calls=3),
    op("cat of what may be empty", lambda x, y: torch.cat([x[2:], y]), (S0, S1), (6, S1), derived=(S0 - 2, S0 + 4), calls=1,
       at=AT[1:]),
]  # fmt: skip

FIXED = [
    fixed("pieces of a symbol", lambda x: x.unbind(0)[0], (S0, 6)),
    fixed("split of a symbol", lambda x: x.split(50)[0], (S0, 6)),
    fixed("diagonal of two symbols", lambda x: x.diagonal() + 1, (S0, S1)),
    fixed("trace of two symbols", lambda x: x.trace(), (S0, S1)),
    fixed("norm of perhaps one", lambda x: torch.linalg.vector_norm(x[1:], 2, 0), (S0, S1), derived=(S0 - 1,)),
]  # fmt: skip

ROWS = [*VIEWS, *ELEMENTS, *MOVES, *REDUCTIONS, *NORMS, *LOSSES, *CALLS]


def symbolic(row: Row):
    """The aten graph of a row with symbols."""
    graph, _ = traced(row.f, *row.tensors(PRIMES))
    derived = {evaluate(e, PRIMES): e for e in row.derived}
    return with_sizes(
        graph, lambda n: next((n // k * e for k, e in derived.items() if n and n % k == 0), symbol_of(n))
    )


def steps(tensor):
    """Its strides, where they say anything."""
    return [step for step, n in zip(tensor.stride(), tensor.shape) if n != 1]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_program_with_symbols_is_right_at_every_size(row):
    weighed = costs()
    program = lower(symbolic(row), weighed)
    calls = [step.op for step in program.steps if isinstance(step, Extern)]
    assert len(calls) == row.calls, calls
    for values in row.at:
        inputs = row.tensors(values)
        graph, real = traced(row.f, *[t.clone() for t in inputs])
        schedule = fuse(program_at(program, values), weighed)
        verify(schedule)
        got = run(schedule, [t.clone() for t in real])
        expected = flatten(row.f(*inputs))
        for mine, eager in zip(got, expected, strict=True):
            assert steps(mine) == steps(eager), values
            torch.testing.assert_close(mine, eager, equal_nan=True, msg=lambda m: f"{values}: {m}")
        at_numbers = fuse(lower(graph, weighed), weighed)
        for mine, other in zip(got, run(at_numbers, real), strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=0, equal_nan=True)
        if row.same:
            assert kernels(schedule) == kernels(at_numbers), (
                values,
                print_schedule(schedule),
                print_schedule(at_numbers),
            )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_machine_code_for_symbols_is_right_at_every_size(row):
    weighed = costs(threads=1)
    compiled = CompiledOnce(fuse(lower(symbolic(row), weighed), weighed))
    for values in row.at:
        inputs = row.tensors(values)
        _, real = traced(row.f, *[t.clone() for t in inputs])
        for mine, eager in zip(compiled(real, values), flatten(row.f(*inputs)), strict=True):
            assert steps(mine) == steps(eager), values
            torch.testing.assert_close(mine, eager, equal_nan=True, msg=lambda m: f"{values}: {m}")


@pytest.mark.parametrize("row", FIXED, ids=lambda row: row.name)
def test_what_depends_on_a_symbol_in_another_way_needs_it_fixed(row):
    graph = symbolic(row)
    with pytest.raises(NeedsFixedSize) as raised:
        lower(graph, costs())
    assert raised.value.symbols
