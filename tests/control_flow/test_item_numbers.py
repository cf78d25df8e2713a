"""Floats and bools that `item()`, `float()` and `bool()` read from tensors of the graph, in one graph where nothing needs
the number itself.

Inputs hold small integers, so that sums do not depend on their order.
"""

from __future__ import annotations

import copy
import functools
import logging
import math

import torch

from tests.harness.branching import branch

INPUTS = [torch.randint(-5, 6, (4, 8), generator=torch.Generator().manual_seed(i)).float() for i in range(4)]
VALUE = ("data-dependent-value",)


item = functools.partial(branch, inputs=INPUTS)


@item()
def a_branch_on_a_float(x):
    s = x.sum().item()
    if s > 0:
        return x * s
    return x / (s - 1000)


@item()
def a_branch_on_a_bool(x):
    return x - 1 if (x > 4).all().item() else x + 1


@item()
def a_branch_on_bool_of_a_tensor(x):
    large = bool((x.sum(0) > 9).any())
    if not large:
        return x - 1
    return x + 1


@item()
def a_float_is_true_unless_zero(x):
    return x + 1 if (x - x).sum().item() or x.sum().item() else x


@item()
def several_comparisons(x):
    s, t = x.sum().item(), x.mean().item()
    if (s > 0 and t < 1) or s < -13:
        return x + 1
    return x - 1


@item()
def a_chained_comparison(x):
    if 0 < x.sum().item() < 20:
        return x
    return -x


@item()
def returned_numbers(x):
    s = x.sum().item()
    return x, s, s * 2 + 1, -s, abs(s), s > 3, not s, [s], {"s": s}


@item()
def texts(x):
    s = x.mean().item()
    return f"{s:.3f} {s} {s!r}", str(s), "%.2f and %s" % (s, s), "{}".format(s)  # noqa: UP030, UP031, UP032


@item()
def printed(x):
    print("mean", x.mean().item())
    return x + 1


@item()
def logged(x):
    logging.getLogger("smelt.tests.numbers").info("mean %f", x.mean().item())
    return x + 1


@item()
def tests_for_nan(x):
    loss = (x / x).sum().item()  # some elements are 0
    if math.isnan(loss) or not math.isfinite(loss) or math.isinf(loss):
        return x * 0
    return x + loss


@item()
def clipping_by_a_norm(x):
    norm = float(x.norm())
    return x * min(1.0, 2.0 / (norm + 1e-6)), max(norm, 3.0)


@item()
def a_division_by_zero_raises_as_eager(x):
    return x / x.sum().item(), 3.0 / (x.sum().item() - x.sum().item() + 1)


@item(rtol=0, atol=0)
def quotients(x):
    s = x.abs().sum().item()
    return x > 0, 5.0 / s, s / 5.0, 5 / (s + 2), (s + 1) / 7, 1 / (s * 3)


@item(breaks=VALUE)
def zero_divisors(x):
    try:
        return 1.0 / (x - x).sum().item()
    except ZeroDivisionError as error:
        return str(error)


@item(grad=True)
def with_gradients(x):
    s = x.sum().item()
    return x * s, s * x, x + s, s - x, x / (s + 500), 2 / (s + 500) / (x + 100), x > s


@item(grad=True)
def a_logged_loss(x):
    loss = (x * 2).sum()
    return loss, loss.item()


@item()
def in_place_operators(x):
    y, s = x.clone(), x.sum().item()
    y *= s
    y += s
    s += 1
    return y, s


@item()
def tensors_without_dimensions_keep_their_type(x):
    z = x.sum()
    return z * z.item(), z + x.mean().item(), x.mean().item() / (z + 1000)


@item()
def a_number_read_before_a_write(x):
    y = x + 1
    before = y[0, 0].item()
    y.mul_(3)
    return y * before, y[0, 0].item()


@item(graphs=0)
def its_class(x):
    s, b = x.sum().item(), (x > 0).any().item()
    return isinstance(s, float), type(s), type(b), isinstance(b, (int, str)), s is s, b is b


@item()
def bools_in_bools(x):
    a, b = (x > 4).any().item(), (x < -4).any().item()
    return a & b, a | b, a ^ b, a == b, a != b


@item()
def the_identity_of_bools(x):
    a, b, s = (x > 4).any().item(), bool((x < -4).any()), x.sum().item()
    if a is True:
        x = x + 1
    return x, a is b, b is not False, a is None, s is True, s is None, s is not x.sum().item()


@item(breaks=VALUE)
def the_identity_of_comparisons_of_integers(x):
    n = (x > 0).sum().item()
    return x + n, (n > 2) is None, (n > 2) is True


@item()
def a_match_on_a_bool(x):
    match bool(x.sum() > 0):
        case True:
            return x + 1
        case _:
            return x - 1


@item()
def a_match_on_a_float(x):
    match (x > 4).sum().float().item():
        case 0.0:
            return x + 1
        case None | "a":
            return x - 1
        case float():
            return x * 2


@item()
def copied(x):
    return copy.deepcopy([x.sum().item()]), copy.copy(x.sum().item())


class Model:
    def __init__(self):
        self.largest = 0.0


@item()
def stored_into_a_new_object(x):
    model = Model()
    model.largest = x.max().item()
    return model.largest, x


@item()
def another_float_type(x):
    return x.to(torch.bfloat16).sum().item(), x.double().sum().item() * x.double(), x.half().max().item()


@item()
def comparisons_of_tensors(x):
    if torch.equal(x, x.abs()) or torch.allclose(x, x.round() + 1e-9):
        x = x * 2
    return x, torch.allclose(x, x * 1.1, rtol=0.5), x.equal(x + 1), torch.is_nonzero(x.sum())


@item(breaks=VALUE)
def tensors_that_share_memory(x):
    y = x + 1
    return torch.equal(y, y)


@item()
def a_loop_until_small(x):
    for _ in range(4):
        x = x / 2
        if x.abs().max().item() < 1.5:
            break
    return x


@item(graphs=2, later=0, breaks=2 * VALUE)
def as_a_key(x):
    return {x.sum().item(): 1, "x": x * 2}[x.sum().item()]


@item(breaks=VALUE)
def as_an_integer(x):
    return x * 2, int(x.sum().item())


@item(breaks=VALUE)
def in_a_native_call(x):
    return torch.full((2,), x.sum().item())


@item(breaks=VALUE)
def beside_a_half(x):
    return x.to(torch.bfloat16) * x.mean().item()
