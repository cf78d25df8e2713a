"""Programs whose results need gradients: what autograd records, and what users do with it."""

from __future__ import annotations

import functools
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import smelt
from tests.harness.catalogue import (
    BACKENDS,
    BREAKS,
    Changing,
    asserts_on_gpu,
    computed,
    leaf,
    number_handles,
    on_both_backends,
    program,
    tensor,
)
from tests.harness.differentiable import Context, Saved

# ------------------------------------------------------------------------------------------------- modes


@on_both_backends(graphs=1)
def test_product_of_leaves():
    return lambda x, w: (x @ w).relu(), [(leaf(3, 4), leaf(4, 2)) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_parameter_of_a_module():
    m = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))
    return m, [(tensor(3, 4),), (tensor(3, 4),), (leaf(3, 4),)]


@on_both_backends(graphs=1)
def test_no_grad_inside():
    def fn(x, w):
        with torch.no_grad():
            scale = (x * w).mean()
        return x * scale + w

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_enable_grad_inside_no_grad():
    def fn(x, w):
        with torch.no_grad():
            a = x * w
            with torch.enable_grad():
                b = x * w
            c = b * 2
        return a, b, c, a.requires_grad, b.requires_grad, c.requires_grad

    return fn, [(leaf(3), tensor(3)) for _ in range(3)]


@on_both_backends(graphs=1, later=1, grad=False)
def test_enable_grad_when_called_without():
    def fn(x):
        with torch.enable_grad():
            y = x.sin()
        return y, x.cos()

    return fn, [(leaf(3),), (leaf(3),), (tensor(3),)]


@on_both_backends(graphs=1)
def test_set_grad_enabled_as_a_function():
    def fn(x):
        torch.set_grad_enabled(False)
        a = x * 2
        torch.set_grad_enabled(True)
        return a, x * 3

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_decorated_with_no_grad():
    @torch.no_grad()
    def statistics(x):
        return x.mean(), x.std()

    def fn(x):
        mean, std = statistics(x)
        return (x - mean) / std

    return fn, [(leaf(5),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_inference_mode_inside():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
            free = y.sum()
        return y, x * 3, y.is_inference(), free.requires_grad

    return fn, [(leaf(3),), (tensor(3),), (leaf(3),)]


@on_both_backends(graphs=1)
def test_normal_mode_inside_inference_mode():
    def fn(x):
        with torch.inference_mode():
            a = x + 1
            with torch.inference_mode(False):
                b = x * 2
            c = x + 2
        return a, b, c, b.requires_grad, c.is_inference()

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_autocast_region():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
            z = y @ w.t()
        return (z.float() + x).sum(), y.dtype

    return fn, [(leaf(4, 4), leaf(4, 4)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_two_autocast_regions_with_an_update_between():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            a = (x @ w).float()
        with torch.no_grad():
            w.mul_(2)
        with torch.autocast("cpu", torch.bfloat16):
            b = (x @ w).float()
        return a.detach() + b

    return fn, [(tensor(4, 4), leaf(4, 4)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_autocast_switched_off_inside():
    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            a = x @ w
            with torch.autocast("cpu", enabled=False):
                b = x @ w
            c = x @ w
        return a.float() + b + c.float()

    return fn, [(leaf(4, 4), leaf(4, 4)) for _ in range(3)]


@asserts_on_gpu
@on_both_backends(graphs=1)
def test_modes_are_restored_when_the_graph_raises():
    def fn(x, i):
        with torch.no_grad():
            y = x[i] * 2
        return y + x

    good, bad = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 7])
    return fn, [(leaf(3), good), (leaf(3), bad), (leaf(3), good), (leaf(3), bad)]


# --------------------------------------------------------------------------------------------- detach, in place


@on_both_backends(graphs=1)
def test_detach():
    def fn(x):
        y = x.exp()
        return y * y.detach(), y.detach().requires_grad

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_data():
    return lambda x: (x.data * 2, x * x.data), [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_in_place_on_an_intermediate():
    def fn(x):
        y = x * 2
        y.add_(1).mul_(x)
        y[0] = 0
        return y

    return fn, [(leaf(3, 2),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_in_place_through_a_view():
    def fn(x):
        y = x * 2
        row = y[1]
        row.mul_(3)
        y.t()[0].zero_()
        return y, row

    return fn, [(leaf(3, 2),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_in_place_on_an_input_without_gradients():
    def fn(x, w):
        x.add_(w)
        return x * 2

    return fn, [(tensor(3), leaf(3)) for _ in range(3)], None


@on_both_backends(graphs=1)
def test_in_place_on_a_computed_input():
    def fn(x):
        x.mul_(2)
        return x + 1

    return fn, [(computed(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_only_a_computed_input_is_written():
    def fn(x, w):
        x.add_(w)

    return fn, [(computed(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_in_place_on_a_view_of_an_input():
    def fn(x):
        x[0].mul_(2)
        return x.sum()

    return fn, [(computed(3, 2),) for _ in range(3)]


@on_both_backends(graphs=0, eager=["user-exception"])
def test_in_place_on_a_leaf_raises():
    def fn(x):
        x.mul_(2)
        return x

    return fn, [(leaf(3),), (leaf(3),), (leaf(3),)]


@on_both_backends(graphs=1)
def test_in_place_on_what_backward_needs_raises_in_backward():
    def fn(x):
        y = x.exp()
        y.add_(1)
        return y

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_update_of_a_leaf_without_gradients():
    def fn(w, g):
        with torch.no_grad():
            w.sub_(g, alpha=0.1)
        return w.is_leaf, w.requires_grad

    return fn, [(leaf(3), tensor(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_copy_into_a_leaf_then_use_it():
    def fn(w, x):
        with torch.no_grad():
            w.copy_(x)
        return (w * x).sum()

    return fn, [(leaf(3), tensor(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_views_of_an_input_come_out():
    return lambda x: (x[0], x.t(), x.view(-1)), [(computed(3, 2),), (leaf(3, 2),), (leaf(3, 2),)]


@on_both_backends(graphs=1)
def test_input_comes_out():
    return lambda x, w: (x, w, x * w), [(leaf(3), computed(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_index_put_and_masked_fill():
    def fn(x, mask):
        y = x.clone()
        y[mask] = 0.0
        y.masked_fill_(x > 1, 3.0)
        return y * x

    return fn, [(leaf(4, 3), tensor(4, 3, dtype=torch.bool)) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_leaf_made_inside():
    def fn(x):
        w = torch.ones(3, requires_grad=True)
        return w * x, w

    return fn, [(leaf(3),), (tensor(3),), (tensor(3),)]


@on_both_backends(graphs=1, later=1)
def test_requires_grad_of_an_intermediate():
    def fn(x):
        y = (x * 2).detach().requires_grad_()
        z = y.sin()
        return y, z, y.is_leaf, z.is_leaf

    return fn, [(tensor(3),), (leaf(3),), (tensor(3),)]


@on_both_backends(graphs=1, later=1)
def test_requires_grad_of_an_input():
    def fn(x):
        x.requires_grad_()
        return x * 2, x.requires_grad

    return fn, [(tensor(3),), (tensor(3),), (leaf(3),)]


@on_both_backends(graphs=1, later=2)
def test_requires_grad_is_assigned():
    def fn(x, flag):
        x.requires_grad = flag
        return x * 2

    return fn, [(tensor(3), True), (leaf(3), True), (leaf(3), False)]


@on_both_backends(graphs=1)
def test_requires_grad_switched_off_and_on():
    def fn(w, x):
        w.requires_grad_(False)
        a = w * x
        w.requires_grad_(True)
        return a, w * x

    return fn, [(leaf(3), tensor(3)) for _ in range(3)]


@on_both_backends(graphs=0, eager=["user-exception"])
def test_requires_grad_of_integers_raises():
    return lambda x: x.requires_grad_(), [(tensor(3, dtype=torch.int64),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_retain_grad_of_an_intermediate():
    def fn(x):
        y = x * 2
        y.retain_grad()
        return y, y.sum(), y.retains_grad

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_retain_grad_of_an_input():
    def fn(x):
        x.retain_grad()
        return x * 2

    return fn, [(computed(3),), (leaf(3),), (computed(3),)]


@on_both_backends(graphs=1, later=2)
def test_flags_read():
    def fn(x, w):
        y = x * w
        return y, x.is_leaf, y.is_leaf, y.grad_fn is not None, w.requires_grad, y.detach().is_leaf

    return fn, [(leaf(3), computed(3)), (tensor(3), computed(3)), (computed(3), leaf(3))]


# ------------------------------------------------------------------------------------------------ random, modules


@on_both_backends(graphs=1)
def test_dropout():
    m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    return m, [(tensor(3, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_random_numbers_between():
    def fn(x):
        noise = torch.randn_like(x)
        y = F.dropout(x, 0.5) + noise
        return y * torch.bernoulli(torch.full_like(x, 0.5)) + torch.rand(3)

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_batch_norm():
    m = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return m, [(tensor(2, 2, 5, 5),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_batch_norm_without_affine_or_with_cumulative_average():
    m = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, momentum=0.3))
    return m, [(leaf(3, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_embedding():
    m = nn.Embedding(10, 4, padding_idx=0)
    return m, [(torch.randint(0, 10, (2, 5)),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_attention():
    m = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    return m, [(leaf(2, 3, 8), leaf(2, 3, 8), leaf(2, 3, 8)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_transformer_layer():
    m = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return m, [(tensor(2, 3, 8),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_lstm():
    m = nn.LSTM(4, 6, num_layers=2, dropout=0.1, batch_first=True)
    return m, [(leaf(2, 3, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_gru_cell_in_a_loop():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(4, 6)

        def forward(self, x):
            h = torch.zeros(x.shape[0], 6)
            for step in x.unbind(1):
                h = self.cell(step, h)
            return h

    return Net(), [(leaf(2, 3, 4),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_frozen_half():
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    m[0].requires_grad_(False)
    return m, [(tensor(3, 4),), (tensor(3, 4),), (leaf(3, 4),)]


@on_both_backends(graphs=1)
def test_shared_parameters():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.embed(ids))

    return Tied(), [(torch.randint(0, 10, (2, 3)),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_train_then_eval():
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3))

    def fn(x, train):
        return m(x) if m.training is train else m(x) * 2

    return fn, [(tensor(3, 4), True), (tensor(3, 4), False), (tensor(3, 4), True)], m


@on_both_backends(graphs=1)
def test_loss():
    m = nn.Linear(4, 3)

    def fn(x, y):
        logits = m(x)
        return F.cross_entropy(logits, y, label_smoothing=0.1) + F.mse_loss(logits, torch.zeros_like(logits))

    return fn, [(tensor(5, 4), torch.randint(0, 3, (5,))) for _ in range(3)], m


@on_both_backends(graphs=1)
def test_complex_numbers():
    def fn(x):
        z = torch.complex(x, x * 2)
        return (z * z.conj()).real, z.abs(), z.angle()

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_higher_rank_reductions():
    def fn(x):
        return x.logsumexp(-1), x.var(0), x.softmax(1), x.cumsum(0), x.max(1).values, x.prod(), x.norm()

    return fn, [(leaf(3, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_weight_norm_parametrization():
    number_handles()
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    return m, [(tensor(2, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_spectral_norm_in_train_mode():
    number_handles()
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))
    return m, [(tensor(2, 4),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_effects_and_gradients():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.log = []
            self.last = None

        def forward(self, x):
            h = self.linear(x)
            self.log.append(h)
            self.last = h.detach()
            return h.sum()

    return Net(), [(tensor(2, 4),) for _ in range(3)]


# ---------------------------------------------------------------------------------------------- custom functions


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Several(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        index = x.argmax(-1)
        ctx.mark_non_differentiable(index)
        return x + 1, index, x * 2, None, "text"

    @staticmethod
    def backward(ctx, a, _, b, *rest):
        total = 0
        for part, weight in ((a, 2), (b, 3)):
            if part is not None:
                total = total + part * weight
        return total


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class Same(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return -g


class Options(Function):
    @staticmethod
    def forward(ctx, x, options, *rest):
        ctx.options = options
        return sum(rest, x * options["scale"])

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.options["scale"], None, *[g] * (len(ctx.needs_input_grad) - 2))


class WithModule(Function):
    @staticmethod
    def forward(ctx, x, module):
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            out = module(inner)
        ctx.save_for_backward(inner, out)
        return out.detach()

    @staticmethod
    def backward(ctx, g):
        inner, out = ctx.saved_tensors
        return torch.autograd.grad(out, inner, g)[0], None


class Random(Function):
    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.5
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


CALLS = []


class Counting(Function):
    @staticmethod
    def forward(ctx, x):
        CALLS.append(len(CALLS))
        return x * len(CALLS)

    @staticmethod
    def backward(ctx, g):
        CALLS.append("backward")
        return g


class Raising(Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("not today")


APPLIED = {
    "double": lambda x: Double.apply(x) + 1,
    "twice": lambda x: Double.apply(Double.apply(x)),
    "saved": lambda x: Saved.apply(x, x.cos(), 3.0),
    "setup_context": lambda x: Context.apply(x, 3),
    "setup_context_defaults": lambda x: Context.apply(x),
    "dirty": lambda x: Dirty.apply(x * 1),
    "several": lambda x: Several.apply(x),
    "once_differentiable": lambda x: Once.apply(x) * 2,
    "same": lambda x: Same.apply(x),
    "options": lambda x: Options.apply(x, {"scale": 2.0}, x * 2, x * 3),
    "random": lambda x: Random.apply(x) + torch.rand(3),
    "no_grad": lambda x: (torch.no_grad()(Double.apply)(x), Double.apply(x)),
    "detached": lambda x: Double.apply(x.detach()),
    "chained": lambda x: Same.apply(Saved.apply(x, Double.apply(x), 2.0)).sum(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", APPLIED)
def test_custom_function(name, backend):
    fn = APPLIED[name]
    program(graphs=1, later=1, backend=backend)(
        lambda: (fn, [(leaf(3),), (leaf(3),), (tensor(3),), (computed(3),)])
    )()


@on_both_backends(graphs=1)
def test_custom_function_with_a_module():
    m = nn.Linear(3, 3)
    return lambda x: WithModule.apply(x, m), [(leaf(2, 3),) for _ in range(3)], m


@on_both_backends(graphs=1, later=1, breaks=["unsupported-effect"])
def test_custom_function_with_effects():
    CALLS.clear()
    return lambda x: Counting.apply(x) + 1, [(leaf(3),), (leaf(3),), (tensor(3),)], CALLS


@on_both_backends(graphs=0, eager=["unsupported-effect"])
def test_custom_function_raises():
    def fn(x):
        try:
            return Raising.apply(x)
        except ValueError as e:
            return x, str(e)

    return fn, [(leaf(3),), (leaf(3),), (tensor(3),)]


def _custom_function_after_an_effect():
    seen = []

    class Reads(Function):
        @staticmethod
        def forward(ctx, x):
            return x * len(seen)

        @staticmethod
        def backward(ctx, g):
            return g * 7

    def fn(x):
        seen.append(1)
        return Reads.apply(x)

    return fn, [(leaf(3),), (leaf(3),), (leaf(3),)], seen


def test_custom_function_after_an_effect():
    """The call of a graph that autograd runs would come before the effect."""
    program(graphs=1, later=2)(_custom_function_after_an_effect)()
    program(graphs=0, breaks=["unsupported-effect"], backend="eager")(_custom_function_after_an_effect)()


@on_both_backends(graphs=1, later=2, breaks=["unsupported-object"])
def test_custom_function_made_inside():
    def fn(x, k):
        class Local(Function):
            @staticmethod
            def forward(ctx, x):
                return x * k

            @staticmethod
            def backward(ctx, g):
                return g * k * 2

        return Local.apply(x)

    return fn, [(leaf(3), 2), (leaf(3), 2), (leaf(3), 3)]


@on_both_backends(graphs=0, breaks=["unsupported-effect"])
def test_custom_function_is_redefined():
    class Changing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def fn(x):
        return Changing.apply(x)

    def redefine(x, k):
        def forward(ctx, x):
            return x * k

        Changing.forward = staticmethod(forward)
        return x

    class Step:
        def __call__(self, x, k):
            return fn(redefine(x, k))

    return Step(), [(leaf(3), 2), (leaf(3), 3), (leaf(3), 4)]


# ------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("style", ["module", "method", "lambda", "partial", "closure"])
def test_checkpoint(style, reentrant, backend):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Tanh()) for _ in range(2)
            )

        def part(self, i, x):
            return self.blocks[i](x)

        def target(self, i):
            block = self.blocks[i]
            return {
                "module": block,
                "method": block.forward,
                "lambda": lambda x: block(x),
                "partial": functools.partial(self.part, i),
                "closure": self.closure(block),
            }[style]

        def closure(self, module):
            def run(*inputs):
                return module(*inputs)

            return run

        def forward(self, x):
            for i in range(2):
                x = checkpoint(self.target(i), x, use_reentrant=reentrant)
            return x

    program(graphs=1, backend=backend)(lambda: (Net(), [(leaf(3, 4),), (leaf(3, 4),), (computed(3, 4),)]))()


@on_both_backends(graphs=1, later=2)
def test_checkpoint_with_several_arguments():
    m = nn.Bilinear(3, 3, 2)

    def part(a, b, scale, flag=True):
        return m(a, b) * scale, a + b if flag else None

    def fn(a, b):
        y, z = checkpoint(part, a, b, 2.0, use_reentrant=False, flag=True)
        return y.sum() + z.sum()

    return fn, [(leaf(2, 3), tensor(2, 3)), (leaf(2, 3), leaf(2, 3)), (tensor(2, 3), tensor(2, 3))], m


@on_both_backends(graphs=1)
def test_checkpoint_of_a_closure_over_a_tensor():
    m = nn.Linear(3, 3)

    def fn(x, mask):
        scale = mask * 2
        return checkpoint(lambda y: m(y) * scale, x, use_reentrant=False)

    return fn, [(leaf(2, 3), tensor(2, 3)) for _ in range(3)], m


@on_both_backends(graphs=1, later=1)
def test_checkpoint_of_partials_over_tensors():
    m = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def part(module, x, mask=None, options=()):
        return module(x) * mask + len(options)

    def fn(x):
        mask = (x > 0).float()
        for layer in m:
            x = checkpoint(
                functools.partial(part, layer, mask=mask, options=[1, mask]), x, use_reentrant=False
            )
        return x

    return fn, [(leaf(2, 3),), (leaf(2, 3),), (tensor(2, 3),)], m


@on_both_backends(graphs=0, breaks=["unsupported-effect", "unsupported-object"])
def test_checkpoint_whose_function_counts():
    def fn(x):
        count = 0

        def part(y):
            nonlocal count
            count += 1
            return y * count

        a = checkpoint(part, x, use_reentrant=True)
        b = checkpoint(part, a, use_reentrant=True)
        return b, count

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=0, eager=["unsupported-object"])
def test_checkpoint_that_keeps_a_tensor():
    def fn(x):
        kept = []

        def part(y):
            kept.append(y.exp())
            return y * kept[0]

        return checkpoint(part, x, use_reentrant=False), kept

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=0, breaks=["unsupported-effect"])
def test_checkpoint_with_effects():
    seen = []

    def part(x):
        seen.append(len(seen))
        return x.sin()

    return lambda x: checkpoint(part, x, use_reentrant=False), [(leaf(3),) for _ in range(3)], seen


@on_both_backends(graphs=1, grad=False)
def test_checkpoint_without_gradients():
    m = nn.Linear(3, 3)
    return lambda x: checkpoint(m, x, use_reentrant=False), [(tensor(2, 3),) for _ in range(3)], m


# ----------------------------------------------------------------------------------------------------- hooks


@on_both_backends(graphs=1)
def test_hook_on_an_intermediate():
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        return y.sin()

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_hook_on_an_input():
    seen = []

    def fn(x):
        x.register_hook(seen.append)
        return x * 2

    return fn, [(leaf(3),), (computed(3),), (leaf(3),)], seen


@on_both_backends(graphs=1, later=1)
def test_hook_with_a_closure_over_computed_values():
    def fn(x, k):
        y = x * k
        z = y.exp()
        y.register_hook(lambda g: g * z.detach() + k)
        return z

    return fn, [(leaf(3), 2), (leaf(3), 2), (leaf(3), 3)]


@on_both_backends(graphs=1)
def test_hook_that_is_removed():
    def fn(x):
        y = x * 2
        handle = y.register_hook(lambda g: g * 10)
        kept = y.register_hook(lambda g: g + 1)
        handle.remove()
        return y.sin(), kept is None

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1, breaks=["unsupported-call"])
def test_hook_whose_handle_comes_out():
    def fn(x):
        y = x * 2
        return y, y.register_hook(lambda g: g * 10).id >= 0

    return fn, [(leaf(3),) for _ in range(3)]


@program(graphs=1)
def handles_of_hooks_leave():
    holder = types.SimpleNamespace(handles=[])

    def fn(x):
        y = x * 2
        first, second = y.register_hook(lambda g: g * 10), x.register_hook(lambda g: g + 1)
        gone = y.register_hook(lambda g: g * 100)
        gone.remove()
        holder.handles.append(second)
        return y.sin(), {"first": first}

    return fn, [(leaf(3),) for _ in range(3)], holder


def test_a_returned_handle_of_a_module_s_hook():
    def run(compile):
        torch.manual_seed(0)
        layer = nn.Linear(3, 3)

        def fn(x):
            handle = layer.register_forward_hook(lambda module, args, out: out * 2)
            return layer(x), handle

        compiled, results = compile(fn), []
        for _ in range(3):
            y, handle = compiled(torch.ones(3))
            handle.remove()
            results.append((y.tolist(), layer(torch.ones(3)).tolist(), len(layer._forward_hooks)))
        return results

    assert run(functools.partial(smelt.compile, fullgraph=True)) == run(lambda fn: fn)


@pytest.mark.parametrize("made", [False, True], ids=["argument", "created"])
def test_a_returned_handle_removes_its_hook(made):
    def fn(x):
        y = x * 2 if made else x
        return y, y.register_hook(lambda g: g * 3), (y + 1).sum()

    def run(function):
        results = []
        for remove in (False, True):
            x = torch.ones(2, requires_grad=True)
            _, handle, loss = function(x)
            if remove:
                handle.remove()
            loss.backward()
            results.append((x.grad.tolist(), type(handle), handle.id in (handle.hooks_dict_ref() or ())))
        return results

    assert run(smelt.compile(fn, fullgraph=True)) == run(fn)


@on_both_backends(graphs=0, eager=["unsupported-effect"])
def test_hook_before_an_in_place_operation():
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        y.mul_(3)
        return y

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=0, eager=["user-exception"])
def test_hook_on_what_needs_no_gradient_raises():
    def fn(x):
        x.register_hook(print)
        return x

    return fn, [(tensor(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_hook_after_accumulation():
    seen = []

    def fn(w, x):
        w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        return w * x

    return fn, [(leaf(3), tensor(3)) for _ in range(3)], seen


@on_both_backends(graphs=2, breaks=["unsupported-call"])
def test_full_backward_hook_of_a_submodule():
    number_handles()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.seen = []
            self.a.register_full_backward_hook(self.note)

        def note(self, module, grad_in, grad_out):
            self.seen.append(grad_out[0].sum())
            return (grad_in[0] * 2,)

        def forward(self, x):
            return self.b(self.a(x.sin()).relu())

    return Net(), [(leaf(2, 3),) for _ in range(3)]


@on_both_backends(graphs=0, breaks=["unsupported-call"])
def test_backward_hook_of_the_module_itself():
    number_handles()
    m = nn.Linear(3, 3)
    seen = []
    m.register_full_backward_hook(lambda module, i, o: seen.append(o[0].sum()))
    m.register_full_backward_pre_hook(lambda module, o: (o[0] * 2,))
    return m, [(leaf(2, 3),) for _ in range(3)], seen


@on_both_backends(graphs=1)
def test_forward_hooks():
    number_handles()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.a.register_forward_hook(lambda m, args, out: out * 2)
            self.a.register_forward_pre_hook(lambda m, args: (args[0] + 1,))

        def forward(self, x):
            return self.a(x)

    return Net(), [(leaf(2, 3),) for _ in range(3)]


@on_both_backends(graphs=0, eager=["unsupported-call"])
def test_hook_on_a_node():
    def fn(x):
        y = x * 2
        y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 10,))
        return y

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1, breaks=["unsupported-call", "unsupported-call"])
def test_saved_tensor_hooks_inside():
    def fn(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: [t.clone()], lambda packed: packed[0]):
            y = x.exp() * x
        return y

    return fn, [(leaf(3),) for _ in range(3)]


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
def test_saved_tensor_hooks_of_the_caller(backend):
    """They see what is saved, which need not be what eager saves."""
    packed = []

    def pack(t):
        packed.append(t)
        return len(packed) - 1

    def run(fn):
        x = torch.arange(3.0, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
            y = fn(x)
        y.sum().backward()
        return x.grad

    def fn(x):
        return x.exp() * x

    want = run(fn)
    packed.clear()
    assert torch.allclose(run(smelt.compile(fn, backend=backend)), want) and packed


# --------------------------------------------------------------------------------- grad, backward inside the function


@on_both_backends(graphs=1, later=1)
def test_grad_inside():
    def fn(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad((x**3).sum(), x)[0]

    return fn, [(tensor(3),), (leaf(3),), (tensor(3),)]


@on_both_backends(graphs=1, later=1)
def test_gradient_penalty():
    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def fn(x):
        x = x.requires_grad_()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + ((g.norm(dim=1) - 1) ** 2).mean()

    return fn, [(tensor(2, 3),), (leaf(2, 3),), (tensor(2, 3),)], m


@on_both_backends(graphs=1)
def test_grad_with_weights_and_unused():
    def fn(x, w):
        y = x * x
        return torch.autograd.grad(y, (x, w), grad_outputs=torch.ones_like(y), allow_unused=True)

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_grad_through_another_function():
    w = leaf(3)

    def fn(x):
        return torch.autograd.grad((x * 2).sum(), w, retain_graph=True)

    class Outer:
        def __call__(self):
            return fn(w.sin())

    return Outer(), [(), (), ()], w


@on_both_backends(graphs=1, breaks=["unsupported-call"])
def test_grad_of_a_computed_input():
    w = leaf(3)

    def fn(x):
        return torch.autograd.grad((x * 2).sum(), w)

    return fn, [(w.sin(),), (w.cos(),), (w.exp(),)], w


@on_both_backends(graphs=1)
def test_grad_through_a_custom_function():
    def fn(x):
        return torch.autograd.grad(Double.apply(x).sum(), x)[0], torch.autograd.grad(
            Saved.apply(x, x, 2.0).sum(), x
        )[0]

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_hessian_vector_product():
    def fn(x, v):
        (g,) = torch.autograd.grad((x**4).sum(), x, create_graph=True)
        return torch.autograd.grad(g, x, v)

    return fn, [(leaf(3), tensor(3)) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_backward_inside():
    m = nn.Linear(3, 2)

    def fn(x):
        loss = m(x).pow(2).mean()
        loss.backward()
        return loss.detach()

    return fn, [(tensor(2, 3),) for _ in range(3)], m


@on_both_backends(graphs=1)
def test_backward_then_more():
    def fn(x, w):
        y = (x * w).sum()
        y.backward(retain_graph=True)
        return w.grad * 2, y

    return fn, [(tensor(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_backward_of_two_losses():
    m = nn.Linear(3, 2)

    def fn(x):
        h = m(x)
        a, b = h[:, 0].sum(), h[:, 1].pow(2).sum()
        torch.autograd.backward([a, b], retain_graph=True)
        return a + b

    return fn, [(tensor(2, 3),) for _ in range(3)], m


# ------------------------------------------------------------------------------------------------ state of tensors


@on_both_backends(graphs=1, later=1)
def test_grad_is_read():
    w = leaf(3)

    def fn(x):
        return x * 2 if w.grad is None else x + w.grad

    def step(x):
        return fn(x)

    def set_grad():
        w.grad = tensor(3).to(w.device)

    return step, Changing([(tensor(3),) for _ in range(4)], {2: set_grad}), w


@on_both_backends(graphs=1, later=1)
def test_grad_accumulates_between_calls():
    m = nn.Linear(3, 1)

    def fn(x):
        total = m(x).sum()
        return total if m.weight.grad is None else total + m.weight.grad.sum()

    return fn, [(tensor(2, 3),) for _ in range(4)], m


@on_both_backends(graphs=1)
def test_grad_is_set_to_none():
    def fn(w, x):
        w.grad = None
        return w * x, w.grad

    def with_grad():
        w = leaf(3)
        w.grad = tensor(3)
        return w

    return fn, [(leaf(3), tensor(3)), (with_grad(), tensor(3)), (with_grad(), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_grad_is_set():
    def fn(w, x):
        w.grad = x * 2
        return w.grad + 1

    return fn, [(leaf(3), tensor(3)), (tensor(3), tensor(3)), (leaf(3), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_gradients_are_clipped_by_hand():
    m = nn.Linear(3, 2)

    def prepared():
        for p in m.parameters():
            p.grad = torch.randn_like(p)
        return 0.1

    def fn(limit):
        norm = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
        with torch.no_grad():
            for p in m.parameters():
                p.grad.mul_(limit / norm)
        return norm

    return fn, [(prepared(),), (0.1,), (0.2,)], m


@on_both_backends(graphs=1, later=1)
def test_clip_grad_norm():
    m = nn.Linear(3, 2)
    for p in m.parameters():
        p.grad = torch.randn_like(p)
    return lambda limit: nn.utils.clip_grad_norm_(m.parameters(), limit), [(0.1,), (0.05,), (0.01,)], m


@on_both_backends(graphs=1, later=1)
def test_attributes_of_tensors():
    def fn(w, x):
        w.scale = 3
        w.last = x * w
        return w.last * w.scale

    return fn, [(leaf(3), tensor(3)), (tensor(3), tensor(3)), (leaf(3), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_attribute_of_a_computed_tensor():
    def fn(x):
        y = x * 2
        y.note = ["computed", x]
        return y

    return fn, [(leaf(3),), (tensor(3),), (tensor(3),)], None


@on_both_backends(graphs=1, later=1, breaks=["unsupported-effect"])
def test_data_is_set():
    def fn(w, x):
        w.data = x * 2
        return w * x

    return fn, [(leaf(3), tensor(3)), (tensor(3), tensor(3)), (leaf(3), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_manual_descent():
    m = nn.Linear(3, 2)
    for p in m.parameters():
        p.grad = torch.randn_like(p)

    def fn(rate):
        with torch.no_grad():
            for p in m.parameters():
                p -= rate * p.grad
                p.grad = None if rate > 1 else p.grad * 0.5

    return fn, [(0.1,), (0.1,), (0.2,)], m


# -------------------------------------------------------------------------------------------------- training steps


def _training(make_optimizer, **options):
    def factory():
        m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        optimizer = make_optimizer(m.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        state = lambda: (dict(m.state_dict()), [list(s.items()) for s in optimizer.state.values()])
        return step, [(tensor(5, 4), torch.randint(0, 2, (5,))) for _ in range(4)], state

    return factory


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam_foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_step(name):
    program(graphs=1, later=1)(_training(OPTIMIZERS[name]))()


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adam_fused"])
def test_optimizer_step_alone(name):
    def factory():
        m = nn.Linear(3, 2)
        optimizer = OPTIMIZERS[name](m.parameters())
        for p in m.parameters():
            p.grad = torch.randn_like(p)

        def step(scale):
            optimizer.step()
            return m.weight * scale

        return step, [(1.0,), (1.0,), (2.0,)], m

    program(graphs=1, later=1 if name == "sgd" else 2)(factory)()


@on_both_backends(graphs=1)
def test_zero_grad_is_captured():
    m = nn.Linear(3, 2)
    m(tensor(2, 3)).sum().backward()
    optimizer = torch.optim.SGD(m.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        return m(x)

    return step, [(tensor(2, 3),) for _ in range(3)], lambda: [p.grad for p in m.parameters()]


@on_both_backends(graphs=1, later=3)
def test_scheduler_in_the_step():
    m = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x):
        optimizer.zero_grad(set_to_none=False)
        loss = m(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach(), scheduler.get_last_lr()[0]

    return step, [(tensor(2, 3),) for _ in range(4)], m


@on_both_backends(graphs=1)
def test_accumulation_over_microbatches():
    m = nn.Linear(3, 2)

    def step(batches):
        total = 0.0
        for x in batches:
            loss = m(x).pow(2).mean() / len(batches)
            loss.backward()
            total = total + loss.detach()
        with torch.no_grad():
            for p in m.parameters():
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        return total

    return step, [([tensor(2, 3), tensor(2, 3)],) for _ in range(3)], m


# ------------------------------------------------------------------------------------- gradients across graph breaks


@on_both_backends(graphs=2, breaks=["data-dependent-condition"], options=BREAKS)
def test_across_a_break():
    def fn(x, w):
        y = (x * w).relu()
        if y.sum() > 0:
            y = y * 2
        return (y @ w).sum()

    return fn, [(leaf(3), leaf(3)) for _ in range(4)]


@on_both_backends(graphs=1)
def test_across_both_branches_of_a_condition():
    def fn(x, w):
        y = (x * w).relu()
        if x.sum() > 0:
            y = y * 2
        return (y @ w).sum()

    return fn, [(leaf(3), leaf(3)) for _ in range(4)]


@on_both_backends(graphs=2, later=1, breaks=["data-dependent-value"])
def test_break_under_no_grad():
    def fn(x, w):
        with torch.no_grad():
            scale = (x * w).max()
            scale = scale.tolist()
        return x * scale + w

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=2, later=1, breaks=["data-dependent-value"])
def test_break_between_in_place_operations():
    def fn(x):
        y = x * 2
        y.add_(1)
        n = int(y.detach().abs().sum().tolist() * 0)
        y.mul_(n + 2)
        return y

    return fn, [(leaf(3),), (computed(3),), (leaf(3),)]


@on_both_backends(graphs=2, later=2, breaks=["data-dependent-value"])
def test_break_in_a_submodule_with_parameters():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            h = self.linear(x)
            if h.mean().tolist() > 100:
                return h
            return torch.sigmoid(h)

    m = nn.Sequential(nn.Linear(4, 4), Gate(), nn.Dropout(0.5), nn.Linear(4, 2))
    return m, [(tensor(3, 4),), (tensor(3, 4),), (leaf(3, 4),)]


@on_both_backends(graphs=1)
def test_break_with_a_hook_before_it():
    def fn(x):
        y = x * 2
        y.register_hook(lambda g: g * 10)
        print("half way")
        return y.sin()

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=2, later=2, breaks=["data-dependent-value"])
def test_custom_function_whose_forward_breaks():
    class Reads(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.scale = x.detach().abs().max().tolist()
            return x * ctx.scale

        @staticmethod
        def backward(ctx, g):
            return g * ctx.scale

    return lambda x: Reads.apply(x * 2) + 1, [(leaf(3),), (leaf(3),), (tensor(3),)]


@on_both_backends(graphs=1)
def test_views_across_a_break():
    def fn(x):
        y = x * 2
        row = y[0]
        print(y.shape)
        row.mul_(3)
        return y, row

    return fn, [(leaf(3, 2),) for _ in range(3)]
