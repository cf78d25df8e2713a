"""Exceptions a user can meet. Everything raised on purpose derives from `SmeltError`."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from smelt.reasons import INTERNAL, Reason


def nearest(name: object, known: Collection[str]) -> str:
    """The hint of an error about an unknown name: the known name next to it, or all known ones."""
    near = difflib.get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


class SmeltError(Exception):
    """Base of all errors that smelt raises on purpose."""

    def __init__(self, *args: object) -> None:
        # Not `super`: `smelt run` adds bases of torch's, which have other arguments.
        Exception.__init__(self, *args)


class Unsupported(SmeltError):
    """Something cannot be captured, for `reason`. With `fullgraph=True` the user sees it; otherwise the graph breaks there,
    or the call runs eagerly."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.breaks = True  # whether the graph may break here; if not, the whole call runs eagerly
        # whether the code after a break in the innermost frame begins with the same instruction, which can be captured there
        self.continues = False
        # whether only this call cannot be captured: it initializes objects, which later calls find initialized
        self.initializes = False
        self.needs_joint_graph = False  # whether a capture of the joint graph may succeed
        # Instructions begun in each frame of the VM, outermost first, when this was raised (capture.driver.attempts.Stop).
        self.path: tuple[int, ...] = ()


class RefusedOperator(Unsupported):
    """A higher-order operator takes functions that torch's compiler, by which eager mode runs the operator, may refuse. The
    graph breaks before the whole operator."""


class RecordsWarnings(Unsupported):
    """The graph breaks inside of a `catch_warnings(record=True)`, whose list no compiled frame can share."""


class SharesCounter(Unsupported):
    """A result shares the version counter of a tensor whose `data` was set. The graph breaks before that assignment."""


class DropsObserved(Unsupported):
    """The program takes an object with a finalizer from the environment, whose end it may observe at once. The graph breaks
    there."""


class CreatesSizes(Unsupported):
    """The fake kernel of a custom operator creates sizes that data decide."""


class NeedsFixedSize(Unsupported):
    """Something works for fixed sizes only: `symbols` (`shapes.expr.Sym`) are to be numbers. A capture begins again without
    them, so users do not see it. `now`: it is due to the numbers that they are in this call. `divisors`: it may be enough
    that each of these symbols is a multiple of a number, or always leaves the same remainder. `ranges`: or in a range, in
    this call. `equal`: it is enough that these, which are the same number in this call, are one symbol. `derived`: or that
    each of these is an expression over others. `assumed`: or that the graph checks that each of these unbacked sizes equals
    another size."""

    def __init__(
        self,
        why: str,
        symbols: frozenset[Any],
        *,
        now: bool = False,
        divisors: Mapping[Any, int] | None = None,
        ranges: Mapping[Any, tuple[int, int]] | None = None,
        equal: frozenset[Any] = frozenset(),
        derived: Mapping[Any, Any] | None = None,
        assumed: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(Reason(INTERNAL, why))
        self.symbols = symbols
        self.now = now
        self.divisors = divisors or {}
        self.ranges = ranges or {}
        self.equal = equal
        self.derived = derived or {}
        self.assumed = assumed or {}
        self.sources: tuple[str, ...] = ()  # the same sizes, where the program found them

    def __repr__(self) -> str:
        return f"NeedsFixedSize({self.reason.detail!r})"


class OtherSizes(SmeltError):
    """Data decide sizes that are not those that a graph was made for. The call is made by the original function, so users do
    not see it."""


FEW_STEPS = (
    "smelt: a loop took fewer steps than its gradients need"  # in a failed check, handled as OtherSizes
)


class MarkedSizeError(SmeltError, ValueError):
    """The program specializes a size that is marked as dynamic (`smelt.mark_dynamic`); torch.compile raises
    ConstraintViolationError there. The message names the tensor, the dimension and the line."""


class Unavailable(SmeltError):
    """smelt cannot work with the torch or the Python that it meets, and a whole graph was asked for."""


class BackendError(SmeltError):
    """A backend failed to compile a graph; the original exception is chained."""


class VerificationError(SmeltError):
    """An invariant of one of smelt's own data structures does not hold (a bug in smelt)."""


class ArtifactError(SmeltError):
    """An edited graph (`smelt.dump(..., override=True)`, `SMELT_OVERRIDE`) cannot be compiled in place of the captured one:
    the message names the file, what is wrong, and what was expected. Calls raise it for what an edited program gives. Of
    edited frames the same is logged."""


class OptionError(SmeltError, ValueError):
    """A wrong argument or option; the message names it and the nearest valid one."""


class PlanError(SmeltError, ValueError):
    """Bytes that are not a plan, or a plan that this process cannot run or that cannot be written as bytes."""


class CacheError(SmeltError, ValueError):
    """A file that `smelt.load_cache` refuses: it is damaged, or another user could have written it."""


class ExportError(SmeltError):
    """A call cannot be exported as it is (`smelt.export`): the message names the argument or the user's line, and what to
    do. The error of capture, if there is one, is chained."""


class ProgramError(SmeltError, ValueError):
    """A file that is no exported program, or is damaged (`smelt.load`): the message names the section."""


class InputError(SmeltError, ValueError):
    """An argument of an exported program is not as at its export: the message names the argument and the dimension, what was
    expected, and what was found."""
