"""Matrix decompositions and Fourier transforms: always ATen calls.

`torch.linalg.eigvals`, `eigvalsh` and `svdvals` compute vectors, too, for a tensor that may require gradients. To ATen the
fakes of a trace may: `only_values` leaves the vectors out again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from smelt.ops.registry import declare
from smelt.torch_private import OpOverload

aten = torch.ops.aten

declare(
    *(aten._linalg_svd.default, aten.linalg_eig.default),
    *(aten._fft_r2c.default, aten._fft_c2r.default, aten._fft_c2c.default),
    run_on_zeros=True,
)
declare("_fft_c2c _fft_c2r _fft_r2c _linalg_solve_ex linalg_lu_solve linalg_solve_triangular", any_size=True)
declare(
    "_linalg_check_errors linalg_inv_ex linalg_cholesky_ex linalg_lu_factor_ex linalg_ldl_factor_ex _linalg_solve_ex "
    "linalg_solve_ex cholesky_inverse linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh _linalg_svd "
    "linalg_lstsq lu_unpack",
    raises=True,  # where a matrix is singular, not positive, or not finite
)
declare(aten.geqrf.default, run_on_zeros=True)  # it has no shape function
declare("lu_unpack linalg_lu_solve linalg_ldl_solve", tried_on=1)
if hasattr(aten, "cholesky"):  # until torch 2.13
    declare("cholesky", raises=True)


def only_values(
    op: Any, args: tuple[Any, ...], used: Collection[int]
) -> tuple[OpOverload, tuple[Any, ...]] | None:
    """The call of a decomposition without vectors, where none is used, and its arguments; None for others."""
    if op is aten.linalg_eig.default and used == {0}:
        return aten._linalg_eigvals.default, args
    if op is aten._linalg_eigh.default and used == {0}:
        return op, (*args, "L")[:2] + (False,)
    if op is aten._linalg_svd.default and used == {1}:
        return op, (args[0], False, False)
    return None
