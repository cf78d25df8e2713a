"""Random programs over sizes that are symbols: scheduled and compiled once, they agree with eager at any sizes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.symbolic import S0, S1
from tests.harness.symbolic_kernels import Once, same

UNARY = [torch.tanh, torch.relu, lambda x: x * 0.5 + 1, torch.sin]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum]
SHAPE = (S0, 6, S1)


def softmax(x, d):
    return torch.softmax(x, d)


def normalize(x, d):
    return x * torch.rsqrt(x.pow(2).sum(d, keepdim=True) + 1)


def scaled(x, d):
    return x / (x.amax(d, keepdim=True).abs() + 1)


def joined(x, d):
    """A softmax over two dimensions seen as one."""
    a, b, c = x.shape
    return (x.reshape(a * b, c) if d == 0 else x.reshape(a, b * c)).softmax(-1).reshape(a, b, c)


def split(x, d):
    a, _, c = x.shape
    return (x.reshape(a, 2, 3, c).transpose(1, 2 if d else 3) * 2).reshape(a, 6, c)


def flipped(x, d):
    return x.flip(d)


def summed(x, d):
    return x - x.sum(d, keepdim=True) * 0.01


def transposed_copy(x, d):
    return x.transpose(0, d).contiguous().transpose(0, d)


def products(x, d):
    return x @ (x.transpose(1, 2) @ x) * 0.01


def running(x, d):
    return x.cumsum(d) * 0.1


SHAPED = [softmax, normalize, scaled, joined, split, flipped, summed, transposed_copy, products, running]

step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 20)),
    st.tuples(st.sampled_from(SHAPED), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 20), st.integers(0, 20)),
)


def program(steps, outputs):
    def f(x, y):
        values = [x, y.permute(2, 1, 0)]
        for op, *arguments in steps:
            if op in BINARY:
                value = op(values[arguments[0] % len(values)], values[arguments[1] % len(values)])
            else:
                value = op(values[arguments[0] % len(values)], *arguments[1:])
            values.append(value)
        return [values[-1], *(values[o % len(values)] for o in outputs)]

    return f


sizes = st.tuples(st.integers(2, 40), st.integers(2, 40))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(step, min_size=1, max_size=8),
    st.lists(st.integers(2, 20), max_size=2),
    st.lists(sizes, min_size=2, max_size=3),
)
def test_random_programs(steps, outputs, numbers):
    f = program(steps, outputs)
    once = Once(f, SHAPE, (S1, 6, S0), dtype=torch.float64)
    for a, b in numbers:
        at = {S0: a, S1: b}
        inputs = once.inputs(at)
        same(once(at, inputs, 3), f(*inputs), at, rtol=1e-8, atol=1e-8)
