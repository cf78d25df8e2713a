"""Exceptions a user can meet. Everything raised on purpose derives from `SmeltError`."""

from __future__ import annotations

from smelt.reasons import Reason


class SmeltError(Exception):
    """Base of all errors that smelt raises on purpose."""


class Unsupported(SmeltError):
    """A frame cannot be captured. With `fullgraph=True` the user sees it; otherwise the frame runs eagerly."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.breaks = True  # whether a graph break is of use; otherwise the frame runs eagerly as a whole
        self.path: tuple[int, ...] = ()  # where in the frames it was raised: see capture.driver.attempts.Stop


class BackendError(SmeltError):
    """A backend failed to compile a graph; the original exception is chained."""


class VerificationError(SmeltError):
    """An invariant of one of smelt's own data structures does not hold (a bug in smelt)."""


class OptionError(SmeltError, ValueError):
    """A wrong argument or option; the message names it and the nearest valid one."""


class PlanError(SmeltError, ValueError):
    """Bytes that are no plan, or one that this process cannot run; or a plan that has no form in bytes."""
