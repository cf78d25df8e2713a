"""Which of torch's kernels for attention takes operands on a GPU, under torch's settings as they are."""

from __future__ import annotations

from math import prod

import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from smelt.graph.ir import TensorSpec
from smelt.rewrites.attention.attention_rewrite import Kernel, Operands
from smelt.shapes.expr import static
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, SDPBackend, fused_sdp_choice

# Bytes of scores. Where something is added to fewer, and nothing is kept for a backward, products and a softmax are faster
# than the kernel: with a mask beside 48 MiB (8 x 12 x 512 x 512), 104 us beside 118 on an H100, but there the kernel takes a
# quarter of the memory (`python -m benchmarks.gpu.attention --only padded`).
FEW = 32 << 20


def attention_kernel(operands: Operands) -> Kernel | None:
    """The kernel for attention that a program writes out; None if torch has none, or would not take it.

    Torch is asked with uninitialized tensors laid out as the operands: which kernel it would take in its place, or, where
    that is cuDNN's (whose results for rows without a finite score are not documented), whether it may take one of its own.
    """
    if operands.backward and torch.are_deterministic_algorithms_enabled():
        return None  # they add up gradients of queries in any order
    if operands.bias is not None and not operands.backward and _scores(operands) < FEW:
        return None
    with DisableTorchFunction(), DisableTorchDispatch():  # modes of the program are asked about none of this
        return _taken(operands)


def _taken(operands: Operands) -> Kernel | None:
    q, k, v, bias = (_empty(s, operands) for s in (operands.q, operands.k, operands.v, operands.bias))
    assert q is not None and k is not None and v is not None
    if bias is not None:
        bias.requires_grad_(operands.bias_gradient)
    choice = fused_sdp_choice(q, k, v, bias)
    kind = SDPBackend(choice)
    if kind in (SDPBackend.MATH, SDPBackend.ERROR):
        return None
    if operands.q.shape[-1] % _multiple(operands.q) or operands.v.shape[-1] % _multiple(operands.v):
        return None  # torch pads them
    params = SDPAParams(q, k, v, bias, 0.0, False, False)
    if bias is None and (kind == SDPBackend.FLASH_ATTENTION or can_use_flash_attention(params)):
        return "flash"
    if kind == SDPBackend.EFFICIENT_ATTENTION or can_use_efficient_attention(params):
        return "efficient"
    return None


def _scores(operands: Operands) -> int:
    """Their bytes, in the dtype of queries."""
    *_, length, _ = operands.k.shape
    return prod(map(static, operands.q.shape[:-1])) * static(length) * operands.q.dtype.itemsize


def _multiple(spec: TensorSpec) -> int:
    """Of how many elements 16 bytes are."""
    return 16 // spec.dtype.itemsize


def _empty(spec: TensorSpec | None, operands: Operands) -> torch.Tensor | None:
    if spec is None:
        return None
    shape, stride = (tuple(map(static, n)) for n in (spec.shape, spec.stride))
    made = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
    return made.requires_grad_(operands.backward)
