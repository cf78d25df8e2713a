"""Decompositions of matrices, and Fourier transforms: always ATen's."""

from __future__ import annotations

import torch

from smelt.ops.registry import declare

aten = torch.ops.aten

declare(
    *(aten._linalg_svd.default, aten.linalg_eig.default),
    *(aten._fft_r2c.default, aten._fft_c2r.default, aten._fft_c2c.default),
    run_on_zeros=True,
)
