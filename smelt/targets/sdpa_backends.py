"""The fused attention kernel that torch selects for operands on a GPU, under the present settings of torch."""

from __future__ import annotations

from math import prod

import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention, can_use_flash_attention

from smelt.graph.ir import TensorSpec
from smelt.rewrites.attention.attention_rewrite import Kernel, Operands
from smelt.shapes.expr import static
from smelt.torch_private import DisableTorchDispatch, DisableTorchFunction, SDPBackend, fused_sdp_choice

# Bytes of scores. For fewer scores with a bias, and without a backward, products and a softmax are faster than the kernel:
# with a mask and 48 MiB (8 x 12 x 512 x 512), 104 us against 118 on an H100, where the kernel takes a quarter of the memory
# (`python -m benchmarks.gpu.attention --only padded`).
FEW = 32 << 20


def attention_kernel(operands: Operands) -> Kernel | None:
    """The kernel for an attention pattern; None if torch has none, or would not select it.

    Torch selects for uninitialized tensors with the layouts of the operands. Where it selects cuDNN's kernel, whose results
    for rows without a finite score are undocumented, the kernel is one of torch's own if that accepts the operands.
    """
    if operands.backward and torch.are_deterministic_algorithms_enabled():
        return None  # the kernels sum gradients of queries in any order
    if operands.bias is not None and not operands.backward and _scores(operands) < FEW:
        return None
    with DisableTorchFunction(), DisableTorchDispatch():  # hide this from the modes of the program
        return _selected(operands)


def _selected(operands: Operands) -> Kernel | None:
    q, k, v, bias = (_empty(s, operands) for s in (operands.q, operands.k, operands.v, operands.bias))
    assert q is not None and k is not None and v is not None
    if bias is not None:
        bias.requires_grad_(operands.bias_gradient)
    choice = fused_sdp_choice(q, k, v, bias)
    kind = SDPBackend(choice)
    if kind in (SDPBackend.MATH, SDPBackend.ERROR):
        return None
    if operands.q.shape[-1] % _multiple(operands.q) or operands.v.shape[-1] % _multiple(operands.v):
        return None  # torch would pad them
    params = SDPAParams(q, k, v, bias, 0.0, False, False)
    if bias is None and (kind == SDPBackend.FLASH_ATTENTION or can_use_flash_attention(params)):
        return "flash"
    if kind == SDPBackend.EFFICIENT_ATTENTION or can_use_efficient_attention(params):
        return "efficient"
    return None


def _scores(operands: Operands) -> int:
    """The bytes of the scores, in the dtype of queries."""
    *_, length, _ = operands.k.shape
    return prod(map(static, operands.q.shape[:-1])) * static(length) * operands.q.dtype.itemsize


def _multiple(spec: TensorSpec) -> int:
    """The number of elements in 16 bytes."""
    return 16 // spec.dtype.itemsize


def _empty(spec: TensorSpec | None, operands: Operands) -> torch.Tensor | None:
    if spec is None:
        return None
    shape, stride = (tuple(map(static, n)) for n in (spec.shape, spec.stride))
    made = torch.empty_strided(shape, stride, dtype=spec.dtype, device=spec.device)
    return made.requires_grad_(operands.backward)
