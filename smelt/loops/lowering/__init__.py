"""Tables of lowerings, one module per family of operators. Importing the package fills `table.LOWERINGS`."""

from smelt.loops.lowering import convolutions, norm, pointwise, products, reductions, shapes, views
from smelt.loops.lowering.table import LOWERINGS, TAKE_NUMBERS, Builder

__all__ = [
    "LOWERINGS",
    "TAKE_NUMBERS",
    "Builder",
    "convolutions",
    "norm",
    "pointwise",
    "products",
    "reductions",
    "shapes",
    "views",
]
