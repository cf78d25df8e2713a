"""What smelt knows of ATen operators, one module per family; importing the package fills the registry."""

from smelt.ops import (
    batch_norm,
    convolutions,
    convolutions_backward,
    creation,
    losses,
    norms,
    norms_backward,
    pointwise,
    pointwise_backward,
    products,
    reductions,
    views,
)

__all__ = [
    "batch_norm",
    "convolutions",
    "convolutions_backward",
    "creation",
    "losses",
    "norms",
    "norms_backward",
    "pointwise",
    "pointwise_backward",
    "products",
    "reductions",
    "views",
]
