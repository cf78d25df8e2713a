"""Sizes that change, on the simulated GPU: one entry, kernels compiled once, results as eager's. On a GPU itself:
tests/gpu/test_sizes_on_gpu.py."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.codegen import gpu_launches
from smelt.report import inspect
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda
SETS = ((2, 8), (3, 17), (5, 64), (2, 33), (4, 16))
aten = torch.ops.aten


class Block(nn.Module):
    """A transformer's, whose attention is written out."""

    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in parts)
        y = (q @ k.mT * 0.25).softmax(-1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


@pytest.fixture
def texts(monkeypatch):
    """Of the kernels that were compiled, each once, with whether they take sizes."""
    found = {}
    compile_kernels = gpu_launches.compile_kernels

    def noting(requests, *rest):
        for request in requests:
            source = request.printed()
            found[source.text] = bool(source.sizes)
        return compile_kernels(requests, *rest)

    monkeypatch.setattr(gpu_launches, "compile_kernels", noting)
    return found


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def test_inference_is_one_entry_whose_kernels_are_compiled_once(texts):
    model = Block().cuda().eval()
    compiled = smelt.compile(model, dynamic=True)
    launches, counts = set(), []
    with torch.no_grad():
        for b, t in SETS:
            x = torch.randn(b, t, 32, device="cuda")
            close(compiled(x), model(x))
            cuda.forget_launches()
            compiled(x)
            launches.add(tuple(l.name for l in cuda.launches()))
            counts.append(len(texts))
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)
    assert len(launches) == 1  # the same kernels in the same order
    # Later ones: vectors where lengths are multiples of 16, and elementwise kernels over one loop, which are two
    assert counts[1] - counts[0] <= 2 and counts[-1] - counts[2] <= 2 and any(texts.values())


def test_training_is_one_entry(texts):
    model = Block().cuda()
    compiled = smelt.compile(model, dynamic=True)
    for b, t in SETS[:4]:
        x = torch.randn(b, t, 32, device="cuda")
        found = []
        for f in (model, compiled):
            model.zero_grad()
            y = f(x)
            y.square().mean().backward()
            found.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        close(found[1], found[0])
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)
    assert sum(texts.values()) >= 6


def test_code_is_that_of_the_first_set_of_sizes():
    compiled = smelt.compile(lambda x, w: (x * w).softmax(-1), dynamic=True)
    w = torch.randn(300, device="cuda")
    functions = set()
    for rows in (2, 7, 700):
        x = torch.randn(rows, 300, device="cuda")
        cuda.forget_launches()
        close(compiled(x, w), (x * w).softmax(-1))
        [launch] = cuda.launches()
        functions.add(launch.name)
        assert launch.items == rows
    assert len(functions) == 1 and len(inspect.entries(compiled)) == 1


def test_elementwise_kernels_over_one_loop_are_still_one_launch():
    """Where launches are joined is decided for numbers."""

    def scaled(x, y, z):
        return x * 2.0, y * 2.0, z * 2.0

    compiled = smelt.compile(scaled, dynamic=True)
    for n in (3, 19, 50):
        tensors = [torch.randn(n, 2 * k, device="cuda") for k in (3, 4, 5)]
        cuda.forget_launches()
        close(compiled(*tensors), scaled(*tensors))
        assert len(cuda.launches()) <= 2  # of sizes that are multiples of 16, and others


def test_what_begins_at_odd_places():
    compiled = smelt.compile(lambda x: x[:, 1:].exp() + x[:, :-1], dynamic=True)
    for b, t in SETS:
        x = torch.randn(b, t, device="cuda")
        close(compiled(x), x[:, 1:].exp() + x[:, :-1])
    assert len(inspect.entries(compiled)) == 1


def test_numbers_on_the_cpu_and_kernels_there():
    def f(x, scale, y):
        return (x * scale).softmax(-1), (y * scale).sum(-1)

    compiled = smelt.compile(f, dynamic=True)
    for b, t in SETS:
        x, y, scale = torch.randn(b, t, device="cuda"), torch.randn(b, t), torch.tensor(float(t))
        close(compiled(x, scale, y), f(x, scale, y))


def test_rows_that_some_sizes_do_not_have():
    compiled = smelt.compile(lambda x: x[2:].softmax(-1) * 2, dynamic=True)
    for b in (5, 3, 7, 4):
        x = torch.randn(b, 20, device="cuda")
        close(compiled(x), x[2:].softmax(-1) * 2)


@pytest.mark.parametrize("kind", ["flash", "efficient", "with a bias"])
@pytest.mark.parametrize("train", [False, True])
def test_attention_by_torchs_kernels(kind, train):
    project = nn.Linear(32, 96).cuda().bfloat16()

    def f(x, bias):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, 2, 16).transpose(1, 2) for y in project(x).chunk(3, -1))
        if kind == "flash":
            y = aten._scaled_dot_product_flash_attention(q, k, v)[0]
        else:
            y = aten._scaled_dot_product_efficient_attention(
                q, k, v, bias if kind == "with a bias" else None, train
            )[0]
        return y.transpose(1, 2).reshape(b, t, 32) * 2

    compiled = smelt.compile(f, dynamic=True)
    for b, t in ((3, 32), (5, 64), (2, 48)):
        x = torch.randn(b, t, 32, device="cuda", dtype=torch.bfloat16)
        bias = torch.randn(b, 2, t, t, device="cuda", dtype=torch.bfloat16)
        found = []
        with torch.set_grad_enabled(train):
            for g in (f, compiled):
                y = g(x, bias)
                found.append([y.detach()])
                if train:
                    y.float().square().sum().backward()
                    found[-1] += [p.grad for p in project.parameters()]
                    project.zero_grad()
        torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05 * found[0][-1].abs().max().item())
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)


def test_a_cuda_graph_for_each_set_of_sizes_that_comes_back():
    def f(x, w):
        return (x * w).softmax(-1).relu()

    compiled = smelt.compile(f, dynamic=True, options={"cuda_graphs": True})
    w = torch.randn(40, device="cuda")
    replays = {}
    for _ in range(6):
        for rows in (3, 16, 3):
            x = torch.randn(rows, 40, device="cuda")
            before = cuda.Graph.replays
            got = compiled(x, w)
            close(got, f(x, w))
            del got
            replays[rows] = replays.get(rows, 0) + cuda.Graph.replays - before
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)
    assert replays[3] > replays[16] > 0


def test_results_that_are_held_are_not_overwritten_by_graphs_of_other_sizes():
    compiled = smelt.compile(lambda x: x.exp() + 1, dynamic=True, options={"cuda_graphs": True})
    held = []
    for step in range(6):
        for rows in (3, 5):
            x = torch.full((rows, 4), float(step), device="cuda")
            held.append((compiled(x), x.exp() + 1))
    for got, want in held:
        close(got, want)
