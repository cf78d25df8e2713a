"""Differentiable functions: two custom ones, and random ones of three matrices for hypothesis.

An instruction of a random function is (operator, operand, operand).
"""

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch.autograd import Function

SIZE = 4


class Saved(Function):
    @staticmethod
    def forward(ctx, x, w, scale):
        ctx.save_for_backward(x, w)
        ctx.scale = scale
        return x * w * scale

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        assert ctx.needs_input_grad[2] is False
        return g * w * ctx.scale, g * x * ctx.scale * 10, None


class Context(Function):
    @staticmethod
    def forward(x, power=2):
        return x**power

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, power = inputs
        ctx.save_for_backward(x, output)
        ctx.power = power

    @staticmethod
    def backward(ctx, g):
        x, out = ctx.saved_tensors
        return g * ctx.power * x ** (ctx.power - 1) + out * 0, None


def _statistics(a, b):
    values, _ = a.max(dim=1, keepdim=True)
    return b - values


def _in_place(a, b):
    c = a * 1
    c[1:].mul_(b[1:])
    return c


OPERATORS = {
    "sin": lambda a, b: a.sin(),
    "exp": lambda a, b: (-a.abs()).exp(),
    "relu": lambda a, b: a.relu(),
    "gelu": lambda a, b: F.gelu(a),
    "clamp": lambda a, b: a.clamp(-0.5, 0.5),
    "hardtanh": lambda a, b: F.hardtanh(a),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "mm": lambda a, b: (a @ b) / SIZE,
    "t": lambda a, b: a.t(),
    "flat": lambda a, b: a.reshape(-1).view(SIZE, SIZE),
    "halves": lambda a, b: torch.cat(a.split(2), 1).view(SIZE, SIZE) + b,
    "row": lambda a, b: a[0] * b,
    "expand": lambda a, b: a[:, :1].expand(SIZE, SIZE),
    "mean": lambda a, b: a - a.mean(0, keepdim=True),
    "softmax": lambda a, b: a.softmax(-1),
    "statistics": _statistics,
    "layer_norm": lambda a, b: F.layer_norm(a, (SIZE,), b[0], b[1]),
    "dropout": lambda a, b: F.dropout(a, 0.5),
    "noise": lambda a, b: a + torch.randn(SIZE, SIZE),
    "pool": lambda a, b: F.max_pool2d(a[None], 2, 1, 1)[0, :SIZE, :SIZE],
    "detach": lambda a, b: a * b.detach(),
    "in_place": _in_place,
    "half": lambda a, b: a.to(torch.bfloat16).float(),
}
instructions = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATORS)), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=14,
)
returned = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True)


def function(steps, outputs):
    """A function of three leaves and a matrix that is written: each operand counts back from the last value."""

    def run(x, y, z, written):
        values = [x, y, z, written * 1]
        for name, a, b in steps:
            values.append(OPERATORS[name](values[-1 - a % len(values)], values[-1 - b % len(values)]))
        written.mul_(values[-1].detach())
        results = {id(v): v for v in (values[-1 - i % len(values)] for i in outputs)}
        return [v for v in results.values() if not any(v is w for w in (x, y, z))] or [values[-1] * 2]

    return run


def arguments():
    return [torch.randn(SIZE, SIZE).requires_grad_() for _ in range(3)] + [torch.randn(SIZE, SIZE)]
