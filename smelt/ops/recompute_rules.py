"""Rules for rematerializing an operator of the forward in the backward.

A class states its work, and whether it may be rematerialized: always, only for a memory budget below 1, or never. Each
ban carries its reason, which reports show.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class OperatorClass:
    """`work`: simple operations per element of the largest operand or result (products: see `work_of`)."""

    name: str
    recompute: Literal["always", "budget", "never"]
    work: int
    reason: str


class Class:
    """The classes."""

    VIEW = OperatorClass("view", "always", 0, "shares memory that is saved anyway")
    CREATION = OperatorClass("creation", "always", 1, "reads nothing")
    POINTWISE = OperatorClass("pointwise", "always", 1, "fuses into the kernel that reads it")
    TRANSCENDENTAL = OperatorClass(
        "transcendental", "always", 8, "fuses too, but its polynomial costs time: only for fewer bytes"
    )
    MOVEMENT = OperatorClass(
        "movement", "always", 2, "reads each element once, as reading a saved copy would"
    )
    ROWS = OperatorClass("rows", "always", 16, "a small reduction and a pointwise pass over a cached row")
    REDUCTION = OperatorClass("reduction", "budget", 1, "reads much and returns little: cheap to save")
    STATISTICS = OperatorClass(
        "statistics", "budget", 8, "its result follows from its statistics, which are small"
    )
    SCAN = OperatorClass("scan", "budget", 8, "runs one element after the other")
    PRODUCT = OperatorClass("product", "budget", 2, "as expensive as the backward itself")
    SORT = OperatorClass("sort", "budget", 32, "expensive, and returns indices")
    SCATTER = OperatorClass("scatter", "budget", 4, "adds in any order: a second run may round otherwise")
    OTHER = OperatorClass("other", "budget", 64, "in no table, so assumed expensive")
    RANDOM = OperatorClass("random", "never", 16, "a second run would draw other numbers")
    EFFECT = OperatorClass("effect", "never", 0, "writes memory")
    OPAQUE = OperatorClass("opaque", "never", 0, "not torch's: a second run may give another result")
    VALUE_DEPENDENT = OperatorClass(
        "value-dependent", "never", 0, "its result's size, or a number, depends on data"
    )
    INPUT = OperatorClass("input", "never", 0, "given by the caller")
