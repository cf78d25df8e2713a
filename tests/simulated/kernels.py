"""Operators that torch only asks for on CUDA, and which the CPU lacks: the cells of LSTM and GRU, by
their formulas, and whether a library does it all; and those whose results are others there."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from tests.simulated import attention


@functools.cache
def register() -> torch.library.Library:
    """From then on they are found, as long as what is returned is kept."""
    aten = torch.library.Library("aten", "IMPL")
    for name, kernel in {
        "log_sigmoid_forward": log_sigmoid,
        "log_sigmoid_backward": log_sigmoid_backward,
        "_thnn_fused_lstm_cell": lstm_cell,
        "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
        "_thnn_fused_gru_cell": gru_cell,
        "_thnn_fused_gru_cell_backward": gru_cell_backward,
        "_scaled_dot_product_flash_attention": attention.flash,
        "_scaled_dot_product_flash_attention_backward": attention.flash_backward,
        "_scaled_dot_product_efficient_attention": attention.efficient,
        "_scaled_dot_product_efficient_attention_backward": attention.efficient_backward,
        **{
            f"_use_{library}_ctc_loss{form}": no
            for library in ("cudnn", "miopen")
            for form in ("", ".Tensor")
        },
    }.items():
        aten.impl(name, kernel, "CUDA")
    return aten


def no(*operands: object) -> bool:
    """Whether a library does it."""
    return False


def log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of the sigmoid, and nothing for the backward (native/Activation.cpp)."""
    return x.clamp(max=0) - x.abs().neg().exp().log1p(), x.new_empty(0)


def log_sigmoid_backward(gradient: Tensor, x: Tensor, nothing: Tensor) -> Tensor:
    """native/cuda/ActivationLogSigmoidKernel.cu"""
    z = x.abs().neg().exp()
    above = z / (z + 1)
    return gradient * torch.where(x < 0, 1 - above, above)


def _with(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    gates: Tensor,
    of_hidden: Tensor,
    cx: Tensor,
    bias: Tensor | None = None,
    bias_of_hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden and cell state, and the gates for the backward: [batch, 4 * hidden]."""
    i, f, g, o = (_with(gates, bias) + _with(of_hidden, bias_of_hidden)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward(
    of_hy: Tensor | None, of_cy: Tensor | None, cx: Tensor, cy: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the gates, of the cell state and of a bias."""
    i, f, g, o = gates.chunk(4, 1)
    of_hy = torch.zeros_like(cy) if of_hy is None else of_hy
    c = cy.tanh()
    of_c = of_hy * o * (1 - c * c) + (0 if of_cy is None else of_cy)
    of_i, of_f = of_c * g * i * (1 - i), of_c * cx * f * (1 - f)
    of_g, of_o = of_c * i * (1 - g * g), of_hy * c * o * (1 - o)
    of_gates = torch.cat([of_i, of_f, of_g, of_o], 1)
    return of_gates, of_c * f, of_gates.sum(0) if has_bias else None


def gru_cell(
    gates: Tensor,
    of_hidden: Tensor,
    hx: Tensor,
    bias: Tensor | None = None,
    bias_of_hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The hidden state, and what the backward needs: [batch, 5 * hidden]."""
    (r, z, n), (hr, hz, hn) = (
        _with(t, b).chunk(3, 1) for t, b in ((gates, bias), (of_hidden, bias_of_hidden))
    )
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, hn], 1)


def gru_cell_backward(of_hy: Tensor, saved: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    """Gradients of both kinds of gates, of the hidden state and of both biases."""
    r, z, n, hx, hn = saved.chunk(5, 1)
    of_z = of_hy * (hx - n) * z * (1 - z)
    of_n = of_hy * (1 - z) * (1 - n * n)
    of_r = of_n * hn * r * (1 - r)
    of_gates, of_hidden = torch.cat([of_r, of_z, of_n], 1), torch.cat([of_r, of_z, of_n * r], 1)
    biases = (of_gates.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_gates, of_hidden, of_hy * z, *biases
