"""Random programs with attention that is written out, some of which are none: results and gradients are eager's. Where there
is no CUDA, on the simulated device."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import smelt
from tests.harness import attention
from tests.harness.attention import B, D, H, L, Program, S, bf16, check, f32, operands

pytestmark = attention.MARKS

PRODUCTS = [
    "q @ k.transpose(-2, -1)",
    "torch.matmul(q * 0.4, k.mT)",
    "torch.einsum('bhid,bhjd->bhij', q, k)",
    "torch.bmm(q.reshape(B * H, L, D), k.reshape(B * H, S, D).transpose(1, 2)).view(B, H, L, S)",
]
STEPS = {
    "scaled": ["s = s * 0.3", "s = s / 2.5", "s = 0.7 * s", "s.mul_(0.5)"],
    "cast": ["s = s.float() if s.dtype is not torch.float64 else s", "s = s.type_as(q)"],
    "view": [
        *("s = s.view(B * H, L, S).view(B, H, L, S)", "s = s.transpose(1, 2).transpose(1, 2)"),
        *("s = s.contiguous()", "s = s[:]", "s = s.clone()", "s = s.flatten(0, 1).unflatten(0, (B, H))"),
    ],
    "added": [
        *("s = s + b", "s = s - b", "s += b", "s = b + s", "s = s + b[:, :1]", "s = s + b[:, :, :1]"),
        "s = s + k[:, :, None, :, 0]",
    ],
    "filled": [
        *(
            "s = s.masked_fill(m, -1e9)",
            "s = s.masked_fill(~m, float('-inf'))",
            "s = torch.where(m, s, -1e9)",
        ),
        *("s = torch.where(m, torch.finfo(s.dtype).min, s)", "s = s.masked_fill(m, -3.0)"),
    ],
}
ORDER = {"scaled": 0, "added": 1, "filled": 2}
LAST = ["p @ v", "torch.matmul(p, v)", "torch.einsum('bhij,bhjd->bhid', p, v)"]
NONE = ["s = s * -0.2", "p = s.softmax(-2).type_as(v)", "p = s.sigmoid()", "p = p * 1.5"]
READS = ["", " + p.sum() * 0.1", " + s.sum() * 0.01", " + 0 * p[:1, :1, :1, :1]"]
GIVES = ["o", "o.transpose(1, 2).reshape(B, L, H * D)", "o * 2", "o.sum(1)"]


def program(rng: random.Random) -> tuple[str, Program]:
    """A program, as source too; two of five may be no attention."""
    other = rng.random() < 0.4
    kinds = [rng.choice(list(STEPS)) for _ in range(rng.randint(0, 4))]
    if not other:
        kinds.sort(key=lambda kind: ORDER.get(kind, rng.random() * 2))
    lines = [
        f"s = {rng.choice(PRODUCTS)}",
        *(rng.choice(STEPS[kind]) for kind in kinds),
        "p = s.softmax(-1).type_as(v)",
    ]
    reads = rng.choice(READS) if other else ""
    if other and rng.random() < 0.5:
        lines.append(rng.choice(NONE))
    lines += [f"o = {rng.choice(LAST)}{reads}", f"return {rng.choice(GIVES)}"]
    source = "\n    ".join(["def program(q, k, v, b, m):", *lines])
    names: dict[str, Any] = {"torch": torch, "B": B, "H": H, "L": L, "S": S, "D": D}
    exec(source, names)
    return source, names["program"]


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    with attention.watched() as seen:
        for number in range(12):
            source, made = program(rng)
            numbers = torch.Generator().manual_seed(1000 * seed + number)
            dtype = rng.choice([f32, f32, bf16])
            b = torch.randn(rng.choice([(1, H, L, S), (B, 1, L, S), (B, H, L, S)]), generator=numbers).to(
                dtype
            )
            m = torch.rand(rng.choice([(1, 1, L, S), (B, 1, 1, S), (B, H, L, S)]), generator=numbers) < 0.3
            backward = rng.random() < 0.7
            try:
                with torch.set_grad_enabled(backward):
                    check(made, [*operands(dtype), b.cuda(), m.cuda()], backward)
            except Exception as error:
                raise AssertionError(f"{source}\n{dtype}, backward: {backward}") from error
        smelt.reset()
    assert sum("attention" in name for name in seen.kernels) >= 4
