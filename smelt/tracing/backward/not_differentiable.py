"""The error for traces without a joint graph."""

from __future__ import annotations

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason


class NotDifferentiable(Unsupported):
    """A trace without a joint graph: its torch-level graph runs under autograd instead."""


def refuse(detail: str) -> NotDifferentiable:
    """The error for gradients that cannot be computed ahead of time, with `detail` as the reason."""
    return NotDifferentiable(Reason(UNSUPPORTED_OBJECT, f"no ahead-of-time gradients: {detail}"))
