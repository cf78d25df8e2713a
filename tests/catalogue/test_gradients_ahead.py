"""What programs do to tensors whose gradients are compiled ahead of time: every write becomes part of a pure joint graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.harness.catalogue import computed, leaf, program, tensor

BACKENDS = ("aot_eager", "smelt")


def ahead(**options):
    """The program under the backends that compile gradients."""

    def decorate(factory):
        rows = {backend: program(backend=backend, **options)(factory) for backend in BACKENDS}

        def run(backend):
            rows[backend]()

        run.__name__ = factory.__name__
        return pytest.mark.parametrize("backend", BACKENDS)(run)

    return decorate


# -------------------------------------------------------------------------------------- writes of intermediates


@ahead(graphs=1)
def test_chain_of_in_place_operators():
    def fn(x, w):
        h = x @ w
        h.add_(1).mul_(x).clamp_(-2, 2)
        h -= h.mean(0)
        return F.relu(h, inplace=True).sum()

    return fn, [(leaf(3, 3), leaf(3, 3)) for _ in range(3)]


@ahead(graphs=1)
def test_views_of_views_are_written():
    def fn(x, w):
        h = x * 2
        rows = h.view(2, 2, 3)[1]
        rows.t()[0].mul_(w[:2])
        rows[0, 1:].copy_(w[1:])
        return h.exp(), rows

    return fn, [(leaf(4, 3), leaf(3)) for _ in range(3)]


@ahead(graphs=1)
def test_rows_are_filled_in_a_loop():
    def fn(x, w):
        out = torch.empty(3, 4)
        state = torch.zeros(4)
        for i in range(3):
            state = torch.tanh(state + x[i] @ w)
            out[i] = state
        return out

    return fn, [(leaf(3, 4), leaf(4, 4)) for _ in range(3)]


@ahead(graphs=1)
def test_index_put_of_positions_and_of_masks():
    def fn(x, w, ids, mask):
        h = x.clone()
        h[ids] = w
        h.index_put_((ids,), w * 2, accumulate=True)
        h[mask] = 0.5
        return h * x

    ids, mask = torch.tensor([2, 0]), torch.tensor([True, False, False, True])
    return fn, [(leaf(4, 3), leaf(2, 3), ids, mask) for _ in range(3)]


@ahead(graphs=1)
def test_scatter_gather_and_index_add():
    def fn(x, w, ids):
        h = torch.zeros(4, 3).index_add_(0, ids, x)
        h = h.scatter_add(0, ids[:, None].expand(-1, 3), w)
        return h.gather(0, ids[:, None]) * x.index_copy(0, ids[:1], w[:1]).sum()

    return fn, [(leaf(3, 3), leaf(3, 3), torch.tensor([1, 1, 2])) for _ in range(3)]


@ahead(graphs=1)
def test_copies_between_slices_that_overlap_in_time():
    def fn(x):
        h = x * 1
        h[1:] = h[:-1].clone() * 2
        h[0] = h[-1]
        return h

    return fn, [(leaf(4, 3),) for _ in range(3)]


@ahead(graphs=1)
def test_a_write_between_two_uses():
    def fn(x):
        h = x * 3
        a = h.sum()
        h.mul_(2)
        return a, h.sum(), (h * x).sum()

    return fn, [(leaf(3),), (computed(3),), (leaf(3),)]


@ahead(graphs=1)
def test_out_arguments():
    def fn(x, w):
        with torch.no_grad():
            scale = torch.empty(3)
            torch.amax(x, 0, out=scale)
            torch.add(scale, 1, out=scale)
        return x * w * scale

    return fn, [(leaf(2, 3), leaf(3)) for _ in range(3)]


@ahead(graphs=2, later=2, breaks=["unsupported-effect", "unsupported-effect"])
def test_memory_is_resized_or_exchanged():
    def fn(x, which):
        h = torch.zeros(3)
        if which == "resize":
            h.resize_(2, 3).zero_()
        else:
            h.set_(torch.ones(2, 3))
        return x * h

    return fn, [(leaf(2, 3), which) for which in ("resize", "set", "resize")]


# ----------------------------------------------------------------------------------------------------- buffers


@ahead(graphs=1, later=1)
def test_running_statistics_by_hand():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            mean = x.mean(0)
            if self.training:
                with torch.no_grad():
                    self.mean.lerp_(mean, 0.1)
                    self.steps += 1
            return (x - mean) * self.scale + self.mean

    return Norm(), [(leaf(4, 3),), (tensor(4, 3),), (leaf(4, 3),)]


@ahead(graphs=1)
def test_batch_norms_in_a_row():
    """The momentum of the second is computed from the number of its calls."""
    m = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.BatchNorm2d(3, momentum=None)
    )
    return m, [(tensor(2, 2, 4, 4),) for _ in range(3)]


@ahead(graphs=1)
def test_one_batch_norm_twice():
    norm = nn.BatchNorm1d(3)
    return lambda x: norm(norm(x) * 2).sum(), [(leaf(4, 3),) for _ in range(3)], norm


@ahead(graphs=1)
def test_codebook_with_moving_averages():
    class Quantizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.randn(5, 3))
            self.register_buffer("counts", torch.ones(5))

        def forward(self, x):
            nearest = torch.cdist(x, self.codes).argmin(-1)
            found = self.codes[nearest]
            hot = F.one_hot(nearest, 5).float()
            with torch.no_grad():
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.codes.copy_(self.codes * 0.9 + (hot.t() @ x) / self.counts[:, None] * 0.1)
            return x + (found - x).detach(), F.mse_loss(x, found.detach())

    return Quantizer(), [(leaf(4, 3),) for _ in range(3)]


@ahead(graphs=1)
def test_a_cache_is_filled_at_a_position():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.kv = nn.Linear(4, 4), nn.Linear(4, 8)
            self.register_buffer("keys", torch.zeros(6, 4))

        def forward(self, x, at):
            k, v = self.kv(x).chunk(2, -1)
            self.keys[at : at + 2] = k.detach()
            weights = (self.q(x) @ torch.cat([self.keys[:at], k]).t()).softmax(-1)
            return weights[:, -2:] @ v

    return Attention(), [(tensor(2, 4), 2), (tensor(2, 4), 2), (tensor(2, 4), 2)]


# ----------------------------------------------------------------------------------------------- what is returned


@ahead(graphs=1, later=1)
def test_results_of_all_kinds():
    def fn(x, w):
        h = x * w
        return {
            "h": h,
            "row": h[0],
            "same": h,
            "x": x,
            "view": x.t(),
            "ids": h.argmax(-1),
            "none": None,
            "n": 3,
        }

    return fn, [(leaf(3, 3), leaf(3)), (computed(3, 3), leaf(3)), (leaf(3, 3), tensor(3))]


@ahead(graphs=1)
def test_a_written_input_is_returned():
    def fn(h, w):
        h.mul_(w)
        return h, h[0], h * 2

    return fn, [(computed(3, 2), leaf(2)) for _ in range(3)]


@ahead(graphs=1, later=2)
def test_results_that_need_no_gradient_beside_some_that_do():
    def fn(x, w):
        with torch.no_grad():
            target = x.exp()
        return target, (x * w), w.detach() * 2, x.shape[0]

    return fn, [(leaf(3), leaf(3)), (tensor(3), leaf(3)), (leaf(3), tensor(3))]


@ahead(graphs=1)
def test_one_result_is_computed_from_another():
    def fn(x, w):
        logits = x @ w
        return F.cross_entropy(logits, torch.tensor([0, 1])), logits, logits.softmax(-1)

    return fn, [(leaf(2, 3), leaf(3, 3)) for _ in range(3)]


# ------------------------------------------------------------------------------------------------- random numbers


@ahead(graphs=1)
def test_random_numbers_are_drawn_in_order():
    def fn(x):
        a = F.dropout(x, 0.5)
        b = torch.rand_like(x)
        c = F.dropout(a * b, 0.25)
        noise = torch.empty(3).normal_()
        return c + noise * x, torch.randperm(4)

    return fn, [(leaf(3),) for _ in range(3)]


@ahead(graphs=1)
def test_the_same_mask_for_several_places():
    def fn(x, w):
        mask = F.dropout(torch.ones(3), 0.5)
        return (x * mask).sum() + (w * mask).exp().sum()

    return fn, [(leaf(4, 3), leaf(4, 3)) for _ in range(3)]
