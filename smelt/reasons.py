"""Typed reasons: why a frame was not captured (or, later, why a graph broke), each with an id and what to do.

A reason is raised inside capture as `Unsupported(reason, detail)`; the frame then runs eagerly and the reason is kept
with the code object, emitted as an event, and logged once.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.graph.ir import Line


@dataclass(frozen=True)
class ReasonKind:
    """One row of the table: `id` is stable and documented, `summary` says what, `hint` what to do about it."""

    id: str
    summary: str
    hint: str


@dataclass(frozen=True)
class Reason:
    kind: ReasonKind
    detail: str
    line: Line | None = None
    stack: tuple[Line, ...] = ()  # outermost first

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind.id}: {self.kind.summary}{detail}{at}. {self.kind.hint}"


def _kind(id: str, summary: str, hint: str) -> ReasonKind:
    kind = ReasonKind(id, summary, hint)
    REASONS[id] = kind
    return kind


REASONS: dict[str, ReasonKind] = {}

DATA_DEPENDENT = _kind(
    "data-dependent-value",
    "Python read the value of a tensor",
    "Keep the computation in tensors (torch.where instead of if), or move .item()/bool() out of the compiled function.",
)
DATA_DEPENDENT_SHAPE = _kind(
    "data-dependent-shape",
    "an operator's output size depends on the values of its inputs",
    "Use a fixed-size formulation (masks instead of boolean indexing), or keep it out of the compiled function.",
)
UNSUPPORTED_OPCODE = _kind(
    "unsupported-opcode",
    "a bytecode instruction is not captured yet",
    "Rewrite the line without the construct.",
)
UNSUPPORTED_CALL = _kind(
    "unsupported-call",
    "a native function whose effects smelt does not know was called",
    "Move the call out of the compiled function.",
)
UNSUPPORTED_EFFECT = _kind(
    "unsupported-effect",
    "an object outside the function was changed in a way that is not replayed yet",
    "Return the new value instead of storing it.",
)
UNSUPPORTED_OBJECT = _kind(
    "unsupported-object",
    "an object of this kind cannot be carried through capture yet",
    "Pass tensors, numbers, containers or plain Python objects.",
)
SIDE_EFFECT_IO = _kind(
    "input-output",
    "the function reads or changes the outside world (files, the network, time, random numbers)",
    "Move it out of the compiled function.",
)
OUTPUT = _kind(
    "output",
    "something is printed, logged or warned of in a way that cannot wait until the graph has run",
    "Print to sys.stdout or sys.stderr and log through the standard handlers, or move it out of the compiled function.",
)
GRAPH_BREAK_REQUESTED = _kind(
    "graph-break-requested",
    "smelt.graph_break() was called",
    "Remove the call to capture the function whole.",
)
DISABLED = _kind(
    "disabled-function", "a function marked with disable() was called", "Remove the mark to capture it."
)
NEEDS_AUTOGRAD = _kind(
    "needs-autograd",
    "gradients are required and this backend compiles inference only so far",
    "Call it under torch.no_grad(), or freeze the parameters with requires_grad_(False).",
)
TENSOR_SUBCLASS = _kind("tensor-subclass", "a tensor subclass is not captured yet", "Pass plain tensors.")
USER_EXCEPTION = _kind(
    "user-exception",
    "the function raised while it was captured, so the call ran eagerly",
    "If eager does not raise it as well, this is a bug in smelt; please report it.",
)
RECOMPILE_LIMIT = _kind(
    "recompile-limit",
    "the function was recompiled too often",
    "Make what changes from call to call a tensor, or raise options={'recompile_limit': N}.",
)
BACKEND_FAILED = _kind(
    "backend-failed", "the backend raised while compiling the graph", "See the chained exception."
)
INTERNAL = _kind(
    "internal-error", "smelt failed while capturing", "This is a bug in smelt; please report it."
)
