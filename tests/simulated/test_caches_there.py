"""Caches that a step writes a few rows of: written where they are, by the kernel that computes the rows."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import events
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def compiled_plans(f, *args, **options):
    """The compiled function, called once, and what its plans call of ATen."""
    plans = []
    with events.subscribed(lambda e: plans.append(e.data) if e.kind == "plan" else None):
        compiled = smelt.compile(f, **options)
        compiled(*args)
    assert not inspect.reasons(compiled)
    return compiled, [name for plan in plans for name in plan["externs"]]


def turned(x, cos, sin):
    half = x.size(-1) // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def step(keys, values, seen, q, k, v, angles):
    """Attention of one token to a cache of (1, 4, 16, 8) with 2 heads for each of its own."""
    place = torch.arange(1, device=q.device) + seen
    seen.add_(1)
    cos, sin = (f((place[:, None] * angles).float()).repeat(1, 2).to(q.dtype) for f in (torch.cos, torch.sin))
    k = turned(k.view(1, 1, 4, 8).transpose(1, 2), cos, sin)
    keys.index_copy_(2, place, k)
    values.index_copy_(2, place, v.view(1, 1, 4, 8).transpose(1, 2))
    seen_mask = torch.arange(16, device=q.device) <= place
    spread = (t.repeat_interleave(2, 1) for t in (keys, values))
    return F.scaled_dot_product_attention(q.view(1, 8, 1, 8), *spread, attn_mask=seen_mask[None, None, None])


def state():
    return randn(1, 4, 16, 8), randn(1, 4, 16, 8), torch.tensor(0, device="cuda")


def test_a_step_of_decoding_copies_no_cache():
    caches, others = state(), [t.clone() for t in state()]
    for own, other in zip(caches, others):
        other.copy_(own)
    tokens = [(randn(1, 64), randn(1, 32), randn(1, 32)) for _ in range(6)]
    angles = torch.rand(4, device="cuda")
    with torch.no_grad():
        compiled, calls = compiled_plans(step, *others, *tokens[0], angles)
        for own, other in zip(caches, others):
            other.copy_(own)
        places = [t.data_ptr() for t in others]
        for token in tokens:
            cuda.forget_launches()
            got = compiled(*others, *token, angles)
            # keys, values: one launch each; a mask, what attention is given, and the counter
            assert len(cuda.launches()) <= 8
            torch.testing.assert_close(got, step(*caches, *token, angles))
            for own, other in zip(caches, others):
                assert torch.equal(own, other)
    assert [t.data_ptr() for t in others] == places and inspect.graph_count(compiled) == 1
    assert not any("index" in name or "copy" in name or "clone" in name for name in calls)


def test_one_launch_computes_and_writes():
    def f(cache, index, row, scale):
        cache.index_copy_(0, index, (row * scale).relu())

    cache, index = randn(9, 40), torch.tensor([4, 0, 7], device="cuda")
    row, scale, own = randn(3, 40), randn(40), cache.clone()
    compiled, calls = compiled_plans(f, cache, index, row, scale)
    version = cache._version
    cuda.forget_launches()
    compiled(cache, index, row, scale)
    f(own, index, row, scale)
    assert torch.equal(cache, own) and calls == [] and len(cuda.launches()) == 1
    assert cache._version == version + 1


def test_the_cache_is_what_is_returned():
    def f(cache, index, row):
        cache[:, index] = row
        return cache, cache[1:], cache.sum(0)

    cache, row = randn(3, 5, 4), randn(4)
    own = cache.clone()
    index = torch.tensor([-1, 2], device="cuda")
    compiled, calls = compiled_plans(f, cache, index, row)
    for got, want in zip(compiled(cache, index, row), f(own, index, row)):
        torch.testing.assert_close(got, want)
    got = compiled(cache, index, row)
    assert got[0] is cache and got[1]._base is cache and calls == []


def test_sizes_of_vectors_and_of_less():
    def f(cache, index, row):
        cache.index_copy_(1, index, row + 1)
        return cache * 2

    for columns in (1, 3, 8, 33):
        for n in (1, 2, 6):
            cache, row = randn(2, 7, columns, dtype=torch.float32), randn(2, n, columns, dtype=torch.float32)
            index, own = torch.randperm(7, device="cuda")[:n], cache.clone()
            compiled, calls = compiled_plans(f, cache, index, row)
            torch.testing.assert_close(compiled(cache, index, row), f(own, index, row))
            assert torch.equal(cache, own) and calls == []


def test_strided_caches_are_right_as_well():
    def f(cache, index, row):
        cache.index_copy_(2, index, row)
        return cache.sum(2)

    cache = randn(2, 7, 3, 4).transpose(1, 2)
    index, row, own = torch.tensor([3], device="cuda"), randn(2, 3, 1, 4), cache.clone()
    compiled, _ = compiled_plans(f, cache, index, row)
    torch.testing.assert_close(compiled(cache, index, row), f(own, index, row))
    assert torch.equal(cache, own)


def test_a_call_that_raises_later_leaves_what_eager_leaves():
    def f(cache, index, row, table, word):
        before = table[word[:1]].sum()
        cache.index_copy_(0, index, row * 2)
        return F.embedding(word, table) + cache.sum() + before

    for word in ([9, 0], [0, 9]):
        cache, table = randn(5, 4), randn(3, 4)
        index, row, own = torch.tensor([1], device="cuda"), randn(1, 4), cache.clone()
        compiled = smelt.compile(f)
        compiled(cache, index, row, table, torch.tensor([0, 1], device="cuda"))
        cache.copy_(own)
        wrong = torch.tensor(word, device="cuda")
        for function, argument in ((f, own), (compiled, cache)):
            with pytest.raises(IndexError):
                function(argument, index, row, table, wrong)
        assert torch.equal(cache, own)


def test_in_replays():
    def f(cache, seen, row):
        cache.index_copy_(0, seen, row)
        seen.add_(1)
        return cache * 2

    cache, seen = randn(9, 4), torch.zeros(1, dtype=torch.long, device="cuda")
    own, counted = cache.clone(), seen.clone()
    compiled = smelt.compile(f, options={"cuda_graphs": True})
    before = cuda.Graph.replays
    for _ in range(6):
        row = randn(1, 4)
        got = compiled(cache, seen, row)
        torch.testing.assert_close(got, f(own, counted, row))
        assert torch.equal(cache, own) and torch.equal(seen, counted)
        del got
    assert cuda.Graph.replays - before == 4


def test_gradients_of_what_is_written():
    def f(cache, index, row):
        cache.index_copy_(0, index, row * 2)
        return (cache * row.sum()).sum()

    index = torch.tensor([1], device="cuda")
    for leaf in (False, True):
        outcomes = []
        row = randn(1, 4, dtype=torch.float32)
        start = randn(5, 4, dtype=torch.float32)
        for function in (f, smelt.compile(f)):
            cache = start.clone().requires_grad_(leaf)
            own = cache * 1 if leaf else cache
            given = row.clone().requires_grad_()
            function(own, index, given).backward()
            outcomes.append((own.detach(), given.grad, cache.grad, own._version))
        for got, want in zip(outcomes[1], outcomes[0]):
            torch.testing.assert_close(got, want)
