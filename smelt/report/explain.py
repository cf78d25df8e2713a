"""`smelt.explain`: one observed call of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.report.explanation import Explanation


def explained(compiled: Callable[..., Any], times: int = 0) -> Callable[..., Explanation]:
    """The callable that `smelt.explain(fn)` returns, for `fn` compiled: `(*args, **kwargs)` calls it once, then
    `times` more to time its kernels, and returns the explanation."""
    explanation = Explanation(compiled)

    def explain(*args: Any, **kwargs: Any) -> Explanation:
        explanation.call(*args, **kwargs)
        if times:
            with explanation.timing():
                for _ in range(times):
                    explanation.result = compiled(*args, **kwargs)
        return explanation

    return explain
