"""Idioms of training code: parameters made anew, derivatives of derivatives, estimators, checkpointed models."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import smelt
from benchmarks import models
from smelt import events
from tests.harness.catalogue import computed, leaf, number_handles, on_both_backends, program, tensor
from tests.harness.differentiable import Context, Saved

hf = models.hf


@on_both_backends(graphs=1, later=1)
def test_parameter_made_inside():
    def fn(x):
        p = nn.Parameter(x * 2)
        q = nn.Parameter(x * 3, requires_grad=False)
        return p, q, (p * x).sum(), isinstance(p, nn.Parameter)

    return fn, [(leaf(3),), (tensor(3),), (tensor(3),)]


@on_both_backends(graphs=1, later=1)
def test_parameter_stored_in_a_module():
    m = nn.Linear(3, 3)

    def fn(x):
        m.extra = nn.Parameter(x.detach() * 2)
        m.weight = nn.Parameter(m.weight.detach() * 0.5)
        return m(x) * m.extra

    return fn, [(leaf(2, 3),), (tensor(2, 3),), (tensor(2, 3),)], m


@on_both_backends(graphs=1, later=1)
def test_deepcopy_of_a_module():
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def fn(x):
        twin = copy.deepcopy(m)
        return twin(x), [type(p).__name__ for p in twin.parameters()], list(twin.parameters())

    return fn, [(leaf(2, 3),), (tensor(2, 3),), (tensor(2, 3),)], m


@on_both_backends(graphs=1, later=1)
def test_forward_mode():
    def fn(x, t):
        with fwAD.dual_level():
            d = fwAD.make_dual(x, t)
            return fwAD.unpack_dual(d.sin() * d).tangent

    return fn, [(leaf(3), tensor(3)), (tensor(3), tensor(3)), (leaf(3), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_break_in_a_level_of_forward_mode():
    def fn(x, t):
        with fwAD.dual_level():
            d = fwAD.make_dual(x, t).sin()
            print(d.shape)
            return fwAD.unpack_dual(d * 2).tangent

    return fn, [(tensor(3), tensor(3)), (leaf(3), tensor(3)), (tensor(3), tensor(3))]


@on_both_backends(graphs=1, later=1)
def test_vmap_of_parameters():
    m = nn.Linear(3, 2)

    def fn(x):
        return torch.vmap(lambda row: m(row).sum())(x)

    return fn, [(leaf(4, 3),), (tensor(4, 3),), (tensor(4, 3),)], m


@on_both_backends(graphs=1, later=1)
def test_functional_call():
    m = nn.Sequential(nn.Linear(3, 2), nn.Tanh())

    def fn(x, scale):
        params = {k: v * scale for k, v in m.named_parameters()}
        return torch.func.functional_call(m, params, (x,))

    return fn, [(leaf(4, 3), 2.0), (tensor(4, 3), 2.0), (tensor(4, 3), 2.0)], m


@on_both_backends(graphs=1, later=1)
def test_func_grad_under_autograd():
    w = leaf(3)

    def fn(x):
        return torch.func.grad(lambda y: (y * w).sin().sum())(x)

    return fn, [(leaf(3),), (tensor(3),), (tensor(3),)], w


@on_both_backends(graphs=1)
def test_maml():
    m = nn.Linear(3, 1)

    def fn(x, y):
        params = dict(m.named_parameters())
        loss = F.mse_loss(torch.func.functional_call(m, params, (x,)), y)
        grads = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
        return F.mse_loss(torch.func.functional_call(m, fast, (x,)), y)

    return fn, [(tensor(4, 3), tensor(4, 1)) for _ in range(3)], m


@on_both_backends(graphs=0, breaks=["unsupported-call"])
def test_function_inside_vmap():
    class Square(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * 5 * ctx.saved_tensors[0]

    return lambda x: torch.vmap(Square.apply)(x), [(leaf(4, 3),), (tensor(4, 3),), (leaf(4, 3),)]


@on_both_backends(graphs=0, breaks=["unsupported-call"])
def test_function_inside_func_grad():
    return lambda x: torch.func.grad(lambda y: Context.apply(y, 3).sum())(x), [
        (leaf(3),),
        (tensor(3),),
        (tensor(3),),
    ]


@on_both_backends(graphs=1, later=1)
def test_jacobian():
    return lambda x: torch.autograd.functional.jacobian(lambda y: y.sin() * y.sum(), x), [
        (leaf(3),),
        (tensor(3),),
        (tensor(3),),
    ]


@on_both_backends(graphs=1)
def test_hvp_functional():
    return lambda x, v: torch.autograd.functional.hvp(lambda y: (y**3).sum(), x, v)[1], [
        (tensor(3), tensor(3)) for _ in range(3)
    ]


@on_both_backends(graphs=1, later=1)
def test_detach_in_place():
    def fn(x):
        y = x * 2
        y.detach_()
        return y * x, y.requires_grad

    return fn, [(leaf(3),), (computed(3),), (tensor(3),)]


@on_both_backends(graphs=1, breaks=["unsupported-effect"])
def test_detach_in_place_of_an_input():
    def fn(x):
        x.detach_()
        return x * 2, x.requires_grad

    return fn, [(computed(3),), (leaf(3),), (computed(3),)]


@on_both_backends(graphs=1)
def test_straight_through_estimator():
    def fn(x):
        hard = (x > 0).float()
        return x + (hard - x).detach()

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_gumbel_softmax_hard():
    return lambda x: F.gumbel_softmax(x, tau=0.5, hard=True), [(leaf(2, 5),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_ema_update():
    m, ema = nn.Linear(3, 3), nn.Linear(3, 3)

    @torch.no_grad()
    def update(decay):
        for p, q in zip(m.parameters(), ema.parameters()):
            q.mul_(decay).add_(p, alpha=1 - decay)

    def fn(x, decay):
        update(decay)
        return m(x) + ema(x).detach()

    return fn, [(tensor(2, 3), 0.9), (tensor(2, 3), 0.9), (tensor(2, 3), 0.8)], [m, ema]


@on_both_backends(graphs=1)
def test_queue_update_of_a_buffer():
    class Moco(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.register_buffer("queue", torch.zeros(6, 4))
            self.register_buffer("at", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            k = self.linear(x)
            with torch.no_grad():
                self.queue[:2] = k.detach()
                self.at.add_(2)
            return k @ self.queue.clone().t()

    return Moco(), [(tensor(2, 3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_in_place_activation_and_residual():
    m = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv1d(4, 2, 1))
    return lambda x: m(x).add_(x), [(leaf(2, 2, 5),) for _ in range(3)], m


@on_both_backends(graphs=0, eager=["user-exception"])
def test_split_chunk_unbind_then_in_place_raises():
    def fn(x):
        a, b = (x * 2).chunk(2)
        a.add_(1)
        return a + b

    return fn, [(leaf(4),) for _ in range(3)]


@on_both_backends(graphs=0, eager=["user-exception"])
def test_no_grad_view_written_later_raises():
    def fn(x):
        y = x * 2
        with torch.no_grad():
            v = y[0]
        v.mul_(3)
        return y

    return fn, [(leaf(3, 2),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_result_is_shared_with_a_stored_tensor():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.hidden = None

        def forward(self, x):
            h = self.linear(x)
            self.hidden = h if self.hidden is None else self.hidden.detach() + h
            return self.hidden

    return Cache(), [(tensor(2, 3),) for _ in range(4)]


@on_both_backends(graphs=1, later=1)
def test_recurrent_state_that_needs_gradients():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.hidden = torch.zeros(2, 3)

        def forward(self, x):
            self.hidden = self.linear(x) + self.hidden
            return self.hidden

    return Cache(), [(tensor(2, 3),) for _ in range(3)]


def gradient_checkpointing(reentrant):
    def factory():
        number_handles()
        config = hf.BertConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20
        )
        m = hf.BertModel(config).train()
        m.gradient_checkpointing_enable({"use_reentrant": reentrant})
        ids = torch.randint(0, 20, (1, 5))
        mask = torch.ones(1, 5, dtype=torch.long)
        return (
            (lambda i: m(input_ids=i, attention_mask=mask).last_hidden_state),
            [(ids,), (ids,), (ids,)],
            list(m.parameters()),
        )

    return factory


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    """The model sets a context variable before its layers."""
    program(graphs=1)(gradient_checkpointing(reentrant))()


@program(graphs=1, later=1, breaks=["unsupported-effect"])
def test_checkpoint_that_reads_what_was_changed_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.calls = nn.Linear(3, 3), 0

        def part(self, x):
            return self.linear(x) * self.calls

        def forward(self, x):
            self.calls = self.calls % 2 + 1
            return checkpoint(self.part, x, use_reentrant=False).sin()

    return Counting(), [(leaf(2, 3),) for _ in range(4)]


@pytest.mark.parametrize("given", [leaf, tensor])
def test_reentrant_checkpoint_has_a_joint_graph(given):
    """And none at all where its input has no gradient, as in eager."""

    def factory():
        linear = nn.Linear(3, 3)
        return (
            (lambda x: checkpoint(lambda y: linear(y).tanh(), x, use_reentrant=True) * 2),
            [(given(2, 3),) for _ in range(3)],
            linear,
        )

    joint = []
    with events.subscribed(lambda e: joint.append(e.kind) if e.kind == "backward-compiled" else None):
        program(graphs=1)(factory)()
    assert len(joint) == (given is leaf)


ASKING = {
    "grad mode": lambda x: torch.is_grad_enabled(),
    "requires_grad": lambda x: (x * 2).requires_grad,
    "grad_fn": lambda x: (x * 2).grad_fn is not None,
    "is_leaf": lambda x: not (x * 2).is_leaf,
}


@pytest.mark.parametrize("what", ASKING)
def test_reentrant_checkpoint_that_asks_for_gradients(what):
    """Its forward runs without, its backward with."""

    def part(x):
        return x * (2 if ASKING[what](x) else 3)

    def factory():
        return lambda x: checkpoint(part, x, use_reentrant=True).sin(), [(leaf(2, 3),) for _ in range(3)]

    program(graphs=1)(factory)()


@on_both_backends(graphs=1)
def test_custom_amp_function():
    class Mul(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g * w, g * x * 2

    def fn(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return Mul.apply(x @ w, w)

    return fn, [(leaf(3, 3), leaf(3, 3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_amp_scaler_like():
    m = nn.Linear(3, 2)
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def step(x, scale):
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(x).float().pow(2).mean()
        (loss * scale).backward()
        for p in m.parameters():
            p.grad.div_(scale)
        opt.step()
        opt.zero_grad()
        return loss.detach()

    return step, [(tensor(2, 3), 8.0) for _ in range(3)], m


def custom_function_keeps_a_tensor():
    class Keep(Function):
        @staticmethod
        def forward(ctx, x, kept):
            kept.append(x.exp())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g, None

    def fn(x):
        kept = []
        y = Keep.apply(x, kept)
        return y, kept

    return fn, [(leaf(3),) for _ in range(3)]


test_custom_function_keeps_a_tensor = program(graphs=0, eager=["unsupported-object"])(
    custom_function_keeps_a_tensor
)
test_call_of_a_custom_function_keeps_a_tensor = program(
    graphs=0, eager=["unsupported-effect"], backend="eager"
)(custom_function_keeps_a_tensor)


@on_both_backends(graphs=1)
def test_hook_registered_twice_in_a_loop():
    def fn(x):
        for i in range(3):
            x = x * 2
            x.register_hook(lambda g, i=i: g + i)
        return x

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_hook_that_prints():
    def fn(x):
        y = x * 2
        y.register_hook(print)
        return y

    return fn, [(leaf(2),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_requires_grad_toggled_for_generators():
    g, d = nn.Linear(3, 3), nn.Linear(3, 1)

    def fn(x):
        d.requires_grad_(False)
        loss = d(g(x)).mean()
        d.requires_grad_(True)
        return loss

    return fn, [(tensor(2, 3),) for _ in range(3)], [g, d]


@on_both_backends(graphs=1)
def test_weights_tied_by_assignment_inside():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)

    def fn(x):
        b.weight = a.weight
        return b(a(x))

    return fn, [(tensor(2, 3),) for _ in range(3)], [a, b]


@on_both_backends(graphs=1)
def test_sparse_embedding():
    m = nn.Embedding(10, 4, sparse=True)
    return m, [(torch.randint(0, 10, (2, 5)),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_nan_checks_and_where():
    def fn(x):
        y = torch.where(x > 0, x.clamp(min=1e-3).log(), torch.zeros_like(x))
        return torch.nan_to_num(y), y.isnan().any()

    return fn, [(leaf(5),) for _ in range(3)]


@on_both_backends(graphs=1)
def test_einsum_and_scaled_dot_product():
    def fn(q, k, v):
        s = torch.einsum("bqd,bkd->bqk", q, k)
        return s.softmax(-1) @ v + F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return fn, [(leaf(2, 3, 4), leaf(2, 3, 4), leaf(2, 3, 4)) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_numbers_that_change():
    def fn(x, k, n):
        y = (x * k).sin() + n
        return y.sum() / n

    return fn, [(leaf(3), 1.5, 1), (leaf(3), 2.5, 2), (leaf(3), 3.5, 3), (leaf(3), 4.5, 4)]


@on_both_backends(graphs=1, later=1, breaks=["unsupported-object"])
def test_custom_function_with_numbers_that_change():
    return lambda x, k: Saved.apply(x * k, x, k), [(leaf(3), 1.5 * i) for i in range(1, 6)]


@on_both_backends(graphs=1, breaks=["unsupported-object"])
def test_checkpoint_with_numbers_that_change():
    m = nn.Linear(3, 3)

    def part(x, k):
        return m(x) * k

    return (
        lambda x, k: checkpoint(part, x, k, use_reentrant=False),
        [(leaf(3), 1.5 * i) for i in range(1, 6)],
        m,
    )


@pytest.mark.parametrize(("backend", "later"), [("smelt", 2), ("eager", 1)])
def test_counter_in_a_trained_module(backend, later):
    """Once the count is known to change the graph breaks before the checkpoint, so that no count has a graph of its own."""
    program(graphs=1, later=later, breaks=["unsupported-effect"], backend=backend)(
        counter_in_a_trained_module
    )()


def counter_in_a_trained_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return checkpoint(self.linear, x, use_reentrant=False) * (1 / self.steps)

    return Net(), [(leaf(2, 3),) for _ in range(5)]


@pytest.mark.parametrize("where", ["hook", "forward", "backward"])
def test_compiled_function_called_by_autograd(where):
    def plain(g):
        with torch.enable_grad():
            return g * 2 + g.sin()

    def run(inner):
        class Calls(Function):
            @staticmethod
            def forward(ctx, x):
                return inner(x) if where == "forward" else x * 3

            @staticmethod
            def backward(ctx, g):
                return inner(g) if where == "backward" else g

        torch.manual_seed(0)
        x = torch.randn(4, requires_grad=True)
        for _ in range(3):
            y = Calls.apply(x)
            if where == "hook":
                y.register_hook(inner)
            y.sum().backward()
        return x.grad, y

    for got, want in zip(run(smelt.compile(plain)), run(plain), strict=True):
        torch.testing.assert_close(got, want)


def test_second_derivatives_of_a_compiled_function():
    def f(x, w):
        return (x * w).tanh().pow(3).sum()

    def run(fn):
        torch.manual_seed(0)
        x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        (g,) = torch.autograd.grad(fn(x, w), x, create_graph=True)
        g.pow(2).sum().backward()
        return x.grad, w.grad

    for got, want in zip(run(smelt.compile(f, fullgraph=True)), run(f), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("backend", ["smelt", "eager", "aot_eager"])
def test_gradcheck(backend):
    m = nn.Sequential(nn.Linear(3, 4), nn.Softplus(), nn.Linear(4, 2)).double()
    compiled = smelt.compile(m, backend=backend, fullgraph=True)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(compiled, (x,))
    assert torch.autograd.gradgradcheck(compiled, (x,))


@on_both_backends(graphs=1)
def test_break_under_modes_that_are_set_and_entered():
    def fn(x, w):
        torch.set_grad_enabled(False)
        with torch.enable_grad():
            y = x * w
            print(y.shape)
            z = y.sin()
        w.add_(1)
        torch.set_grad_enabled(True)
        return y, z

    return fn, [(leaf(3), leaf(3)) for _ in range(3)]


@on_both_backends(graphs=1)
def test_break_in_nested_modes():
    def fn(x):
        with torch.no_grad(), torch.enable_grad(), torch.no_grad():
            a = x * 2
            print("here")
            with torch.enable_grad():
                b = x * 3
                print("there")
            c = x * 4
        return a, b, c, x * 5

    return fn, [(leaf(3),) for _ in range(3)]


@on_both_backends(
    graphs=2, later=1, breaks=["data-dependent-condition", "unsupported-call", "unsupported-call"]
)
def test_break_in_inference_mode():
    def fn(x, w):
        with torch.inference_mode():
            y = x * w
            if y.sum() > 0:
                y = y * 2
        return y, x * w

    return fn, [(leaf(3), leaf(3)) for _ in range(4)]


@on_both_backends(graphs=1)
def test_condition_on_a_known_value_in_inference_mode():
    def fn(x):
        with torch.inference_mode():
            if torch.ones(()) > 0:
                return x * 2
        return x

    return fn, [(tensor(3),) for _ in range(3)]


@on_both_backends(graphs=1, later=1)
def test_inference_tensors_are_not_written_outside():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
        try:
            y[0] = 0
        except RuntimeError as e:
            return y, str(e)
        return y

    return fn, [(tensor(3),), (leaf(3),), (tensor(3),)]


@program(graphs=0, later=1)
def lazy_modules_in_training():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU())
    return model, [(tensor(4, 3, requires_grad=True),) for _ in range(3)]
