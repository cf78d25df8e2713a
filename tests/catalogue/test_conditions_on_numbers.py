"""Conditions on single elements of tensors from outside: they are guarded, each way has a graph, and nothing breaks."""

from __future__ import annotations

import torch

import smelt
from smelt.reasons import INTERNAL
from smelt.report.inspect import reasons
from tests.harness.catalogue import BREAKS, for_each_control_flow, leaf, program, tensor

NAN = float("nan")


def times(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@program(graphs=1, later=2)
def comparisons_of_elements():
    def fn(t, y):
        if t[0] > t[1]:
            t = -t
        if t[-1] - t[0] * 2 < 3 and not t[1] == 1:
            return y * t
        return y + t

    return fn, [(times(*t), tensor(3)) for t in ((0, 1, 2), (0, 2, 3), (2, 1, 0), (0, 1, 2), (NAN, 1, 2))]


@program(graphs=1, later=3)
def all_and_any_of_a_few():
    def fn(t, y):
        later = t[1:] > t[:-1]
        if later.all() or (~later).all():
            return y * 2
        if (t < 0).any() | torch.isinf(t).any():
            return y - t
        return y + t

    return fn, [
        (times(*t), tensor(3)) for t in ((0, 1, 2), (5, 7, 9), (3, 2, 1), (0, -1, 3), (0, float("inf"), 3))
    ]


@program(graphs=1, later=1)
def loops_over_elements():
    def fn(t, y):
        found = 0
        while found < len(t) and t[found] < 2.5:
            y = y * t[found]
            found += 1
        for low, high in zip(t[:-1], t[1:]):
            if high - low > 1:
                y = y + high
        return y, found

    return fn, [
        (times(*t, dtype=torch.float64), tensor(3))
        for t in ((0, 1, 2, 3), (0.5, 1.4, 2.2, 2.9), (0, 1, 3, 4))
    ]


@program(graphs=1, later=2)
def elements_of_other_layouts():
    def fn(t, y):
        if t.T[2, 1] > t.flip(0).reshape(-1)[0]:
            return y * 2
        if t.transpose(0, 1).unsqueeze(0)[0, 0, 1] == t.expand(2, 2, 3)[1, 1, 0]:
            return y * 3
        return y * 4

    t = torch.arange(6.0).view(2, 3)
    return fn, [
        (t, tensor(3)),
        (t.flip(0), tensor(3)),
        (t.T.contiguous().T * 2, tensor(3)),
        (t * NAN, tensor(3)),
    ]


@program(graphs=1, later=1)
def numbers_of_two_precisions():
    def fn(a, b, y):
        if a[0] < b[0]:
            return y * 2
        if a < 0.1:
            return y * 3
        return y * 4

    a, b = times(0.1), times(0.1, dtype=torch.float64)
    return fn, [(a, b, tensor(3)), (a, b - 1e-7, tensor(3)), (a, b, tensor(3)), (a, b + 1e-7, tensor(3))]


@program(graphs=1, later=1)
def conditions_on_what_requires_gradients():
    def fn(t, y):
        return (y * t[0]).sum() if t[0] > t[1] else (y + t[1]).sum()

    return fn, [(leaf(2), leaf(3)) for _ in range(2)] + [(leaf(2).detach().flip(0).requires_grad_(), leaf(3))]


@for_each_control_flow(dict(graphs=1), dict(graphs=2, later=1, breaks=["data-dependent-condition"]))
def elements_that_were_written():
    def fn(t, y):
        t.mul_(-1)
        if t[0] > t[1]:
            return y * 2
        return y * 3

    return fn, [(times(*t), tensor(3)) for t in ((0, 1), (3, 1), (0, 1))]


@for_each_control_flow(dict(graphs=1), dict(graphs=2, later=1, breaks=["data-dependent-condition"]))
def conditions_on_what_the_graph_computes():
    def fn(t, y):
        if t[0] * 2 > y.sum():
            return y * 2
        return y * 3

    return fn, [(times(t, 1), tensor(3)) for t in (0, 900, 0)]


@program(graphs=1, later=10, breaks=["data-dependent-condition"] * 2, options=BREAKS)
def more_ways_than_entries():
    def fn(t, y):
        steps, y = 0, y * 2
        while t[0] > steps:
            steps += 1
            y = y + 1
        return y

    return fn, [(times(n, 1), tensor(3)) for n in (0, 1, 2, 3, 4, 5, 6, 9, 12)]


@program(graphs=1, later=1)
def floats_as_conditions():
    def fn(done, t, y):
        if not done:
            y = y * 2
        while t[2] and len(y) < 4:
            y = torch.cat([y, y])
        return y + 1, bool(t[1]), done and y

    return fn, [(torch.tensor(d), times(1, 0, 2), tensor(3)) for d in (0.0, 1.0, 0.0, 0.5)]


def test_a_bool_among_numbers_is_no_number():
    def fn(x, flag):
        return x + 1 if (flag and x) + x.amax().item() > 1 else x - 1

    compiled = smelt.compile(fn, backend="eager")
    for flag in (torch.tensor(False), torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(compiled(torch.ones(1) * 3, flag), fn(torch.ones(1) * 3, flag))
    assert all(reason.kind is not INTERNAL for reason in reasons(compiled))
