"""Random numbers of Python and NumPy that a program draws: the compiled frame draws them, in program order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.guards.source import Source


@dataclass(frozen=True, eq=False)
class Draw:
    """`generator.method(*args, **kwargs)`, of a generator from outside.

    The arguments are constants and numbers that change from call to call. What it gives is found at `source` (of kind
    "drawn"): a number, a list of `count` numbers, or an array, whose tensor is at the child "array".
    """

    generator: object
    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    source: Source
    count: int = 0
