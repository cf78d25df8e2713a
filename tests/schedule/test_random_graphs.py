"""Random programs of views, arithmetic and reductions agree with eager, whatever was fused."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.scheduled import check

UNARY = [torch.tanh, torch.relu, lambda x: x * 0.5 + 1, lambda x: -x, torch.sin]
BINARY = [torch.add, torch.mul, torch.sub, torch.maximum]
SHAPE = (4, 6, 8)


def softmax(x, d):
    return torch.softmax(x, d)


def center(x, d):
    return x - x.mean(d, keepdim=True)


def normalize(x, d):
    return x * torch.rsqrt(x.pow(2).sum(d, keepdim=True) + 1)


def scaled(x, d):
    return x / (x.amax(d, keepdim=True).abs() + 1)


def reshaped(x, d):
    return (x.reshape(2, 2, 6, 8).transpose(0, d + 1) * 2).reshape(SHAPE)


def flipped(x, d):
    return x.flip(d)


def rolled(x, d):
    return torch.cat((x.narrow(d, 1, x.shape[d] - 1), x.narrow(d, 0, 1)), d)


def transposed_copy(x, d):
    return x.transpose(0, d).contiguous().transpose(0, d)


def matmul(x, d):
    return x @ (x.transpose(1, 2) @ x) * 0.01


def running(x, d):
    return x.cumsum(d) * 0.1


def in_place(x, d):
    y = x.clone()
    y.select(d, 1).mul_(2)
    return y


SHAPED = [
    softmax,
    center,
    normalize,
    scaled,
    reshaped,
    flipped,
    rolled,
    transposed_copy,
    matmul,
    running,
    in_place,
]

step = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 20)),
    st.tuples(st.sampled_from(SHAPED), st.integers(0, 20), st.integers(0, 2)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 20), st.integers(0, 20)),
)


def program(steps, outputs):
    def f(*inputs):
        values = list(inputs)
        for op, *arguments in steps:
            if op in BINARY:
                value = op(values[arguments[0] % len(values)], values[arguments[1] % len(values)])
            else:
                value = op(values[arguments[0] % len(values)], *arguments[1:])
            values.append(value)
        return [values[-1], *(values[o % len(values)] for o in outputs)]

    return f


@settings(max_examples=120, deadline=None)
@given(st.lists(step, min_size=1, max_size=9), st.lists(st.integers(0, 20), max_size=2), st.integers(0, 100))
def test_random_programs(steps, outputs, seed):
    torch.manual_seed(seed)
    inputs = [
        torch.randn(SHAPE, dtype=torch.float64),
        torch.randn(8, 6, 4, dtype=torch.float64).permute(2, 1, 0),
    ]
    check(program(steps, outputs), *inputs, rtol=1e-8, atol=1e-8)
