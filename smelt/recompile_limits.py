"""How often code is compiled again for other sizes and values, from the option `recompile_limit` (policy:
`capture/environment/symbolic_size_policy.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from smelt.config import DEFAULT, Config

# The limits that programs set elsewhere, for functions without one of their own; `smelt run` adds torch's.
limits_of_program: list[Callable[[], int | None]] = []


def is_reached(entries: int, config: Config) -> bool:
    """Whether a function with this many entries runs eagerly where none of them accepts a call."""
    return entries >= _limit(config)


def is_near(entries: int, config: Config) -> bool:
    """Whether a function with this many entries is to have short graphs, which more of its paths share."""
    return 2 * entries >= _limit(config)


def _limit(config: Config) -> int:
    if config.recompile_limit != DEFAULT.recompile_limit:
        return config.recompile_limit
    found = [limit() for limit in limits_of_program]
    return next((n for n in found if n is not None), config.recompile_limit)


class LocalSpecializations:
    """The specializations of one graph whose sizes capture can no longer specialize: one with unbacked sizes, or a
    backward. Thread-safe."""

    def __init__(self, config: Config) -> None:
        self._limit = config.recompile_limit
        self._count = itertools.count()

    def allow_another(self) -> bool:
        """Count a specialization; False where the graph runs eagerly instead, as there are too many."""
        return next(self._count) < self._limit
