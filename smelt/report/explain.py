"""`smelt.explain`: one call of a function, watched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.report.explanation import Explanation


def explained(compiled: Callable[..., Any]) -> Callable[..., Explanation]:
    """What `smelt.explain(fn)` returns, for `fn` compiled: `(*args, **kwargs)` calls it once and gives the explanation."""
    explanation = Explanation(compiled)

    def explain(*args: Any, **kwargs: Any) -> Explanation:
        return explanation.call(*args, **kwargs)

    return explain
