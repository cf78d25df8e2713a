"""Programs written with einops."""

from __future__ import annotations

import einops
import torch
from einops.layers.torch import EinMix, Rearrange, Reduce
from torch import nn

from tests.harness.catalogue import program, tensor


def three(*shape: int) -> list:
    return [(tensor(*shape),) for _ in range(3)]


@program(graphs=1)
def rearrange():
    def fn(x):
        return einops.rearrange(x, "b c h w -> b (h w) c"), einops.rearrange(
            x, "b c (h p) w -> (b p) c h w", p=2
        )

    return fn, three(2, 3, 4, 4)


@program(graphs=1)
def rearrange_adds_and_drops_axes():
    def fn(x):
        y = einops.rearrange(x, "b c -> b 1 c 1")
        return y, einops.rearrange(y, "b 1 c 1 -> c b"), einops.rearrange(x, "... c -> c ...")

    return fn, three(2, 3)


@program(graphs=1)
def rearrange_of_a_list():
    def fn(x, y):
        return einops.rearrange([x, y], "n b c -> b (n c)")

    return fn, [(tensor(2, 3), tensor(2, 3)) for _ in range(3)]


@program(graphs=1)
def reduce():
    def fn(x):
        return (
            einops.reduce(x, "b c (h 2) (w 2) -> b c h w", "max"),
            einops.reduce(x, "b c h w -> b c", "mean"),
            einops.reduce(x, "b c h w -> b () h w", "sum"),
            einops.reduce(x, "b ... -> b", torch.amax),
        )

    return fn, three(2, 3, 4, 4)


@program(graphs=1)
def repeat():
    def fn(x):
        return einops.repeat(x, "h w -> h (w r)", r=2), einops.repeat(x, "h w -> n h w", n=x.shape[0])

    return fn, three(2, 3)


@program(graphs=1)
def einsum():
    def fn(x, y):
        return einops.einsum(x, y, "batch row, batch column -> batch row column")

    return fn, [(tensor(2, 3), tensor(2, 4)) for _ in range(3)]


@program(graphs=1)
def pack_and_unpack():
    def fn(x, y):
        packed, shapes = einops.pack([x, y], "b * c")
        a, b = einops.unpack(packed * 2, shapes, "b * c")
        return packed, a, b, shapes

    return fn, [(tensor(2, 3, 4, 5), tensor(2, 6, 5)) for _ in range(3)]


@program(graphs=1)
def parse_shape():
    def fn(x):
        sizes = einops.parse_shape(x, "b _ h w")
        return x * sizes["h"], sizes

    return fn, three(2, 3, 4, 5)


@program(graphs=1, later=1)
def the_pattern_depends_on_an_argument():
    def fn(x, pattern):
        return einops.rearrange(x, pattern)

    return fn, [(tensor(2, 3), "a b -> b a"), (tensor(2, 3), "a b -> (a b)"), (tensor(2, 3), "a b -> b a")]


@program(graphs=0, eager=["user-exception"])
def a_wrong_pattern_raises():
    def fn(x):
        return einops.rearrange(x, "a b c -> a (b c)")

    return fn, three(2, 3)


@program(graphs=1)
def a_wrong_pattern_is_caught():
    def fn(x):
        try:
            return einops.rearrange(x, "a (b q) -> a b q", q=7)
        except einops.EinopsError:
            return x + 1

    return fn, three(2, 3)


@program(graphs=1)
def layers():
    net = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        nn.Linear(12, 8),
        Reduce("b n c -> b c", "mean"),
    ).requires_grad_(False)
    return net, three(2, 3, 4, 4)


@program(graphs=1)
def a_mixing_layer():
    net = EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=3, d=5).requires_grad_(False)
    return net, three(2, 4, 3)


@program(graphs=1)
def attention():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = einops.rearrange(self.qkv(x), "b n (k h d) -> k b h n d", k=3, h=2)
            weights = einops.einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
            mixed = einops.einsum(weights, v, "b h i j, b h j d -> b h i d")
            return self.out(einops.rearrange(mixed, "b h n d -> b n (h d)"))

    return Attention().requires_grad_(False), three(2, 5, 8)


@program(graphs=1)
def rearrange_of_a_view_and_shape_helpers():
    def fn(x):
        y = einops.rearrange(x[:, 1:], "a b -> b a")
        y[0] = 1
        return y, x

    return fn, three(2, 3)
