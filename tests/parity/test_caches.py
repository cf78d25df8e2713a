"""Caches that a call writes a few rows of: what is in them afterwards, also after an error."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import events
from smelt.report import inspect
from tests.harness.catalogue import ON_GPU, asserts_on_gpu


def outcome(function, cache, *args):
    """What a call gives (None: it raises), what it leaves in the cache, and whether autograd knows of that."""
    version = cache._version
    try:
        given = function(cache, *args)
    except IndexError:
        return None, cache.clone(), True
    return given, cache.clone(), cache._version > version


def check(f, cache, *calls):
    """Every call does what it does in eager; what the plans call of ATen."""
    plans, own = [], cache.clone()
    compiled = smelt.compile(f)
    with events.subscribed(lambda e: plans.append(e.data) if e.kind == "plan" else None):
        for args in calls:
            got, want = outcome(compiled, cache, *args), outcome(f, own, *args)
            assert (got[0] is None) == (want[0] is None)
            if want[0] is not None:
                torch.testing.assert_close(got[0], want[0])
            torch.testing.assert_close(got[1:], want[1:], rtol=0, atol=0)
    assert not inspect.reasons(compiled)
    return [name for plan in plans for name in plan["externs"]]


def test_rows_are_written_where_they_are():
    def f(cache, index, rows):
        cache.index_copy_(1, index, rows * 2)
        return cache.sum(1)

    calls = [(torch.tensor(index), torch.ones(2, len(index), 3)) for index in ([1], [4, 0], [3], [3, 3])]
    # On a GPU by the kernel that computes them.
    assert set(check(f, torch.zeros(2, 5, 3), *calls)) == (set() if ON_GPU else {"aten.index_copy_.default"})


@asserts_on_gpu
def test_a_row_out_of_range_leaves_what_eager_leaves():
    def f(cache, index, rows):
        cache.index_copy_(0, index, rows + 1)
        return cache * 2

    def g(cache, index, rows):
        cache[index] = rows
        word = F.embedding(index, torch.ones(3, 3))
        cache[0] = word[0]
        return word + cache.sum()

    for function in (f, g):
        calls = [
            (torch.tensor(index), torch.ones(2, 3)) for index in ([0, 1], [1, 4], [3, 9], [9, 3], [2, 1])
        ]
        check(function, torch.zeros(5, 3), *calls)


def test_slices_are_written_by_the_kernel_that_computes_them():
    def f(cache, rows):
        cache[:, 1:3] = rows * 2
        cache[0] = 7
        return cache[1]

    assert check(f, torch.zeros(2, 5, 3), (torch.randn(2, 2, 3),), (torch.randn(2, 3),)) == []


def test_a_kept_view_of_a_cache_sees_the_rows():
    def f(cache, index, rows):
        half = cache[:2]
        half.index_fill_(1, index, 3.0)
        cache.scatter_(0, index[:, None], rows)
        return half, half.sum()

    check(f, torch.zeros(4, 4), (torch.tensor([1]), torch.ones(1, 1)), (torch.tensor([3]), torch.ones(1, 1)))


@pytest.mark.parametrize("leaf", (False, True))
def test_gradients(leaf):
    def f(cache, index, rows):
        cache.index_copy_(0, index, rows * 2)
        cache[1:2] = rows.sin()
        return (cache * rows.sum()).sum()

    outcomes, start, rows = [], torch.randn(5, 4), torch.randn(1, 4)
    for function in (f, smelt.compile(f)):
        source = start.clone().requires_grad_(leaf)
        cache, given = (source * 1 if leaf else source), rows.clone().requires_grad_()
        function(cache, torch.tensor([3]), given).backward()
        outcomes.append((cache.detach(), given.grad, source.grad if leaf else None, cache._version > 0))
    torch.testing.assert_close(outcomes[1], outcomes[0])
