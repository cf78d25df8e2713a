"""Loops that a tensor ends: eager's results and effects, in one graph where the loop is captured.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import torch

from tests.harness.loop_programs import BREAK, loop


@loop()
def newtons_method(a):
    a = a.abs()
    x = a
    while (x * x - a).abs().max() > 1e-4:
        x = 0.5 * (x + a / x)
    return x


@loop()
def a_loop_that_breaks_on_a_tensor(x):
    while True:
        x = x * 1.5
        if x.abs().sum() > 50:
            break
    return x


@loop()
def a_loop_that_counts(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x, n


@loop()
def a_loop_that_counts_in_a_tensor(x):
    n = torch.zeros((), dtype=torch.long)
    while x.abs().sum() < 50:
        x = x * 1.5
        n = n + 1
    return x, n


@loop()
def a_branch_in_a_loop_that_a_tensor_ends(x):
    while x.abs().sum() < 50:
        if x.sum() > 0:
            x = x * 1.5
        else:
            x = x * 1.7 - 1
    return x


@loop(3, later=1, breaks=BREAK * 4)
def continue_depends_on_a_tensor(x):
    while x.abs().sum() < 50:
        x = x * 1.5
        if x.sum() > 10:
            continue
        x = x - 1
    return x


@loop()
def a_loop_that_never_runs(x):
    while x.sum() > 1000:
        x = x * 2
    return x


@loop()
def products_in_a_loop(x):
    m = x @ x.T / 10
    while m.abs().max() < 100:
        m = m @ m + 1
    return m


@loop()
def variables_are_exchanged(x):
    a, b = x * 0, x * 0 + 1
    while b.max() < 50:
        a, b = b, a + b
    return a, b


@loop()
def two_conditions_end_a_loop(x):
    y = x * 0
    while x.abs().sum() < 50 and y.sum() > -20:
        x = x * 1.5
        y = y - 1
    return x, y


@loop()
def loops_in_a_loop_over_a_range(x):
    out = []
    for k in range(2):
        while x.abs().sum() < 20 * (k + 1):
            x = x * 1.5
        out.append(x)
    return out


@loop()
def a_loop_over_a_range_in_a_loop(x):
    while x.abs().sum() < 50:
        for k in range(3):
            x = x * 1.1 + k
    return x


@loop(2, breaks=BREAK * 2)
def a_loop_within_a_loop(x):
    y = x * 0
    while x.abs().sum() < 50:
        x = x * 1.5
        while y.sum() < x.abs().sum():
            y = y + 1
    return x, y


@loop()
def a_variable_of_the_last_step(x):
    z = x
    while x.abs().sum() < 50:
        z = x.sin()
        x = x.abs() * 1.5 + z.abs()
    return x, z


@loop(2, breaks=BREAK, eager=["user-exception"])
def a_variable_that_may_be_unbound(x):
    while x.abs().sum() < 50:
        z = x.sin()
        x = x.abs() * 1.5 + z.abs()
    return x, z


@loop()
def the_else_of_a_while_loop(x):
    while x.abs().sum() < 50:
        x = x * 1.5
    else:
        x = x + 1000
    return x


@loop(2, breaks=BREAK * 2)
def a_loop_that_writes_in_place(x):
    y = x * 1
    while y.abs().sum() < 50:
        y.mul_(1.5)
    return y


@loop(2, breaks=BREAK * 2)
def a_loop_that_appends(x):
    out = []
    while x.abs().sum() < 50:
        x = x * 1.5
        out.append(x)
    return x, len(out)


@loop(3, breaks=BREAK * 2)
def a_tensor_that_grows(x):
    y = x
    while y.abs().sum() < 50:
        y = torch.cat([y, y])
    return y


@loop()
def a_tensor_as_condition(x):
    go = torch.tensor(True)
    while go:
        x = x * 1.5
        go = x.abs().sum() < 50
    return x


@loop()
def return_ends_a_loop(x):
    while True:
        x = x * 1.5
        if x.abs().sum() > 50:
            return x + 1


@loop(grad=True)
def a_loop_with_gradients(x):
    while x.abs().sum() < 50:
        x = x * 1.5
    return x


@loop(2, breaks=BREAK * 2)
def random_numbers_in_a_loop(x):
    while x.abs().sum() < 50:
        x = x * 1.5 + torch.rand(6)
    return x


@loop(3, breaks=BREAK * 2)
def a_result_is_written_after_its_loop(x):
    y = x
    while y.abs().sum() < 15:
        y = y * 1.5
    y.add_(1)
    return y


@loop()
def a_loop_of_at_most_ten_steps(x):
    for _ in range(10):
        if x.abs().sum() > 50:
            break
        x = x * 1.5
    return x
