"""Whole programs that are lowered once for symbols: random ones, and a transformer's training step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.ops.lowering import lower
from smelt.ops.view_operators import reshape_index
from smelt.schedule.schedule_program import fuse
from smelt.schedule.verify_schedule import verify
from smelt.shapes.expr import Sym
from tests.harness.joints import joint_of
from tests.harness.lowered_at import CompiledOnce, program_at
from tests.harness.schedule_interpreter import run
from tests.harness.scheduled import costs
from tests.harness.symbolic import S0, S1, symbol_of, with_sizes
from tests.harness.traced import flatten, traced

F = torch.nn.functional


# ---- reshapes


def symbols_of(shape):
    return tuple(Sym(f"d{d}", 0, n - 1 if isinstance(n, int) else 1 << 62) for d, n in enumerate(shape))


PAIRS = [
    ((S0, S1, 768), (S0 * S1, 768)),
    ((S0, S1, 768), (S0, S1, 12, 64)),
    ((S0 * S1, 768), (S0, S1, 12, 64)),
    ((S0, S1, 4, 3), (S0 * S1, 12)),
    ((S0, S1, 4, 3), (4 * S0 * S1, 3)),
    ((S0, 1, S1), (S0, S1)),
    ((6, S0, S1), (2, 3, S0, S1)),
    ((S0 * S1 // 4, 4, 8), (S0, S1, 8)),
]


@pytest.mark.parametrize("old, new", PAIRS, ids=str)
def test_dimensions_that_a_reshape_leaves_alone_are_not_computed(old, new):
    for a, b in ((old, new), (new, old)):
        index = symbols_of(b)
        found = reshape_index(a, b)(index)
        both = {n: k for k, n in enumerate(b) if n != 1}
        assert [found[k] for k, n in enumerate(a) if n in both] == [index[both[n]] for n in a if n in both]


# ---- random programs


def merged(x):
    return (x.reshape(-1, 8) * 2).tanh().view(x.shape)


def flat(x):
    return (x.reshape(-1) + 1).view(x.shape)


def by_heads(x):
    n, t, _ = x.shape
    y = x.reshape(n, t, 4, 2).transpose(1, 2)
    return y.softmax(-2).transpose(1, 2).reshape(n, t, 8)


def shifted(x):
    return torch.cat([x[:, 1:], x[:, :1]], 1)


def crossed(x):
    return (x.transpose(0, 1).contiguous() * 2).transpose(0, 1)


def centered(x):
    return x - x.mean((0, 2), keepdim=True)


def normed(x):
    return F.layer_norm(x, x.shape[1:])


def padded(x):
    return F.pad(x, (0, 0, 1, 1))[:, 1:-1]


def scaled(x):
    return x * x.shape[0] / x.shape[1]


def rolled(x):
    return x.roll(1, 1) + x.flip(0)


def spread(x):
    return x - x.var((0, 1), keepdim=True)


def summed(x):
    return x + x.sum(1, keepdim=True) * 0.1


def masked(x):
    length = x.shape[1]
    keep = torch.arange(length)[:, None] >= torch.arange(8)
    return torch.where(keep, x, -1.0)


def projected(x):
    return x @ torch.ones(8, 8).tril() * 0.1


def diagonals(x):
    return x + (x @ x.transpose(1, 2)).diagonal(0, 1, 2)[..., None] * 0.01


STEPS = [merged, flat, by_heads, shifted, crossed, centered, normed, padded, scaled, rolled, spread, summed, masked,
         projected, diagonals]  # fmt: skip
LONGER = {101 + 1: S0 + 1, 211 + 2: S1 + 2, 211 + 1: S1 + 1, 211 - 1: S1 - 1}


def change(n):
    for k, e in LONGER.items():
        if n and n % k == 0:
            return symbol_of(n // k) * e
    return symbol_of(n)


def check(graph_of, f, at):
    """What is lowered for symbols is what is lowered for the numbers, so is its machine code, and what eager gives."""
    weighed = costs(threads=1)
    program = lower(with_sizes(graph_of(101, 211)[0], change), weighed)
    compiled = CompiledOnce(fuse(program, weighed))
    for n0, n1 in at:
        graph, real = graph_of(n0, n1)
        schedule = fuse(program_at(program, {S0: n0, S1: n1}), weighed)
        verify(schedule)
        got = run(schedule, [t.clone() for t in real])
        other = run(fuse(lower(graph, weighed), weighed), [t.clone() for t in real])
        for mine, code, theirs in zip(got, compiled(real, {S0: n0, S1: n1}), other, strict=True):
            assert (mine is None) == (code is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs, equal_nan=True)
                torch.testing.assert_close(code, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)
        if f is not None:
            for mine, eager in zip(got, flatten(f(*real)), strict=True):
                torch.testing.assert_close(mine, eager, equal_nan=True, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=6), st.booleans())
def test_random_programs(steps, twice):
    def f(x):
        y = x
        for step in steps:
            y = step(y)
        return (y, y + x) if twice else (y,)

    def graph_of(n0, n1):
        torch.manual_seed(0)
        return traced(f, torch.randn(n0, n1, 8))

    check(graph_of, f, [(2, 3), (3, 9), (6, 8)])


# ---- a training step


class Block(torch.nn.Module):
    """A decoder of one layer."""

    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(40, 16), torch.nn.Embedding(64, 16)
        self.before, self.behind = torch.nn.LayerNorm(16), torch.nn.LayerNorm(16)
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

    def forward(self, tokens, written):
        n, t = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(t))
        q, k, v = (h.view(n, t, 4, 4).transpose(1, 2) for h in self.qkv(self.before(x)).split(16, -1))
        if written:
            scores = q @ k.transpose(-1, -2) / 2.0
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
            mixed = scores.softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, 16))
        x = x + self.down(F.gelu(self.up(self.behind(x))))
        logits = x @ self.words.weight.t()
        return F.cross_entropy(logits[:, :-1].reshape(-1, 40), tokens[:, 1:].reshape(-1)), logits


@pytest.mark.parametrize("written", [False, True], ids=["attention", "attention written out"])
def test_a_training_step(written):
    torch.manual_seed(0)
    block = Block()

    def graph_of(n0, n1):
        tokens = torch.randint(0, 40, (n0, n1))
        joint, primals = joint_of(lambda tokens: block(tokens, written), tokens)
        tangents = [torch.ones(()), torch.randn(n0, n1, 40) * 0.1][: len(joint.tangents)]
        return joint.graph, [*(p.detach() for p in primals), *tangents]

    block.places = torch.nn.Embedding(256, 16)
    check(graph_of, None, [(2, 3), (3, 8), (5, 2)])


@pytest.mark.parametrize("written", [False, True], ids=["attention", "attention written out"])
def test_a_forward(written):
    torch.manual_seed(0)
    block = Block()
    block.places = torch.nn.Embedding(256, 16)

    def f(tokens):
        with torch.no_grad():
            return block(tokens, written)

    def graph_of(n0, n1):
        graph, real = traced(f, torch.randint(0, 40, (n0, n1)))
        return graph, [t.detach() for t in real]

    check(graph_of, None, [(2, 3), (3, 8), (5, 2)])
