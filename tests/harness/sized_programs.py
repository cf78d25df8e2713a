"""Programs over sizes that change, one or two kernels each: by name, with the shapes of their inputs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.harness.symbolic import S0, S1

Programs = dict[str, tuple[Any, ...]]


def with_bias(x, bias):
    return F.gelu(x + bias)


def rms_norm(x, w):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) / 64 + 1e-6) * w


def layer_norm_backward(g, x, w, b):
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [64], w, b, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(g, x, [64], mean, rstd, w, b, [True] * 3)


def softmax_backward(g, y):
    return torch.ops.aten._softmax_backward_data(g, y, -1, g.dtype)


def bias_backward(g, x):
    return g.relu(), g.relu().sum((0, 1)), (g * x).sum((0, 1))


def by_heads(x):
    return x.view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2).contiguous() + 1


def of_heads(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 64) + 1


def over_all_rows(x):
    b, t, c = x.shape
    return x.sigmoid().view(b * t, c).softmax(-1).view(b, t, c) * 2


def over_all_columns(x):
    b, t, c = x.shape
    return x.sigmoid().view(b, t * c).softmax(-1).view(b, t, c) * 2


ELEMENTWISE: Programs = {
    "fixed columns": (lambda x: x.exp(), (S0, 64)),
    "no fixed size": (lambda x: torch.where(x > 0, x, x * 0.1).sigmoid(), (S0, S1)),
    "a row for all": (with_bias, (S0, S1), (S1,)),
    "a number for each row": (lambda x, y: x * y, (S0, S1), (S0, 1)),
    "a fixed row for all": (lambda x, y: x + y, (S0, 50), (50,)),
    "fixed rows": (lambda x, y: x + y, (40, S0), (40, 1)),
    "outer": (lambda x, y: x[:, None] + y[None, :], (S0,), (S1,)),
    "transposed": (lambda x: x.t().contiguous() * 2, (S0, S1)),
    "transposed to rows": (lambda x: x.t().contiguous() * 2, (S0, 40)),
    "transposed to columns": (lambda x: x.t().contiguous() * 2, (40, S0)),
    "backwards": (lambda x: x.flip(0, 1) + 1, (S0, S1)),
    "rolled": (lambda x: x.roll(1, 1) + 1, (S0, S1)),
    "last": (lambda x: x[:, -1] * 2, (S0, S1)),
    "lower triangle": (lambda x: x.tril(), (S0, S0)),
    "parts": (lambda x: x.chunk(3, -1)[1] * 2, (S0, S1, 48)),
    "repeated": (lambda x: x.repeat(1, 2) + 1, (S0, S1)),
    "by heads": (by_heads, (S0, S1, 64)),
    "of heads": (of_heads, (S0, 4, S1, 16)),
    "flattened transposed": (lambda x: x.transpose(0, 1).reshape(-1) * 2, (S0, S1)),
    "flattened": (lambda x: x.sigmoid().reshape(-1, 8) + 1, (S0, S1, 8)),
}  # fmt: skip
ROWS: Programs = {
    "softmax": (lambda x: x.softmax(-1), (S0, 64)),
    "softmax, masked tail": (lambda x: x.softmax(-1), (S0, 50)),
    "softmax of long rows": (lambda x: x.softmax(-1), (3, S0, 700)),
    "softmax, scaled": (lambda x, m: (x * 0.125 + m).softmax(-1), (S0, 4, S1, 16), (S0, 1, 1, 16)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (64,), w, b), (S0, S1, 64), (64,), (64,)),
    "layer norm of long rows": (lambda x, w, b: F.layer_norm(x, (768,), w, b), (S0, 768), (768,), (768,)),
    "views": (over_all_rows, (S0, S1, 64)),
    "RMS norm": (rms_norm, (S0, S1, 64), (64,)),
    "stored and summed": (lambda x: (x.relu(), x.relu().sum(-1)), (S0, 100)),
}  # fmt: skip
REDUCED: Programs = {
    "softmax": (lambda x: x.softmax(-1), (S0, S1)),
    "softmax, scaled": (lambda x, m: (x * 0.125 + m).softmax(-1), (S0, 2, S1, S1), (S0, 1, 1, S1)),
    "softmax of merged columns": (over_all_columns, (S0, S1, 8)),
    "softmax down columns": (lambda x: x.softmax(0), (S0, S1)),
    "all": (lambda x: x.sum(), (S0, S1)),
    "all with fixed columns": (lambda x: x.sum(), (S0, S1, 77)),
    "columns": (lambda x: x.sum(1), (S0, S1)),
    "rows": (lambda x: x.sum(0), (S0, S1)),
    "rows of fixed columns": (lambda x: x.sum(0), (S0, 64)),
    "fixed rows": (lambda x: x.sum(0), (64, S0)),
    "first and last": (lambda x: x.double().sum((0, 2)), (S0, 3, S1)),
    "between": (lambda x: x.sum(1), (2, S0, 300)),
    "stored and summed": (lambda x: (x.relu(), x.relu().sum(-1)), (S0, S1)),
    "norm": (lambda x: (x * x).sum(-1).sqrt(), (S0, S1)),
    "largest": (lambda x: x.amax(-1), (S0, S1)),
    "least of columns": (lambda x: x.amin(0), (S0, S1)),
    "any": (lambda x: (x > 7).any(-1), (S0, S1)),
    "product": (lambda x: (x * 0.3).prod(-1), (S0, S1)),
}  # fmt: skip
SCANS: Programs = {
    "columns": (lambda x: x.cumsum(-1), (S0, S1)),
    "rows": (lambda x: x.cumsum(0), (S0, S1)),
    "of fixed columns": (lambda x: x.cumsum(0), (S0, 20)),
    "products": (lambda x: (x * 0.3).cumprod(-1), (3, S0)),
}
# Also how many kernels a CPU has.
BACKWARD: Programs = {
    "layer norm": (3, layer_norm_backward, (S0, S1, 64), (S0, S1, 64), (64,), (64,)),
    "softmax": (1, softmax_backward, (S0, S1), (S0, S1)),
    "bias": (1, bias_backward, (S0, S1, 64), (S0, S1, 64)),
}
