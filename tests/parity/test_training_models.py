"""Whole training idioms: parameters frozen, tied and made anew, mixed precision, clipping, norms, dropout, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from tests.harness.training import both, gradients, leaf


def mlp(*sizes: int) -> nn.Sequential:
    layers = [m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def trained(compile, model, batches, make_optimizer=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)):
    """Losses of some steps, then parameters, buffers and the state of the random generator."""
    f, optimizer, losses = compile(model), make_optimizer(model.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(f(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    state = {name: t.detach() for name, t in (*model.named_parameters(), *model.named_buffers())}
    return losses, state, torch.get_rng_state()


def batches(count=3, rows=4, inputs=3, outputs=2):
    return [(torch.randn(rows, inputs), torch.randn(rows, outputs)) for _ in range(count)]


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "adamw fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
}


@both()
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(compile, name):
    return trained(compile, mlp(3, 8, 2), batches(4), OPTIMIZERS[name])


# ------------------------------------------------------------------------------------------------- parameters


@both()
def test_frozen_parameters(compile):
    model = mlp(3, 4, 4, 2)
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    f = compile(model)
    f(torch.randn(5, 3)).sum().backward()
    return gradients(*model.parameters())


@both()
def test_parameters_are_frozen_and_thawed_between_steps(compile):
    model, found = mlp(3, 4, 2), []
    f = compile(model)
    for frozen in (False, True, True, False):
        model[0].requires_grad_(not frozen)
        model.zero_grad()
        f(torch.randn(5, 3)).pow(2).sum().backward()
        found.append(gradients(*model.parameters()))
    return found


@both()
def test_everything_frozen_but_the_input(compile):
    model, x = mlp(3, 4, 2).requires_grad_(False), leaf(5, 3)
    compile(model)(x).pow(2).sum().backward()
    return gradients(x, *model.parameters())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)).tanh())


@both()
def test_tied_weights(compile):
    model = Tied()
    f, optimizer = compile(model), torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        ids = torch.randint(0, 7, (2, 5))
        F.cross_entropy(f(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
    return gradients(*model.parameters()), model.state_dict()


@both()
def test_weights_tied_between_layers(compile):
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    model = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), first)
    compile(model)(torch.randn(4, 3)).sum().backward()
    return gradients(*model.parameters())


class LowRank(nn.Module):
    def __init__(self, weight, rank=2):
        super().__init__()
        self.a = nn.Parameter(torch.randn(rank, weight.shape[1]) * 0.1)
        self.b = nn.Parameter(torch.zeros(weight.shape[0], rank))

    def forward(self, weight):
        return weight + self.b @ self.a


@both()
def test_low_rank_parametrization(compile):
    model = mlp(3, 4, 2)
    for m in (model[0], model[2]):
        parametrize.register_parametrization(m, "weight", LowRank(m.weight))
        m.parametrizations.weight.original.requires_grad_(False)
    f, trainable = compile(model), [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        f(torch.randn(5, 3)).pow(2).sum().backward()
        optimizer.step()
    return trainable, gradients(*model.parameters())


class LoraLinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.base(x) + 2 * self.up(self.down(self.drop(x)))


@both()
def test_low_rank_adapters(compile):
    model = mlp(3, 4, 2)
    model[0], model[2] = LoraLinear(model[0]), LoraLinear(model[2])
    f = compile(model)
    for _ in range(2):
        f(torch.randn(5, 3)).pow(2).sum().backward()
    return gradients(*model.parameters())


@both()
def test_weight_norm_and_orthogonal(compile):
    model = mlp(3, 4, 2)
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.parametrizations.orthogonal(model[2])
    f = compile(model)
    f(torch.randn(5, 3)).pow(2).sum().backward()
    return gradients(*model.parameters())


@both()
def test_parameters_that_only_some_calls_use(compile):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x, which):
            return self.a(x) if which == "a" else self.b(x).sin()

    model, found = Gated(), []
    f = compile(model)
    for which in "aba":
        f(torch.randn(2, 3), which).sum().backward()
        found.append(gradients(*model.parameters()))
    return found


# -------------------------------------------------------------------------------------------- precision, scaling


@both()
@pytest.mark.parametrize("where", ["around", "inside", "around forward and loss"])
def test_autocast(compile, where):
    model = mlp(3, 8, 2)

    def inside(x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    f, found = compile(inside if where == "inside" else model), []
    for _ in range(2):
        x = torch.randn(5, 3)
        with torch.autocast("cpu", torch.bfloat16, enabled=where != "inside"):
            y = f(x)
            if where == "around forward and loss":
                loss = F.mse_loss(y.float(), torch.zeros(5, 2))
        if where != "around forward and loss":
            loss = y.float().pow(2).mean()
        loss.backward()
        found.append((y.dtype, y.detach(), [g.bfloat16() for g in gradients(*model.parameters())]))
    return found


@both()
def test_backward_under_autocast(compile):
    model, x = mlp(3, 4, 2), torch.randn(5, 3)
    f = compile(model)
    with torch.autocast("cpu", torch.bfloat16):
        f(x).float().pow(2).sum().backward()
    return [(g.dtype, g.bfloat16()) for g in gradients(*model.parameters())]


@both()
def test_autocast_is_switched_between_calls(compile):
    model, x, found = mlp(3, 4, 2), torch.randn(5, 3), []
    f = compile(model)
    for enabled in (True, False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = f(x)
        y.float().sum().backward()
        found.append((y.dtype, [g.bfloat16() for g in gradients(*model.parameters())]))
    return found


@both()
def test_half_precision_model(compile):
    model = mlp(3, 4, 2).bfloat16()
    f = compile(model)
    f(torch.randn(5, 3, dtype=torch.bfloat16)).float().pow(2).mean().backward()
    return gradients(*model.parameters())


@both()
def test_gradient_scaler(compile):
    model = mlp(3, 4, 2)
    f, optimizer = compile(model), torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    scales = []
    for step, (x, y) in enumerate(batches(4)):
        optimizer.zero_grad()
        loss = F.mse_loss(f(x), y) * (float("inf") if step == 1 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, list(model.parameters())


@both()
def test_clipping(compile):
    model = mlp(3, 4, 2)
    f, norms = compile(model), []
    for clip in (lambda p: nn.utils.clip_grad_norm_(p, 0.1), lambda p: nn.utils.clip_grad_value_(p, 0.01)):
        f(torch.randn(5, 3)).pow(2).sum().backward()
        norms.append(clip(model.parameters()))
        norms.append(gradients(*model.parameters()))
    return norms


@both()
def test_accumulation_over_small_batches(compile):
    model = mlp(3, 4, 2)
    f, optimizer = compile(model), torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(2):
        for x, y in batches(3):
            (F.mse_loss(f(x), y) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


# ----------------------------------------------------------------------------------------------- norms and dropout


@both()
def test_batch_norm_statistics(compile):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    return trained(compile, model, batches(3))


@both()
def test_batch_norm_of_images(compile):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    data = [(torch.randn(2, 2, 6, 6), torch.randn(2, 4)) for _ in range(3)]
    return trained(compile, model, data)


@both()
def test_training_then_evaluation(compile):
    model, found = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)), []
    f, x = compile(model), torch.randn(5, 3)
    for mode in (True, False, True, False):
        model.train(mode)
        model.zero_grad()
        y = f(x)
        y.pow(2).sum().backward()
        with torch.no_grad():
            found.append((y.detach(), f(x), gradients(*model.parameters()), dict(model.state_dict())))
            found = copy.deepcopy(found)
    return found


@both()
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout(compile, p):
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(p), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 2))
    return trained(compile, model, batches(3))


@both()
def test_dropout_by_the_same_seed(compile):
    model, found = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), []
    f, x = compile(model), torch.randn(5, 3)
    for seed in (3, 4, 3):
        torch.manual_seed(seed)
        y = f(x)
        found.append((y.detach(), torch.get_rng_state()))
        torch.manual_seed(9)  # the backward draws nothing
        y.sum().backward()
        found.append((torch.get_rng_state(), gradients(*model.parameters())))
    return found


@both()
def test_noise_of_all_kinds(compile):
    def fn(x):
        h = x + torch.randn_like(x) * torch.rand(3)
        h = h * torch.bernoulli(torch.full_like(h, 0.5))
        h = F.alpha_dropout(h, 0.2, training=True)
        return F.gumbel_softmax(h, tau=0.7)

    f, x = compile(fn), leaf(4, 3)
    for _ in range(2):
        f(x).pow(2).sum().backward()
    return gradients(x), torch.get_rng_state()


@both()
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_dropout(compile, causal):
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=0.2)

    f, q, k, v = compile(fn), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8), leaf(2, 2, 4, 8)
    f(q, k, v).pow(2).sum().backward()
    return gradients(q, k, v), torch.get_rng_state()


# ------------------------------------------------------------------------------------- checkpoints, modes, detach


@both(ahead=False)  # a reentrant one calls the autograd engine
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_checkpoint_inside(compile, reentrant, dropout):
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3))

    def fn(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x

    f, x = compile(fn), leaf(4, 3)
    for _ in range(2):
        f(x).pow(2).sum().backward()
    return gradients(x, *blocks.parameters()), torch.get_rng_state()


@both()
@pytest.mark.parametrize("reentrant", [False, True])
def test_compiled_function_inside_a_checkpoint(compile, reentrant):
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Dropout(0.4), nn.Linear(3, 3))
    f, x = compile(model), leaf(4, 3)
    for _ in range(2):
        checkpoint(lambda x: f(x.sin()), x, use_reentrant=reentrant).pow(2).sum().backward()
    return gradients(x, *model.parameters()), torch.get_rng_state()


@both()
def test_sequential_checkpoints(compile):
    model, x = mlp(3, 3, 3, 3), leaf(4, 3)
    f = compile(lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False))
    f(x).pow(2).sum().backward()
    return gradients(x, *model.parameters())


@both()
def test_regions_without_gradients(compile):
    def fn(x, w):
        with torch.no_grad():
            scale = (x * w).abs().mean()
            target = (x @ w).sign()
            with torch.enable_grad():
                inner = (x * 3).sum()
        return ((x @ w - target) * scale).pow(2).sum() + inner, scale

    f, x, w = compile(fn), leaf(3, 3), leaf(3, 3)
    loss, scale = f(x, w)
    loss.backward()
    return loss, scale, gradients(x, w)


@both()
def test_detach_inside(compile):
    def fn(x, w):
        h = x @ w
        hard = (h > 0).float()
        return (h + (hard - h).detach()) * h.detach().exp(), h.detach() * 2

    f, x, w = compile(fn), leaf(2, 3), leaf(3, 3)
    y, d = f(x, w)
    y.sum().backward()
    return d, gradients(x, w)


@both(ahead=False)
def test_gradient_of_a_penalty_inside(compile):
    model = mlp(3, 4, 1)

    def fn(x):
        x = x.detach().requires_grad_()
        y = model(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (g.norm(dim=1) - 1).pow(2).mean()

    f = compile(fn)
    for _ in range(2):
        f(torch.randn(4, 3)).backward()
    return gradients(*model.parameters())


@both(whole=False)
def test_a_whole_training_step(compile):
    model = mlp(3, 8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = compile(step)
    losses = [f(x, y) for x, y in batches(4)]
    return losses, list(model.parameters())


@both()
def test_two_networks_against_each_other(compile):
    maker, judge = mlp(2, 4, 3), mlp(3, 4, 1)
    make, rate = compile(maker), compile(judge)
    first, second = (torch.optim.Adam(m.parameters(), 0.01) for m in (maker, judge))
    for _ in range(3):
        noise, real = torch.randn(5, 2), torch.randn(5, 3)
        fake = make(noise)
        loss = F.softplus(-rate(real)).mean() + F.softplus(rate(fake.detach())).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        first.zero_grad()
        F.softplus(-rate(fake)).mean().backward()
        first.step()
    return list(maker.parameters()), list(judge.parameters()), gradients(*judge.parameters())


@both()
def test_recurrence_through_calls(compile):
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 2)
    step = compile(lambda x, h: cell(x, h))
    h = torch.zeros(2, 4)
    for x in torch.randn(5, 2, 3):
        h = step(x, h)
    head(h).pow(2).sum().backward()
    return gradients(*cell.parameters(), *head.parameters())


@both()
def test_losses(compile):
    weight = torch.tensor([1.0, 2.0, 0.5])

    def fn(logits, target, y):
        return (
            F.cross_entropy(logits, target, weight=weight, ignore_index=2, label_smoothing=0.1),
            F.nll_loss(logits.log_softmax(-1), target),
            F.binary_cross_entropy_with_logits(logits, (y > 0).float()),
            F.smooth_l1_loss(logits, y),
            F.kl_div(logits.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
            F.huber_loss(logits, y) + F.l1_loss(logits, y),
            F.cosine_embedding_loss(logits, y, torch.ones(4)),
        )

    f, logits = compile(fn), leaf(4, 3)
    results = f(logits, torch.tensor([0, 1, 2, 1]), torch.randn(4, 3))
    sum((k + 1) * r for k, r in enumerate(results)).backward()
    return results, gradients(logits)


@both()
def test_layers_with_an_inner_state(compile):
    model = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.PReLU(), nn.MaxPool1d(2),
                          nn.ConvTranspose1d(4, 2, 2, stride=2), nn.InstanceNorm1d(2, affine=True),
                          nn.Hardswish(), nn.Upsample(scale_factor=2), nn.AvgPool1d(3), nn.Flatten(),
                          nn.LazyLinear(2))  # fmt: skip
    model(torch.randn(2, 2, 8))
    return trained(compile, model, [(torch.randn(2, 2, 8), torch.randn(2, 2)) for _ in range(3)])
