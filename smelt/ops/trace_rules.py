"""Names of the rules for operators that a trace does not simply record.

The rules are in `tracing/record/recording_rules.py`; the family modules in this package declare their operators.
"""

from __future__ import annotations

from enum import Enum, auto


class TraceRule(Enum):
    """An action of the operator that a node of the graph cannot express."""

    DEVICE = auto()  # asks for the device of a tensor
    SIZES = auto()  # asks for sizes of a tensor as plain numbers
    STRIDES = auto()  # asks for strides of a tensor as plain numbers
    NUMBER = auto()  # reads a number from memory
    TRUTH = auto()  # reads a truth value from memory
    VALUES = auto()  # its answer needs values of tensors, and is computed at once if they are known
    LIFT = auto()  # takes a finished tensor of Python's into the program, as a constant
    MASKS = auto()  # may be given masks as indices, whose true places are constants if they are known
    AS_OTHER = auto()  # hides an alias or a write; is `view` or `recorded_as` of its row
    RESHAPED = auto()  # in place, makes its tensor what the operator `view` of its row gives
    STRIDED = auto()  # may reach beyond the elements of its tensor
    STRIDED_SCATTER = auto()  # as STRIDED, with what is written as the second argument
    ATTENTION = auto()  # says which kernel attention takes, by device and layouts
    ZERO = auto()  # gives a zero without memory
    CONVERSION = auto()  # copies a tensor, or gives it back
    COPY = auto()  # copies a tensor, or a number that a transform of torch.func took for one
    REFUSED = auto()  # has an effect that no graph says
