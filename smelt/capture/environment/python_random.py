"""Random numbers of Python and NumPy: the compiled frame draws them, in program order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.guards.source import Source


@dataclass(frozen=True, eq=False)
class Draw:
    """`generator.method(*args, **kwargs)` of a random generator of the environment.

    The arguments are constants and dynamic numbers. The source of the result is `source` (of kind "drawn"): a number, a list
    of `count` numbers, or an array, whose tensor has the child source "array".
    """

    generator: object
    method: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    source: Source
    count: int = 0
