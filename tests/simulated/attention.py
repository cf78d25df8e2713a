"""CUDA's kernels for attention, by their formulas: in float32, a row at once, with what they make of rows that have no
finite score (native/transformers/cuda/flash_attn/softmax.h, mem_eff_attention/kernel_forward.h)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LOG2E = math.log2(math.e)
INF = float("inf")
ALIGNED = 32  # of which the efficient kernel's logarithms have a multiple


def _scale(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.size(-1)) if scale is None else scale


def _greatest(scores: Tensor) -> Tensor:
    """Of each row; NaN is passed over, as by `fmaxf`."""
    return scores.masked_fill(scores.isnan(), -INF).amax(-1, keepdim=True)


def _by_heads(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[b, h, n, d] whose heads lie beside each other."""
    return x.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for x in (q, k, v):
        assert x.dim() == 4 and x.dtype is q.dtype and x.stride(-1) == 1, (x.shape, x.stride(), x.dtype)
        multiple = 16 // x.element_size()
        assert x.size(-1) % multiple == 0 and x.storage_offset() % multiple == 0
        assert all(s % multiple == 0 for n, s in zip(x.shape[:-1], x.stride()) if n > 1), x.stride()


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Result [b, h, l, d] and the logarithm of each row's sum [b, h, l], infinite for a sum that is 0 or NaN."""
    assert dropout_p == 0 and not is_causal and q.dtype in (torch.float16, torch.bfloat16)
    _check(q, k, v)
    scores = q.float() @ k.float().mT
    most = _greatest(scores)
    factor = _scale(q, scale)
    near = most.masked_fill(most == -INF, 0.0)
    p = torch.exp2(scores * (factor * LOG2E) - near * (factor * LOG2E))
    total = p.sum(-1, keepdim=True)
    lost = (total == 0) | total.isnan()
    rows = (most * factor + total.log()).masked_fill(lost, INF)[..., 0]
    out = p.to(q.dtype).float() @ v.float() / total.masked_fill(lost, 1.0)
    numbers = (
        torch.zeros(2, dtype=torch.uint64, device=q.device),
        torch.zeros((), dtype=torch.uint64, device=q.device),
    )
    none, length = None, (q.size(2), k.size(2))
    return _by_heads(out, q.dtype), rows, none, none, *length, *numbers, q.new_empty(0)


def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Result [b, h, l, d] and the logarithm of each row's sum, [b, h, l rounded up], infinite behind the last row."""
    assert dropout_p == 0 and not is_causal
    _check(q, k, v)
    scores = q.float() @ k.float().mT * _scale(q, scale)
    if bias is not None:
        assert bias.dtype is q.dtype and bias.shape == scores.shape and bias.stride(-1) == 1
        assert all(s % 8 == 0 for n, s in zip(bias.shape[:-1], bias.stride()) if n > 1), bias.stride()
        scores = scores + bias.float()
    scores = scores * LOG2E
    most = _greatest(scores)
    p = torch.exp2(scores - (most if bias is None else most.masked_fill(most == -INF, 0.0)))
    total = p.sum(-1, keepdim=True)
    out = p.to(q.dtype).float() @ v.float() / total.masked_fill(total == 0, 1.0)
    rows = (most / LOG2E + total.log()).masked_fill(total == 0, 0.0)[..., 0]  # seen on an H100
    behind = -rows.size(-1) % ALIGNED if compute_log_sumexp else -rows.size(-1)
    rows = torch.nn.functional.pad(rows, (0, behind), value=INF)
    seed, offset = (torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2))
    return _by_heads(out, q.dtype), rows, seed, offset


def _backward(
    tangent: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, p: Tensor, factor: float
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys, values and scores."""
    assert tangent.stride(-1) == 1
    t, values = tangent.float(), v.float()
    of_scores = p * (t @ values.mT - (t * out.float()).sum(-1, keepdim=True))
    of_q, of_k = of_scores @ k.float() * factor, of_scores.mT @ q.float() * factor
    return *(_by_heads(x, q.dtype) for x in (of_q, of_k, p.mT @ t)), of_scores


def flash_backward(
    tangent: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    rows: Tensor,
    *rest: Any,
    scale: float | None = None,
) -> Any:
    """Gradients of queries, keys and values."""
    factor = _scale(q, scale)
    p = torch.exp(q.float() @ k.float().mT * factor - rows.masked_fill(rows == -INF, 0.0)[..., None])
    return _backward(tangent, q, k, v, out, p, factor)[:3]


def efficient_backward(
    tangent: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    rows: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout_p: float,
    wanted: list[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """Gradients of queries, keys, values and what was added to the scores, if it is wanted."""
    assert (rows[..., q.size(2) :] == INF).all()
    factor = _scale(q, scale)
    scores = q.float() @ k.float().mT * factor
    if bias is not None:
        scores = scores + bias.float()
    p = torch.exp(scores - rows[..., : q.size(2), None])
    *found, of_scores = _backward(tangent, q, k, v, out, p, factor)
    return *found, of_scores.to(q.dtype) if bias is not None and wanted[3] else None
