"""Inputs that autograd lets nobody write: a write raises as in eager, what came before it happens once, and a graph that was
compiled for one kind of input does not answer calls with another."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from tests.harness.training import both, leaf


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def of_a_hooked_module():
    module = nn.Identity()
    module.register_full_backward_hook(lambda *given: None)
    return module(leaf(2, 3) * 1)


def without_gradients():
    x = leaf(2, 3) * 1
    with torch.no_grad():
        return x[:]


def of_a_view_without_gradients():
    return without_gradients()[:]


def of_plain_memory_without_gradients():
    with torch.no_grad():
        return torch.zeros(2, 3)[:]


def in_inference_mode():
    x = leaf(2, 3) * 1
    with torch.inference_mode():
        return x[:]


def a_leaf_and_a_view():
    return torch.zeros(4, 3)[:2].requires_grad_()


KINDS = {
    "computed": lambda: leaf(2, 3) * 1,
    "a view of it": lambda: (leaf(2, 3) * 1)[:],
    "a leaf": lambda: leaf(2, 3),
    "a view of a leaf": lambda: leaf(2, 3)[:],
    "a leaf and a view": a_leaf_and_a_view,
    "one of several": lambda: (leaf(2, 2, 3) * 1).unbind()[0],
    "a part": lambda: (leaf(4, 3) * 1).split(2)[0],
    "of a hooked module": of_a_hooked_module,
    "of a custom function": lambda: Same.apply(leaf(2, 3) * 1),
    "without gradients": without_gradients,
    "of a view without gradients": of_a_view_without_gradients,
    "plain, without gradients": of_plain_memory_without_gradients,
    "in inference mode": in_inference_mode,
    "plain": lambda: torch.zeros(2, 3),
}


def add(x, w):
    x.add_(w)


def add_without_gradient(x, w):
    x.add_(1)


def add_to_a_row(x, w):
    x[0].add_(w[0])


def store(x, w):
    x[:, 0] = w[:, 0]


def copy_into(x, w):
    torch.add(x.detach(), 1, out=x) if not x.requires_grad else x.copy_(w)


def add_to_each(x, w):
    torch._foreach_add_([w * 1, x], 1.0)


def add_to_detached(x, w):
    x.detach().add_(1)


def add_in_no_grad(x, w):
    with torch.no_grad():
        x.add_(1)


def add_to_data(x, w):
    x.data.add_(1)


def store_in_a_row_of_data(x, w):
    with torch.no_grad():
        x.data[0] = w[1]


WRITES = (
    add,
    add_without_gradient,
    add_to_a_row,
    store,
    copy_into,
    add_to_each,
    add_to_detached,
    add_in_no_grad,
    add_to_data,
    store_in_a_row_of_data,
)


def observed(fn, x):
    steps, seen, w = torch.zeros(()), [], torch.ones(2, 3, requires_grad=True)
    try:
        result = fn(x, w, steps, seen)
    except RuntimeError as error:
        result = str(error)
    gradient = None
    if isinstance(result, torch.Tensor) and result.requires_grad:
        (gradient,) = torch.autograd.grad(result.sum(), w, allow_unused=True)
    return result, steps, seen, x.detach().clone(), x._version, gradient


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("kind", KINDS)
@both(whole=False, ahead=False)
def test_a_write_raises_once(compile, kind, write):
    def fn(x, w, steps, seen):
        steps.add_(1)
        seen.append(1)
        write(x, w)
        return x * 3

    compiled = compile(fn)
    return [observed(compiled, KINDS[kind]()) for _ in range(2)]


@pytest.mark.parametrize("write", [add, add_to_a_row])
@pytest.mark.parametrize("kind", KINDS)
@both(whole=False, ahead=False)
def test_a_write_is_handled(compile, kind, write):
    def fn(x, w, steps, seen):
        steps.add_(1)
        try:
            write(x, w)
        except RuntimeError as error:
            seen.append(str(error))
            return x * 2
        return x * 3

    compiled = compile(fn)
    return [observed(compiled, KINDS[kind]()) for _ in range(2)]


TOLD_APART = ("computed", "a leaf", "a view of a leaf", "one of several", "without gradients", "plain")


@pytest.mark.parametrize("first, second", itertools.permutations(TOLD_APART, 2))
@both(whole=False, ahead=False)
def test_graphs_tell_kinds_apart(compile, first, second):
    def fn(x, w, steps, seen):
        steps.add_(1)
        try:
            x.add_(w)
        except RuntimeError as error:
            seen.append(str(error))
            return x * 2
        return x * 3

    compiled = compile(fn)
    return [observed(compiled, KINDS[kind]()) for kind in (first, second, first)]


@both(whole=False, ahead=False)
def test_a_view_whose_base_begins_to_need_gradients(compile):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.ones(4)
            self.register_buffer("view", self.base[:2])

        def forward(self, x):
            return x * self.view

    holder, w = Holder(), torch.full((4,), 2.0, requires_grad=True)
    compiled = compile(holder.forward)
    before = [compiled(torch.ones(2)) for _ in range(4)]
    holder.base.mul_(w)
    after = compiled(torch.ones(2))
    return before, after, torch.autograd.grad(after.sum(), w)


def of_several(x):
    return x.unbind()[0], x.split(1)[1], x.chunk(2)[0][0]


def of_several_computed(x):
    first, second = (x * 2).unbind()
    return first, second


def taken_without_gradients(x):
    with torch.no_grad():
        return x[0], (x * 2)[1:]


def a_result_and_views(x):
    z = x * 2
    return z, z[0], z.detach()[1], z.view(-1)


def of_written(x):
    z = x * 2
    z[0].add_(1)
    return z, z[:, 0]


TAKEN = (of_several, of_several_computed, taken_without_gradients, a_result_and_views, of_written)
SIMPLE = (
    lambda x: x[0],
    lambda x: x.detach(),
    lambda x: (x.detach()[1], x),
    lambda x: x.data.t(),
    lambda x: x[1].detach().view(-1),
)


@pytest.mark.parametrize("target", [0, 1, -1])
@pytest.mark.parametrize("taken", [*SIMPLE, *TAKEN])
@both(whole=False, ahead=False)
def test_results_written_with_gradients(compile, taken, target):
    """By what follows the graph: who raises, and who has a history afterwards."""
    compiled, found = compile(taken), []
    for _ in range(2):
        x, w = torch.ones(2, 3), torch.full((3,), 2.0, requires_grad=True)
        result = compiled(x)
        results = [*result, x] if isinstance(result, tuple) else [result, x]
        chosen = results[min(target, len(results) - 1)]
        try:
            chosen.mul_(w[0])
        except RuntimeError as error:
            found.append(str(error))
        for t in results:
            try:
                found.append(((t * 1).requires_grad, t.detach().clone()))
            except RuntimeError as error:
                found.append(str(error))
    return found


def write_what_was_taken_without_gradients(x):
    z = x * 2
    with torch.no_grad():
        v = z[0]
    try:
        v.add_(1)
    except RuntimeError as error:
        return str(error)
    return v


@both(whole=False, ahead=False)
def test_texts_say_how_a_view_was_taken(compile):
    compiled = compile(write_what_was_taken_without_gradients)
    return [compiled(leaf(2, 3)) for _ in range(2)]
