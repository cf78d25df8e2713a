"""Operators with a recording rule of their own for symbolic sizes."""

from __future__ import annotations

import torch

aten = torch.ops.aten

SLICE = aten.slice.Tensor
SELECT = aten.select.int
SPLIT = aten.split_with_sizes.default
TOPK = aten.topk.default
VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
STRIDED = aten.as_strided.default
UNBIND = aten.unbind.int
DIAGONAL = aten.diagonal.default
DIAGONAL_COPY = aten.diagonal_copy.default
DIAGONAL_BACKWARD = aten.diagonal_backward.default
SLICE_BACKWARD = aten.slice_backward.default
UNFOLD = aten.unfold.default
MAX_POOL = aten.max_pool2d_with_indices.default
EMPTY_LIKE = aten.empty_like.default

# They take a range (`start`, `end`) or one index (`index`) along `dim`.
RANGES = frozenset({SLICE, aten.slice_scatter.default, SLICE_BACKWARD})
SINGLE_INDEX = frozenset({SELECT, aten.select_scatter.default, aten.select_backward.default})

# Names of such arguments that may be negative.
OFFSETS = frozenset({"storage_offset", "start", "end", "shifts", "diagonal"})
# Names of arguments that are numbers, whatever the schema says: they divide, and a large one, which might be tried for a
# symbol, leaves a single element where a small one leaves several.
DIVISORS = frozenset({"step"})

# Arguments typed int, of whose numbers the size of the result is made.
COUNTS = {
    aten.linspace.default: frozenset({"steps"}),
    aten.logspace.default: frozenset({"steps"}),
    aten.tril_indices.default: frozenset({"row", "col"}),
    aten.triu_indices.default: frozenset({"row", "col"}),
    aten.hann_window.default: frozenset({"window_length"}),
    aten.hamming_window.default: frozenset({"window_length"}),
    aten.blackman_window.default: frozenset({"window_length"}),
    aten.bartlett_window.default: frozenset({"window_length"}),
}

# Arguments typed Scalar, of whose numbers the size of the result is made.
SCALAR_SIZES = {"aten::arange": frozenset({"start", "end"})}

# By the operator that is given one size for all pieces: the one that is given all sizes.
SPLITS = {
    aten.split.Tensor: SPLIT,
    aten.unsafe_split.Tensor: aten.unsafe_split_with_sizes.default,
}
