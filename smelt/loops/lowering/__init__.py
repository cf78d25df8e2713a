"""Tables of lowerings, one module per family of operators. Importing the package fills `table.LOWERINGS`."""

from smelt.loops.lowering import (
    backward,
    batch_norm,
    convolution_backward,
    convolutions,
    losses,
    norm,
    norm_backward,
    pointwise,
    products,
    reductions,
    shapes,
    views,
)
from smelt.loops.lowering.table import LOWERINGS, TAKE_NUMBERS, Builder

__all__ = [
    "LOWERINGS",
    "TAKE_NUMBERS",
    "Builder",
    "backward",
    "batch_norm",
    "convolution_backward",
    "convolutions",
    "losses",
    "norm",
    "norm_backward",
    "pointwise",
    "products",
    "reductions",
    "shapes",
    "views",
]
