"""How often code is compiled again for other sizes and values, from the option `recompile_limit` (policy:
`capture/environment/symbolic_size_policy.py`)."""

from __future__ import annotations

import itertools

from smelt.config import Config


def is_reached(entries: int, config: Config) -> bool:
    """Whether a function with this many entries runs eagerly where none of them accepts a call."""
    return entries >= config.recompile_limit


def is_near(entries: int, config: Config) -> bool:
    """Whether a function with this many entries is to have short graphs, which more of its paths share."""
    return 2 * entries >= config.recompile_limit


class LocalSpecializations:
    """The specializations of one graph whose sizes capture can no longer specialize: one with unbacked sizes, or a
    backward. Thread-safe."""

    def __init__(self, config: Config) -> None:
        self._limit = config.recompile_limit
        self._count = itertools.count()

    def allow_another(self) -> bool:
        """Count a specialization; False where the graph runs eagerly instead, as there are too many."""
        return next(self._count) < self._limit
