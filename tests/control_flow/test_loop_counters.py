"""Numbers that change in loops which a tensor ends: eager's values and types, in one graph where they are captured."""

from __future__ import annotations

import torch

import smelt
from smelt.report import inspect
from tests.harness.catalogue import program
from tests.harness.loop_programs import BREAK, UP, loop


@loop()
def an_int_is_a_factor(x):
    n = 1
    while x.abs().sum() < 50:
        x = x * n + 1
        n += 2
    return x, n


@loop()
def a_float_shrinks(x):
    rate, n = 0.5, 0
    while x.abs().sum() < 50 and n < 30:
        x = x + x.sign() * rate
        rate *= 0.9
        n = n + 1
    return x, rate, n


@loop()
def numbers_computed_from_counters(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.3 + 1 / (n * 2 + 1.5)
        n += 1
    return x, n * 2, n / 4, -n, n % 3, n // 2


@loop()
def a_bound_comes_first(x):
    n = 0
    while n < 4 and x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x, n


@loop()
def a_bound_comes_last(x):
    n = 10
    while x.abs().sum() < 50 and n > 7:
        x = x * 1.5
        n -= 1
    return x, n


@loop()
def three_conditions(x):
    n, y = 0, x * 0
    while x.abs().sum() < 50 and n < 20 and y.sum() > -60:
        x = x * 1.2
        y = y - 1
        n += 1
    return x, y, n


@loop()
def a_range_with_a_break(x):
    for _ in range(100):
        x = x * 1.2
        if x.abs().sum() > 50:
            break
    return x


@loop()
def a_range_that_is_exhausted(x):
    for i in range(20):  # noqa: B007
        y = x * 1.05
        if y.abs().sum() > 50:
            break
        x = y
    return x, i


@loop()
def a_range_with_steps(x):
    for i in range(70, 3, -3):
        if x.abs().sum() > 50:
            break
        x = x * 1.05 + i * 0.001
    return x, i


@loop()
def a_range_in_a_range(x):
    total = x * 0
    for k in range(3):
        y = x
        for i in range(40):
            y = y * 1.1 + 0.01 * i + k
            if y.abs().sum() > 50:
                break
        total = total + y
    return total


@loop()
def a_range_with_a_return(x):
    for _ in range(50):
        x = x * 1.1
        if x.abs().sum() > 50:
            return x
    return x


@loop(3, breaks=BREAK * 2)
def the_else_of_a_range(x):
    for _ in range(20):
        x = x * 1.01
        if x.abs().sum() > 50:
            break
    else:
        x = x + 1000
    return x


@loop()
def counters_are_exchanged(x):
    a, b = 0, 10
    while x.abs().sum() < 50:
        x = x * 1.5
        a, b = b, a + 1
    return x, a, b


@loop()
def a_parity_decides(x):
    n = 0
    while x.abs().sum() < 50:
        if n % 2 == 0:
            x = x * 1.5
        else:
            x = x + 0.5
        n += 1
    return x, n


@loop()
def a_counter_is_compared_after_its_loop(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x + 1 if n > 3 else x - 1


@loop()
def a_counter_in_a_text(x):
    n, rate = 0, 1.0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
        rate = rate / 3
    return x, f"{n} steps, {rate}"


@loop()
def a_counter_starts_at_a_size(x):
    n = x.shape[0]
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x, n


@loop()
def infinities(x):
    low, high = -0.0, float("inf")
    while x.abs().sum() < 50:
        x = x * 1.5
        low = low * 2.0
        high = high - 1.0
    return x, low, high, high - high


@loop()
def a_previous_value(x):
    before = x
    while x.abs().sum() < 50:
        before = x
        x = x * 1.5
    return before, x


@loop()
def values_before_the_previous_one(x):
    a, b, c = x + 1, x + 2, x
    while c.abs().sum() < 50:
        a, b, c = b, c, c * 1.5 + a * 0.1
    return a, b, c


@loop()
def which_tensor_a_variable_is(x):
    before = y = x * 1
    while y.abs().sum() < 50:
        before = y
        y = y * 1.5
    return before, y, x


@loop()
def a_variable_takes_a_tensor_of_before(x):
    y, z = x + 1, x * 2
    while x.abs().sum() < 50:
        x = x * 1.5
        y = z
    return x, y, z


@loop()
def which_tensor_a_variable_is_after_a_range(x):
    y = x * 1
    before = y
    for _ in range(20):
        if y.abs().sum() > 20:
            break
        y = y * 1.2
    return y, before


@loop(1, later=1, breaks=BREAK * 2)
def the_last_test_decides_which_tensor_a_variable_is(x):
    y = x + 1
    for _ in range(20):
        z = y
        y = x
        if z.abs().sum() > 20:
            break
        x = x * 1.2
        y = x + 1
    return x, y


@loop()
def seventeen_steps(x):
    for _ in range(17):
        x = x * 1.01
        if x.abs().sum() > 15:
            break
    return x


@loop()
def promotion_with_a_counter(x):
    n, t = 1, 0.5
    ints, half, scalar = (x * 10).int(), x.bfloat16(), x.sum()
    while x.abs().sum() < 50:
        x = x * 1.5
        ints = ints * n + 1
        half = half * t + n
        scalar = scalar * t - n
        n += 1
        t += 0.1
    return x, ints, half, scalar


@loop()
def operators_that_take_counters(x):
    n, t = 1, 2.0
    while x.abs().sum() < 50:
        x = torch.clamp(x.add(x.sign(), alpha=n), -100.0 * t, 100.0 * t) ** 1 + (x > n) * t
        n += 1
        t *= 1.5
    return x, n


@loop()
def a_counter_in_a_called_function(x):
    def grown(x, by):
        return x * 1.2 + by, by + 1

    n = 0
    while x.abs().sum() < 50:
        x, n = grown(x, n)
    return x, n


# ---- not captured


class Counter:
    n = 0


@loop(3, breaks=BREAK * 2)
def an_int_that_doubles(x):
    n = 1
    while x.abs().sum() < 50:
        x = x * 1.5
        n *= 2
    return x, n


@loop(2, breaks=BREAK)
def an_int_becomes_a_tensor(x):
    total = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        total = total + x.sum()
    return x, total


@loop(2, breaks=BREAK)
def an_int_becomes_a_float(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n = n + 0.5
    return x, n


@loop(2, breaks=BREAK * 2)
def a_flag(x):
    found = False
    while not found:
        x = x * 1.5
        if x.abs().sum() > 50:
            found = True
    return x


@loop(3, later=1, breaks=BREAK * 2)
def a_counter_is_an_index(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5 + x[n % 4]
        n += 1
    return x, n


@loop(4, breaks=BREAK * 2)
def a_counter_of_an_attribute(x):
    counter = Counter()
    while x.abs().sum() < 50:
        x = x * 1.5
        counter.n += 1
    return x, counter.n


@loop()
def a_counter_is_a_factor_after_its_loop(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x * n


@loop()
def as_many_steps_as_counted(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    for _ in range(n):
        x = x + 1
    return x


@loop()
def a_division_by_a_counter(x):
    n, t = 0, 1.0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
        t = t / n
    return x, t


@loop(3, breaks=BREAK * 2)
def a_power_of_a_counter(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5 + 0.9**n
        n += 1
    return x, n


@program(1, later=3, breaks=BREAK * 2)
def a_counter_that_is_an_argument():
    def fn(x, n):
        while x.abs().sum() < 50:
            x = x * 1.5 + n
            n += 1
        return x, n

    return fn, [(UP, 0), (UP, 5), (UP * 9, 7), (-UP, -3), (UP, 1 << 40), (UP, 1 << 55)]


@loop()
def quotients_of_a_counter(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x, n % 3, n // 2, 7 // (n + 1), -7 % (n + 1), -n // 2, -n % 4, n % -4


@loop()
def a_counter_is_a_divisor(x):
    n = 0
    while x.abs().sum() < 50:
        x = x * 1.5
        n += 1
    return x, 7 % n if x.sum() > 0 else n


@loop()
def an_item_of_a_step(x):
    t, last = 0.0, 1.0
    while x.abs().sum() < 50:
        x = x * 1.5
        last = x.max().item()
        t += last
    return x, t, last


@loop()
def a_branch_reads_a_counter(x):
    n = 0
    while x.abs().sum() < 50:
        if x.max() > 2:
            x = x * 1.5 + n
        else:
            x = x * 2.0 - n * 0.25
        n += 1
    return x, n


@loop(grad=True)
def a_gradient_through_counters_of_branches(x):
    n = 0
    while x.abs().sum() < 50:
        if x.max() > 2:
            x = x * 1.5 + n
        else:
            x = x * 2.0 - n * 0.25
        n += 1
    return x * n


@program(1, later=1)
def a_loop_on_symbolic_sizes():
    def fn(x):
        y, n = x, 0
        while y.abs().sum() < 50:
            y = y * 1.5 + y.shape[0]
            n += 1
        return y * n

    return fn, [(UP[:k].clone().requires_grad_(),) for k in (2, 3, 4, 3)]


@program(1)
def a_range_of_selected_elements():
    def fn(x, mask):
        chosen = x[mask]
        for i in range(chosen.shape[0]):
            chosen = chosen * 1.1 + i
        return chosen

    return fn, [(torch.arange(9.0), torch.arange(9) < n) for n in (5, 3, 0, 9, 1)]


def test_a_reason_names_the_variable():
    def doubles(x):
        n = 1
        while x.sum() < 50:
            x = x * 1.5
            n *= 2
        return x, n

    compiled = smelt.compile(doubles)
    compiled(UP)
    assert "the int `n` may exceed 64 bits" in inspect.reasons(compiled)[0].detail
