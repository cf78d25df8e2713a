"""Sizes that change, on a GPU beside eager: one entry, kernels compiled once. Where torch has no CUDA, on the simulated
device."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.codegen.triton import compile as triton_compile
from smelt.report import inspect
from tests.harness import simulated

ELSEWHERE = not torch.cuda.is_available() or simulated.inside()
pytestmark = [pytest.mark.simulated_cuda] if ELSEWHERE else []
SETS = ((2, 8), (3, 17), (16, 64), (4, 33), (8, 128), (5, 300))
f32, bf16 = torch.float32, torch.bfloat16


def check(f, inputs, sets=SETS, rtol=1e-4, atol=1e-4, entries=1):
    """`f` of the inputs that the sizes give, compiled with symbols for these, gives what eager gives."""
    compiled = smelt.compile(f, dynamic=True)
    with torch.no_grad():
        for sizes in sets:
            given = inputs(*sizes)
            for _ in range(2):
                torch.testing.assert_close(compiled(*given), f(*given), rtol=rtol, atol=atol)
    assert len(inspect.entries(compiled)) == entries and not inspect.reasons(compiled)
    return compiled


def randn(*shape, dtype=f32):
    return torch.randn(*shape, device="cuda", dtype=dtype)


ROWS = {
    "layer norm": (lambda x, w: F.layer_norm(x, (256,), w), lambda b, t: (randn(b, t, 256), randn(256))),
    "softmax": (lambda x: x.softmax(-1), lambda b, t: (randn(b, t),)),
    "long softmax": (lambda x: x.softmax(-1), lambda b, t: (randn(2, b * t * 37),)),
    "sum of columns": (lambda x: x.sum(0), lambda b, t: (randn(b * t, 3 * t).abs(),)),
    "transposed": (lambda x: x.mT.contiguous() * 2, lambda b, t: (randn(b, t, 40),)),
    "by heads": (
        lambda x: x.view(*x.shape[:2], 4, 16).transpose(1, 2).contiguous() + 1,
        lambda b, t: (randn(b, t, 64),),
    ),
    "mask": (
        lambda x, m: (x * 0.25).masked_fill(m, -1e4).softmax(-1),
        lambda b, t: (randn(b, 6, t, t), randn(b, 1, 1, t) > 0),
    ),
    "mean": (lambda x: x.mean(), lambda b, t: (randn(b, t, 100),)),
    "running sums": (lambda x: x.abs().cumsum(-1), lambda b, t: (randn(b, t),)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_kernels(name, dtype):
    f, inputs = ROWS[name]

    def of_dtype(*sizes):
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs(*sizes))

    tolerance = 1e-4 if dtype is f32 else 0.02
    check(f, of_dtype, rtol=tolerance, atol=tolerance if name != "sum of columns" else 1.0)


def test_nothing_is_compiled_for_other_numbers_of_rows(monkeypatch):
    made = []
    to_image = triton_compile.to_image
    monkeypatch.setattr(triton_compile, "to_image", lambda *given: made.append(given[2]) or to_image(*given))
    compiled = smelt.compile(
        lambda x, w: F.layer_norm(x, (320,), w) * 3, dynamic=True, options={"kernel_cache": False}
    )
    w = randn(320)
    with torch.no_grad():
        compiled(randn(2, 3, 320), w)
        first = len(made)
        for b, t in SETS:
            x = randn(b, t, 320)
            torch.testing.assert_close(compiled(x, w), F.layer_norm(x, (320,), w) * 3, rtol=1e-4, atol=1e-4)
    assert len(made) == first == (0 if ELSEWHERE else 1)
    assert len(inspect.entries(compiled)) == 1


class Block(nn.Module):
    """A transformer's."""

    def __init__(self, width=128, heads=2):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}], ids=["plain", "graphs"])
def test_a_block_in_half_precision(options):
    torch.manual_seed(0)
    model = Block().cuda().to(bf16).eval()
    compiled = smelt.compile(model, dynamic=True, options=options)
    with torch.no_grad():
        for _ in range(4):
            for b, t in SETS[:4]:
                x = randn(b, t, 128, dtype=bf16)
                got = compiled(x).clone()
                torch.testing.assert_close(got, model(x), rtol=0.05, atol=0.05)
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)


def test_a_block_in_training():
    torch.manual_seed(0)
    model = Block().cuda()
    compiled = smelt.compile(model, dynamic=True)
    for b, t in SETS[:4]:
        x, found = randn(b, t, 128), []
        for f in (model, compiled):
            model.zero_grad()
            y = f(x)
            y.square().mean().backward()
            found.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)


@pytest.mark.skipif(ELSEWHERE, reason="takes 9 GB")
def test_indices_beyond_32_bits():
    """Another variant of the code, and the one for small sizes again."""
    compiled = smelt.compile(lambda x: x.softmax(-1), dynamic=True)
    for rows in (3, (1 << 31) // 1000 + 7, 5):
        x = torch.randn(rows, 1000, device="cuda", dtype=torch.float16)
        got = compiled(x)
        torch.testing.assert_close(got[-2:], x[-2:].softmax(-1), rtol=1e-2, atol=1e-4)
        torch.testing.assert_close(got[:2], x[:2].softmax(-1), rtol=1e-2, atol=1e-4)
        del x, got
    assert len(inspect.entries(compiled)) == 1


class Images(nn.Module):
    """Strides, a pool, a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 2, 1)
        self.norm, self.up = nn.BatchNorm2d(16).eval(), nn.ConvTranspose2d(16, 8, 2, 2)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        z = F.interpolate(F.max_pool2d(self.second(y).relu(), 2), scale_factor=2, mode="bilinear")
        return torch.cat([self.up(z), y], 1)


@pytest.mark.skipif(
    ELSEWHERE, reason="whether cuDNN convolves is asked of a GPU; tests/simulated/test_sized_images.py"
)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images(memory_format, half):
    torch.manual_seed(0)
    model = Images().cuda().to(memory_format=memory_format)
    compiled = smelt.compile(model, dynamic=True)
    for shape in ((2, 3, 64, 80), (3, 3, 80, 64), (4, 3, 96, 96), (5, 3, 160, 128)):
        x, found = randn(*shape).contiguous(memory_format=memory_format), []
        for f in (model, compiled):
            model.zero_grad()
            y = x.detach().requires_grad_()
            with torch.autocast("cuda", bf16, enabled=half):
                out = f(y)
            out.float().square().mean().backward()
            found.append(
                [out.detach(), y.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
            )
        for a, b in zip(*found, strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            assert (a.double() - b.double()).norm() <= (0.05 if half else 1e-3) * a.double().norm()
    assert len(inspect.entries(compiled)) == 1 and not inspect.reasons(compiled)


def test_sizes_become_symbols_when_they_change():
    torch.manual_seed(0)
    model = Block().cuda().eval()
    compiled = smelt.compile(model)
    with torch.no_grad():
        for b, t in SETS:
            x = randn(b, t, 128)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)
    assert len(inspect.entries(compiled)) == 2 and not inspect.reasons(compiled)
