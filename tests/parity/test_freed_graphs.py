"""What `backward` frees, whoever is differentiated first and afterwards: of results that others are computed from, and of
custom functions."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.harness.training import both, leaf


def a_result_of_another(x):
    y = x.sin()
    return y.sin(), y


def a_chain(x):
    y = x.sin()
    z = y.sin()
    return z.sin(), y, z


def nothing_is_saved(x):
    y = x * 2
    return y.sin(), y


def views_that_are_read(x):
    y = x.sin()
    a, b = y.unbind()
    return a.sin() * b, y, a


PROGRAMS = {f.__name__: f for f in (a_result_of_another, a_chain, nothing_is_saved, views_that_are_read)}


def differentiate(results, x, order, kept):
    """What a backward from each of these results adds to the gradient of `x`, or that it raises. The graph is kept by
    those that are in `kept`."""
    for at, i in enumerate(order):
        try:
            results[i].sum().backward(retain_graph=at in kept)
        except RuntimeError as error:
            assert "a second time" in str(error)
            yield "freed"
        yield None if x.grad is None else x.grad.clone()


@pytest.mark.parametrize("program", PROGRAMS)
@both()
def test_one_result_after_the_other(compile, program):
    f, found = compile(PROGRAMS[program]), []
    count = len(PROGRAMS[program](torch.ones(2)))
    for order in itertools.product(range(count), repeat=3):
        for kept in ((), (0,), (1,), (0, 1)):
            x = leaf(2)
            found.append(list(differentiate(f(x), x, order, kept)))
    return found


# --------------------------------------------------------------------------------------------- custom functions


class Twice(torch.autograd.Function):
    """Saves what its backward does not read."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.ones_like(g)


class ByAttribute(Twice):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.sin()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.x


class Asking(Twice):
    """Asks for what it has saved, which is nothing."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        assert ctx.saved_tensors == ()
        return g * 2


class Reading(Twice):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


@pytest.mark.parametrize("function", [Twice, ByAttribute, Asking, Reading])
@pytest.mark.parametrize("behind", ["input", "result"])
@both()
def test_a_custom_function_again(compile, function, behind):
    """Eager frees what a function saved, and minds that if its backward reads it."""

    @compile
    def f(x):
        y = function.apply(x if behind == "input" else x * 3)
        return y, y

    x = leaf(2)
    return list(differentiate(f(x), x, (0, 1, 0), ()))


@both()
def test_a_custom_function_beside_other_results(compile):
    f, x = compile(lambda x: (Reading.apply(x), ByAttribute.apply(x), x.cos())), leaf(2)
    return list(differentiate(f(x), x, (1, 0, 1, 2, 1, 0, 2), ()))


@both()
def test_a_written_input_and_what_was_computed_of_it_before(compile):
    """The gradient of either does not pass the other: one backward does the work of both."""

    def f(x):
        y = x * 2
        x.clamp_(-2, 2)
        return y, x[0]

    f, found = compile(f), []
    for _ in range(2):
        x = leaf(4, 3)
        given = x * 5
        y, row = f(given)
        (y.sum() + row.sum() + given.sum()).backward()
        found.append(x.grad)
    return found
