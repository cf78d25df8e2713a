"""Operators: the registry of ATen operators, and the modules that fill it, one per family."""

from smelt.ops import (
    activations,
    batch_norm,
    convolution_backward,
    convolutions_as_gemm,
    creation,
    data_movement,
    images,
    indexing,
    linalg_fft,
    losses,
    norms,
    norms_backward,
    pointwise,
    pointwise_backward,
    random_numbers,
    recurrent_networks,
    reductions,
    sdpa,
    slice_insertion,
    sorting,
    tensor_objects,
    vector_matmul,
    view_operators,
)

__all__ = [
    "activations", "batch_norm", "convolution_backward", "convolutions_as_gemm", "creation", "data_movement",
    "images", "indexing", "linalg_fft", "losses", "norms", "norms_backward", "pointwise", "pointwise_backward",
    "random_numbers", "recurrent_networks", "reductions", "sdpa", "slice_insertion", "sorting", "tensor_objects",
    "vector_matmul", "view_operators",
]  # fmt: skip
