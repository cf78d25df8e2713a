"""In-place writes in branches, with gradients: the branches would change the history of one tensor, so the graph breaks."""

from __future__ import annotations

import torch

from tests.harness.branching import branch, trained

BREAK = ["data-dependent-condition"]


@trained(2, later=1, breaks=BREAK)
def a_value_is_scaled_in_place(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h.mul_(3)
    return h.sin()


@trained(2, later=1, breaks=BREAK)
def a_value_is_written_in_both_branches(m, x):
    h = x @ m.w1 + m.bias
    if h.sum() > 0:
        h.relu_()
    else:
        h.neg_().add_(x)
    return h @ m.w2


@trained(2, later=1, breaks=BREAK)
def a_layer_is_added_in_place(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h += x @ m.w2
    else:
        h -= x @ m.w3
    return h.cos()


@trained(2, later=1, breaks=BREAK)
def a_layer_of_one_branch_is_added_in_place(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h += x @ m.w2
    return h.cos()


@trained(2, later=1, breaks=BREAK)
def rows_are_written(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h[1:3] = h[:2] * 2
        h[0].zero_()
    return h.sin()


@trained(2, breaks=BREAK)
def elements_below_zero_are_written(m, x):
    h = x @ m.w1
    if (h < 0).any():
        h[h < 0] = 0
    return h.sin()


@trained(1, later=1, breaks=BREAK, eager=["unsupported-effect"])
def a_view_is_written(m, x):
    h = x @ m.w1
    row = h[1]
    if x.sum() > 0:
        row.mul_(3)
    return h.sin()


@trained(2, breaks=BREAK)
def a_written_value_is_returned(m, x):
    h = x @ m.w1
    if x.sum() > 0:
        h.mul_(3)
    return h


@trained(4, later=1, breaks=BREAK * 3)
def writes_in_a_loop(m, x):
    h = x @ m.w1
    for i in range(3):
        if h.sum() > i:
            h.mul_(0.5)
        else:
            h.add_(1)
    return h @ m.w2


@trained(3, later=1, breaks=BREAK * 2)
def nested_writes(m, x):
    h = x @ m.w1
    if x.sum() > -20:
        h.add_(1)
        if x.max() > 3:
            h.mul_(m.bias + 2)
    return h.sin()


@trained(2, later=1, breaks=BREAK)
def a_constant_is_written_with_gradients(m, x):
    h = torch.zeros(4, 6)
    if x.sum() > 0:
        h.add_(x @ m.w1)
    return h + x @ m.w2


@trained(2, breaks=BREAK)
def a_value_that_the_backward_reads_is_written(m, x):
    h = (x @ m.w1).exp()
    if x.sum() > 1e9:
        h.mul_(2)
    return h.sin()


@trained(1, later=3, breaks=BREAK)
def a_buffer_is_written(m, x):
    if not hasattr(m, "total"):
        m.register_buffer("total", torch.zeros(6))
    if x.sum() > 0:
        m.total.add_(x.sum(0))
    return x @ m.w1 + m.total


@trained(2, later=1, breaks=BREAK)
def a_parameter_is_written_without_gradients(m, x):
    with torch.no_grad():
        if x.sum() > 0:
            m.bias.add_(1)
    return x @ m.w1 + m.bias


@branch(2, grad=True, breaks=BREAK)
def an_argument_with_a_history_is_not_written(x):
    y = x * 2
    if y.sum() > 0:
        y.clamp_(max=2)
    return y
