"""Errors against float64, beside eager's."""

from __future__ import annotations

from typing import Any

import torch

from tests.harness.agreement import tensors


def error(got: Any, exact: Any) -> float:
    """The largest difference of any element, relative to the largest element of its tensor."""
    worst = 0.0
    for a, e in zip(tensors(got), tensors(exact), strict=True):
        difference = (a.detach().double() - e.detach()).abs().max().item()
        worst = max(worst, difference / max(e.detach().abs().max().item(), 1e-300))
    return worst


def no_worse(got: Any, eager: Any, exact: Any, dtype: torch.dtype = torch.float32) -> None:
    """Asserts that errors are at most twice eager's, which count as one unit in the last place if they are less."""
    ours, theirs = error(got, exact), error(eager, exact)
    assert ours <= 2 * max(theirs, torch.finfo(dtype).eps), f"error {ours:.2e}, eager's {theirs:.2e}"
