"""Why a trace has no joint graph."""

from __future__ import annotations

from smelt.errors import Unsupported
from smelt.reasons import UNSUPPORTED_OBJECT, Reason


class NotDifferentiable(Unsupported):
    """A trace without a joint graph: its torch-level graph runs under autograd instead."""


def refuse(detail: str) -> NotDifferentiable:
    """The error for gradients that cannot be had ahead of time, because of `detail`."""
    return NotDifferentiable(Reason(UNSUPPORTED_OBJECT, f"no ahead-of-time gradients: {detail}"))
