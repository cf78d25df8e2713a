"""What `backward` frees of a result that others are computed from, whoever is differentiated first and afterwards."""

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
