"""Numbers that differ by branch: the graph selects them.

PYTEST_DONT_REWRITE: the `assert` statements of the programs are part of what is tested.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.harness.branching import DOWN, UP, branch
from tests.harness.catalogue import program

W = torch.linspace(-1, 1, 36).reshape(6, 6)
BREAK = ["data-dependent-condition"]
VALUE = ["data-dependent-value"]


@branch()
def a_float(x):
    scale = 2.0 if x.sum() > 0 else 3.5
    return x * scale, scale, scale + 1, -scale / 4, scale > 3


@branch(grad=True)
def a_float_with_gradients(x):
    scale = 2.0 if x.sum() > 0 else 3.5
    return x * scale, scale


@branch()
def a_flag(x):
    flag = False
    if x.sum() > 0:
        flag = True
    y = x * 2
    if flag:
        y = y + 1
    if not flag:
        y = y * 3
    return y, flag, flag is True, flag is None


@branch(grad=True)
def a_flag_beside_products(x):
    done, y = False, x
    if x.sum() > 0:
        y, done = (x @ W).softmax(-1) @ W, True
    else:
        y = x @ W @ W
    if done:
        y = y + 1
    return y


@branch()
def floats_beside_products(x):
    if x.sum() > 0:
        y, scale = (x @ W).softmax(-1) @ W, 0.5
    else:
        y, scale = x @ W @ W @ W, x.abs().max().item()
    return y * scale, scale + 1


@branch()
def several_flags(x):
    large = small = False
    if x.max() > 2:
        large = True
    if x.min() < -2:
        small = True
    if large and small:
        return x * 2, large, small
    if large or small:
        return x * 3, large, small
    return x, large, small


@branch()
def a_score_over_rows(x):
    score = 0.0
    for row in x.unbind():
        if row.sum() > 0:
            score += 1.0
        else:
            score -= 0.5
    return x * score, score


@branch()
def the_best_row(x):
    best, place = -math.inf, x[0]
    for row in x.unbind():
        value = row.sum().item()
        if value > best:
            best, place = value, row * 1
    return place, best


@branch()
def a_flag_in_containers(x):
    state = {"seen": False, "scale": [1.0, 2.0]}
    if x.sum() > 0:
        state["seen"] = True
        state["scale"][1] = 4.0
    return x * state["scale"][1], state


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen, self.scale = False, 1.0

    def forward(self, x):
        if x.sum() > 0:
            self.seen, scale = True, 2.0
        else:
            self.seen, scale = False, 0.5
        return x * scale


@program(1, later=1)
def stored_into_a_module():
    model = Model()
    return model, [(x,) for x in (UP, DOWN, UP)], lambda: (model.seen, model.scale)


@branch()
def nested(x):
    if x.sum() > 0:
        scale = 2.0 if x.max() > 3 else 4.0
        flag = x.min() > 0.4
    else:
        scale, flag = -1.0, x.max() > 7
    if flag:
        scale = scale + 0.25
    return x * scale, scale


@branch()
def zeros_and_infinities(x):
    limit = math.inf if x.sum() > 0 else -0.0
    return x * 2, limit, limit > 3, math.isinf(limit)


@branch()
def not_a_number_in_one(x):
    loss = math.nan if x.sum() > 0 else 1.0
    return x * 2 if math.isnan(loss) else x * 3


@branch()
def in_text(x):
    scale = 2.0 if x.sum() > 0 else 3.5
    return x * 2, f"{scale:.3f} {scale}"


@branch()
def needed_as_a_number(x):
    scale = 2.0 if x.sum() > 0 else 3.5
    return torch.full((2,), scale) + x.sum()


@branch()
def needed_as_a_key(x):
    flag = x.sum() > 0
    kind = True if flag else False  # noqa: SIM210 - no call of bool()
    return {True: x + 1, False: x - 1}[kind]


@branch()
def an_early_return_of_numbers(x):
    if x.sum() > 0:
        return x * 2, 1.5
    return x * 3, 2.5


@branch(2, later=1, breaks=BREAK)
def one_number_and_none(x):
    scale = None
    if x.sum() > 0:
        scale = 2.0
    return x * 2, scale


@branch(2, later=1, breaks=["graph-break-requested"])
def across_a_break(x):
    import smelt

    scale = 2.0 if x.sum() > 0 else 3.5
    y = x * scale
    smelt.graph_break()
    return y + scale


@branch()
def a_float_or_a_tensors_number(x):
    scale = x.max().item() if x.sum() > 0 else 1.0
    return x / (scale + 1), scale


@program(1, later=1)
def sizes_that_change():
    def fn(x):
        if x.sum() > 0:
            y, scale, flag = (x @ W).softmax(-1) @ W, 0.5, True
        else:
            y, scale, flag = x @ W @ W, 1.5, False
        return y * scale if flag else y + scale, scale

    return fn, [(s * torch.rand(n, 6),) for n in (3, 4, 5, 9) for s in (1, -1)]


# ---- ints


@branch()
def an_int(x):
    k = 2 if x.sum() > 0 else 3
    return x * k, k, k + 1, 2 * k - 7, k / 3, 3 / k, -k, abs(k), k > 2, k == 3, float(k), int(k)


@branch(grad=True)
def an_int_with_gradients(x):
    k = 2 if x.sum() > 0 else 3
    return x * k + k, k


@branch()
def a_count_of_rows(x):
    n = 0
    for row in x.unbind():
        if row.sum() > 0:
            n += 1
    if n > 2:
        return x * n, n
    return x / (n + 1), n


@branch()
def an_int_of_a_tensor_of_ints(x):
    k = 2 if x.sum() > 0 else 3
    y = torch.arange(6)
    return y * k, y + k, k - y, y > k, y == k


@branch()
def min_and_max_of_ints(x):
    k = 2 if x.sum() > 0 else 30
    return x * 2, min(k, 7), max(k, 7), max(1, k)


@branch()
def ints_and_floats(x):
    k, scale = (2, 0.25) if x.sum() > 0 else (-3, 1.5)
    return x * (k * scale), k * scale, k + scale, k < scale, scale / k


@branch()
def ints_in_text(x):
    k = 1 if x.sum() > 0 else 2
    return f"k={k} {k:3d}", x * k


@branch(2, later=1, breaks=BREAK)
def an_int_as_an_index(x):
    k = 1 if x.sum() > 0 else 2
    return x[k], [x, x * 2, x * 3][k], torch.zeros(3) + k


@branch()
def an_int_as_a_range(x):
    k = 1 if x.sum() > 0 else 3
    for _ in range(k):
        x = x * 2
    return x


@branch()
def an_int_in_a_tuple(x):
    k = 1 if x.sum() > 0 else 3
    if k in (1, 2):
        return x * 2
    return x + k


@branch(2, later=1, breaks=BREAK)
def quotients_of_ints(x):
    k = 7 if x.sum() > 0 else -9
    return x * (k // 2), k % 4, divmod(k, 3), k**2, k & 3


@branch(2, later=1, breaks=BREAK)
def ints_too_large_for_a_float(x):
    k = 1 << 60 if x.sum() > 0 else 1
    return x * 2, k


@branch()
def products_that_grow_too_large(x):
    k = 1 << 30 if x.sum() > 0 else 1
    return x.sum() * (k * k), (x * k).sum()


@branch(2, later=1, breaks=BREAK)
def an_int_and_a_float(x):
    k = 1 if x.sum() > 0 else 2.0
    return x * 2, k


@program(1, later=3, breaks=BREAK)
def an_int_with_one_that_changes():
    def fn(x, k):
        n = 1 if x.sum() > 0 else 2
        return x * n, n + k, k * n

    return fn, [(UP, 3), (DOWN, 4), (UP, 5)]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.level = 0

    def forward(self, x):
        self.level = 0
        if x.sum() > 0:
            self.level = 2
        return x * self.level


@program(1)
def an_int_of_a_module():
    model = Counter()
    return model, [(x,) for x in (UP, DOWN, UP)], lambda: model.level
