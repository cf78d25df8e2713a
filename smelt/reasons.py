"""Typed reasons: why a graph breaks, or a call runs eagerly, each with an id, what to do about it and an example.

A reason is raised inside capture as `Unsupported(Reason(kind, detail))`. Where a graph can break, the code before and after
is compiled and what stood in the way runs as it is; elsewhere the call runs eagerly. Reasons are kept with the compiled
callable, emitted as events, and logged once. docs/graph-breaks.md is printed from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.user_lines import Line


@dataclass(frozen=True)
class ReasonKind:
    """One row of the table: `id` is stable and documented, `summary` says what, `hint` what to do about it, `example` is a
    line or two of a function that meets it."""

    id: str
    summary: str
    hint: str
    example: str


@dataclass(frozen=True)
class Reason:
    """Why one graph broke or one call ran eagerly: `detail` names the function or object, `line` is the user's."""

    kind: ReasonKind
    detail: str
    line: Line | None = None
    stack: tuple[Line, ...] = ()  # outermost first

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind.id}: {self.kind.summary}{detail}{at}. {self.kind.hint}"


def _kind(id: str, summary: str, hint: str, example: str) -> ReasonKind:
    kind = REASONS[id] = ReasonKind(id, summary, hint, example)
    return kind


REASONS: dict[str, ReasonKind] = {}

# ---------------------------------------------------------------------------------- what takes long

LONG_COMPUTATION = _kind(
    "long-computation",
    "a loop or a call ran for long in Python without tensor operations",
    "If it need not run at each call, compute it once, outside the compiled function.",
    "for i in range(10_000_000): total += i",
)

# ----------------------------------------------------------------------------------------- values of tensors

TENSOR_CONDITION = _kind(
    "data-dependent-condition",
    "control flow depends on the value of a tensor",
    "Keep effects out of both branches, use torch.where, or decide outside the function.",
    "if x.sum() > 0: print('up')",
)
DATA_DEPENDENT = _kind(
    "data-dependent-value",
    "Python read the value of a tensor",
    "Keep the computation in tensors, or read the value outside the compiled function.",
    "table = x.tolist()",
)
DATA_DEPENDENT_SHAPE = _kind(
    "data-dependent-shape",
    "an operator's output size depends on the values of its inputs",
    "Use a fixed-size formulation (masks instead of boolean indexing), or move it out of the compiled function.",
    "y = x[x > 0]",
)

# ----------------------------------------------------------------------------------------- the outside world

OUTPUT = _kind(
    "output",
    "output that cannot wait until the graph has run",
    "Print to sys.stdout or sys.stderr and log through standard handlers, or move it out of the compiled function.",
    'print("step", file=my_stream)',
)
SIDE_EFFECT_IO = _kind(
    "input-output",
    "the function uses files, the network, processes or the clock",
    "Move it out of the compiled function, and pass the result in.",
    "start = time.time()",
)
RANDOM_STATE = _kind(
    "random-state",
    "control flow depends on a random number of Python or NumPy, or the function reads a generator's state",
    "Use such numbers in tensors only, or draw them outside the compiled function.",
    "if random.random() < 0.1: ...",
)
DEBUGGER = _kind(
    "debugger",
    "the function starts a debugger, and the call runs eagerly, so that it shows the variables and lines",
    "Remove the call to compile the function.",
    "breakpoint()",
)
IMPORT = _kind(
    "import",
    "the function imports a module for the first time, which runs its code",
    "Import it at the top of the file.",
    "def f(x): import helpers; ...",
)

# ---------------------------------------------------------------------------------------- what is not captured

UNSUPPORTED_OPCODE = _kind(
    "unsupported-opcode",
    "smelt does not capture this bytecode instruction, or a graph break at it",
    "Rewrite the line without the construct.",
    "async def numbers(): yield 1  # an asynchronous generator",
)
UNSUPPORTED_CALL = _kind(
    "unsupported-call",
    "the function calls a native function whose effects smelt does not know",
    "Call a function of torch in its place, or move the call out of the compiled function.",
    "tokens = tokenizer.encode(text)  # a function of C",
)
UNSUPPORTED_EFFECT = _kind(
    "unsupported-effect",
    "the function changes an outside object in a way that smelt does not replay",
    "Return the new value instead of storing it.",
    "torch.set_num_threads(1)",
)
UNSUPPORTED_OBJECT = _kind(
    "unsupported-object",
    "smelt does not capture objects of this kind",
    "Pass tensors, numbers, containers or plain Python objects.",
    "y = x + torch.from_numpy(array)",
)
TENSOR_SUBCLASS = _kind(
    "tensor-subclass",
    "smelt does not capture this tensor subclass",
    "Pass plain tensors.",
    "class Quantity(torch.Tensor): ...",
)

# --------------------------------------------------------------------------------------------------- asked for

GRAPH_BREAK_REQUESTED = _kind(
    "graph-break-requested",
    "the function calls smelt.graph_break()",
    "Remove the call to capture the function whole.",
    "smelt.graph_break()",
)
DISABLED = _kind(
    "disabled-function",
    "the function calls one that is marked with disable()",
    "Remove the mark to capture it.",
    "@smelt.disable",
)

# ---------------------------------------------------------------------------------------- the call as a whole

ANOTHER_TRACER = _kind(
    "another-tracer",
    "another tracer of torch observes this call, so the function itself runs",
    "Nothing; smelt compiles calls outside of the tracer.",
    "with FakeTensorMode() as mode: compiled(mode.from_tensor(x))",
)
USER_EXCEPTION = _kind(
    "user-exception",
    "the function raised during capture, so the call ran eagerly",
    "If eager does not raise it too, this is a bug in smelt; please report it.",
    'raise ValueError("empty batch")',
)
RECOMPILE_LIMIT = _kind(
    "recompile-limit",
    "the function was recompiled too often",
    "Pass the value that changes as a tensor, keep a tensor in place of a list that grows, or raise "
    "options={'recompile_limit': N}.",
    "for step in range(100): compiled(x, step / 3)",
)
CHANGING_VALUE = _kind(
    "changing-value",
    "the program needs a value, or the size or keys of a container, that kept causing recompiles",
    "Read the value outside the compiled function and pass the result, or use it in tensors only.",
    'totals[f"step {step}"] = loss',
)
OUTRUN = _kind(
    "changed-meanwhile",
    "at each capture another thread changed an object that the function reads",
    "Call the function once before other threads write the objects that it reads.",
    "model.scale = next(scales)  # in another thread, all the time",
)
BACKEND_FAILED = _kind(
    "backend-failed",
    "the backend raised while compiling the graph",
    "See the chained exception.",
    "smelt.compile(f, backend=my_backend)",
)
DIFFERS = _kind(
    "differs-from-eager",
    "compiled code returned another result than eager (found by the option verify)",
    "This is a bug in smelt; please report it with the reproducer. Until then the function runs eagerly.",
    "smelt.compile(f, options={'verify': 3})",
)
INTERNAL = _kind(
    "internal-error", "smelt failed while capturing", "This is a bug in smelt; please report it.", ""
)
