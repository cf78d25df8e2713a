"""Runs a program that is valid for all sizes, eager and compiled with `dynamic=True`, at several sets of sizes, and says
where they differ.

A call has sizes for `p`, `q` and `r`, among them 0, 1, equal and prime ones, and a way for each input to lie in memory:
with its dimensions in any order, a part of something larger, expanded.
"""

from __future__ import annotations

import linecache
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import smelt
from smelt import events
from smelt.errors import NeedsFixedSize
from smelt.report.inspect import entries, reasons
from tests.harness.agreement import Observed, failure_of, observe
from tests.harness.generate import Choices, Replayed, Seeded, shrink
from tests.harness.generate_sizes import Input, SizedOptions, SizedProgram, write_sized_program

CALLS = 6
COMMON = (2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 23, 24, 29, 64)
LIMIT = 64  # entries: what is looked for is not where smelt gives up


@dataclass(frozen=True)
class Call:
    """Sizes by name, and a number for each input that says how it lies."""

    sizes: dict[str, int]
    layouts: tuple[int, ...]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"{sizes}{', layouts ' + str(self.layouts) if any(self.layouts) else ''}"


def calls_of(choices: Choices, program: SizedProgram) -> list[Call]:
    """Six calls: one of them has equal sizes, one or two a 0 or 1; mostly inputs lie alike in all of them."""
    pick = choices.pick
    usual = tuple(pick(1000) if pick(4) == 3 else 0 for _ in program.inputs)
    made = []
    for k in range(CALLS):
        sizes = [COMMON[pick(len(COMMON))] for _ in program.sizes]
        if k == 4 or pick(6) == 5:
            sizes[pick(len(sizes))] = pick(2)
        if k == 3 and len(sizes) > 1:
            sizes[1] = sizes[0]
        if sorted(sizes)[-2:] == [64, 64]:
            sizes = [min(s, 23) for s in sizes]
        layouts = tuple(pick(1000) if pick(2) else 0 for _ in program.inputs) if pick(6) == 5 else usual
        made.append(Call(dict(zip(program.sizes, sizes)), layouts))
    first = pick(CALLS)
    return made[first:] + made[:first]


def _values(given: Input, shape: Sequence[int], salt: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    whole = (torch.arange(float(count)) * 7 + salt).remainder(11).sub(4)
    if given.kind == "index":
        whole = whole.abs().long()
    return (whole > 0 if given.kind == "mask" else whole).reshape(tuple(shape))


def _laid_out(given: Input, values: torch.Tensor, layout: int) -> torch.Tensor:
    """The values in memory as `layout` says; 0 is row by row. What is written has no two elements at one place."""
    rank = values.dim()
    if not layout or not rank:
        return values
    kind, layout = layout % 4, layout // 4
    if kind == 0:  # a part of something larger
        larger = torch.zeros(
            [n + (k == layout % rank) * 2 for k, n in enumerate(values.shape)], dtype=values.dtype
        )
        part = larger.narrow(layout % rank, 1, values.shape[layout % rank])
        return part.copy_(values)
    if kind == 1 and not given.written:
        dim = layout % rank
        if values.shape[dim] > 0:
            return values.narrow(dim, 0, 1).clone().expand(values.shape)
    if kind == 2:  # every second
        larger = torch.zeros(
            [n * (1 + (k == layout % rank)) for k, n in enumerate(values.shape)], dtype=values.dtype
        )
        part = larger[tuple(slice(None, None, 1 + (k == layout % rank)) for k in range(rank))]
        return part.copy_(values)
    order: list[int] = []
    left = list(range(rank))
    while left:
        order.append(left.pop(layout % len(left)))
        layout //= max(len(left) + 1, 1)
    back = [order.index(k) for k in range(rank)]
    return values.permute(order).contiguous().permute(back)


def _arguments(program: SizedProgram, call: Call) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """The arguments of a call, and the leaves that get gradients."""
    arguments, leaves = [], []
    for k, (given, layout) in enumerate(zip(program.inputs, call.layouts)):
        shape = [int(eval(d.text, {"max": max, "min": min}, dict(call.sizes))) for d in given.dims]
        t = _laid_out(given, _values(given, shape, k), layout)
        if program.grad and t.is_floating_point():
            leaves.append(t.requires_grad_())
            if given.written:
                t = t * 1
        arguments.append(t)
    return tuple(arguments), leaves


@dataclass
class Seen:
    """What a call did: as `observe` says, and gradients, or the error of the backward."""

    observed: Observed
    grads: list[torch.Tensor | None] = field(default_factory=list)
    backward: str = ""


def _run(fn: Callable[..., Any], program: SizedProgram, call: Call, moved: float = 0.0) -> Seen:
    arguments, leaves = _arguments(program, call)
    if moved:
        with torch.no_grad():
            for x in (a for a in arguments if a.is_floating_point() and 0 not in a.stride()):
                x *= 1 + moved * _weights(x)
    seen = Seen(observe(fn, arguments, 0))
    results = seen.observed.result or ()
    wanted = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if wanted:
        try:
            total = sum((r * _weights(r)).sum() for r in map(_real, wanted))
            total.backward()  # type: ignore[union-attr]
        except RuntimeError as error:
            seen.backward = str(error)
    seen.grads = [t.grad for t in leaves]
    return seen


def _real(r: torch.Tensor) -> torch.Tensor:
    """Complex numbers as two each."""
    return torch.view_as_real(r.resolve_conj()) if r.is_complex() else r


def _weights(r: torch.Tensor) -> torch.Tensor:
    return torch.arange(r.numel(), dtype=r.dtype).remainder(5).sub(1.5).reshape(r.shape)


def _difference(got: Seen, want: Seen) -> str | None:
    a, b = got.observed, want.observed
    if a.error is not None or b.error is not None:
        if type(a.error) is not type(b.error) or str(a.error) != str(b.error):
            return f"raised {a.error!r}, eager {b.error!r}"
    found = _unlike(a.result, b.result, "result") or _unlike(a.arguments, b.arguments, "argument")
    if found is None and not torch.equal(a.random, b.random):
        found = "the random generator is in another state"
    if found is None and a.aliases != b.aliases:
        found = f"aliases {a.aliases}, eager {b.aliases}"
    if found is not None or "modified by an inplace" in want.backward:
        return found  # eager's backward stopped half-way; a compiled one may have kept less, and go on
    if got.backward != want.backward:
        return f"the backward raised {got.backward!r}, eager's {want.backward!r}"
    # a backward that raises has written the gradients that it reached before
    return None if want.backward else _unlike(got.grads, want.grads, "gradient")


OTHER_NUMBERS = "other numbers"


def _jumps(fn: Callable[..., Any], program: SizedProgram, call: Call, want: Seen) -> bool:
    """Whether eager's own numbers are others for inputs that differ by rounding: by the sign of what is 0 but for that."""
    moved = _run(fn, program, call, 1e-6)
    return OTHER_NUMBERS in (_difference(moved, want) or "")


def _unlike(got: Any, want: Any, path: str) -> str | None:
    """The first difference of two trees of tensors and numbers."""
    if isinstance(want, (tuple, list)):
        if type(got) is not type(want) or len(got) != len(want):
            return f"{path}: {got!r}, eager {want!r}"
        found = (_unlike(g, w, f"{path}[{k}]") for k, (g, w) in enumerate(zip(got, want)))
        return next((f for f in found if f is not None), None)
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return None if type(got) is type(want) and got == want else f"{path}: {got!r}, eager {want!r}"
    for what in ("shape", "dtype", "requires_grad", "is_leaf", "is_conj", "is_neg"):
        ours, theirs = _said(got, what), _said(want, what)
        if ours != theirs:
            return f"{path}: {what} {ours}, eager {theirs}"
    if _layout(got, path) != _layout(want, path):
        lies = [f"strides {t.stride()} from {t.storage_offset()}" for t in (got, want)]
        return f"{path}: {lies[0]}, eager {lies[1]}"
    got, want = _real(got.detach()), _real(want.detach())
    if not want.is_floating_point():
        return None if torch.equal(got, want) else f"{path}: {OTHER_NUMBERS}"
    finite = want[want.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 1.0
    if not torch.allclose(got, want, rtol=1e-3, atol=2e-4 * max(scale, 1.0), equal_nan=True):
        off = (got - want).abs().nan_to_num(float("inf")).max()
        return f"{path}: {OTHER_NUMBERS}, by {float(off):.3g}"
    return None


def _said(t: torch.Tensor, what: str) -> Any:
    """What the tensor says of itself, or the error of one of several views whose base was written, which has no history
    then."""
    try:
        said = getattr(t, what)
        return said() if callable(said) else said
    except RuntimeError as error:
        return str(error)


def _layout(t: torch.Tensor, path: str) -> tuple[list[int], int]:
    """Strides of dimensions with more than one element, and where it starts. What torch says of others reaches no element,
    and may depend on how another size divides. Gradients start anywhere: autograd accumulates in several ways, and keeps one
    that is a row of something larger where it is, while it copies several rows."""
    strides = [s for n, s in zip(t.size(), t.stride()) if n > 1]
    return strides, 0 if path.startswith("gradient") else t.storage_offset()


@dataclass
class Outcome:
    """`problem`: the first difference, failure of smelt, or call that ran eagerly without a reason. `entries`: of the
    function. `eager`: why calls ran eagerly, or graphs broke. `fixed`: why captures began again without some symbols.
    `raised`: calls that raised in eager."""

    problem: str | None = None
    entries: int = 0
    eager: list[str] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)
    raised: int = 0


class _Heard(logging.Handler):
    """What is said of captures that began again since sizes had to be numbers."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if isinstance(error, NeedsFixedSize):
            self.texts.append(error.reason.detail)


def outcome_of(
    program: SizedProgram, calls: Sequence[Call], backend: str = "smelt", verify: bool = False
) -> Outcome:
    """What came of the calls, one after the other. An exception of the harness or of smelt is a problem too."""
    made = Outcome()
    heard = _Heard()
    log = logging.getLogger("smelt")
    level = log.level
    log.addHandler(heard)
    log.setLevel(logging.DEBUG)
    propagate, log.propagate = log.propagate, False
    try:
        made.problem = _compare(program, calls, backend, verify, made)
    except Exception as error:
        made.problem = f"{type(error).__name__}: {error}"
    finally:
        log.removeHandler(heard)
        log.setLevel(level)
        log.propagate = propagate
    made.fixed = heard.texts
    return made


def _compare(
    program: SizedProgram, calls: Sequence[Call], backend: str, verify: bool, made: Outcome
) -> str | None:
    fn = function_of(program.source)
    options = {"recompile_limit": LIMIT, "verify_stages": verify}
    compiled = smelt.compile(fn, dynamic=True, backend=backend, options=options)
    with warnings.catch_warnings(), torch.set_grad_enabled(program.grad):
        warnings.simplefilter("ignore")
        for number, call in enumerate(calls):
            want = _run(fn, program, call)
            seen: set[str] = set()
            with events.subscribed(lambda event, seen=seen: seen.add(event.kind)):  # type: ignore[misc]
                got = _run(compiled, program, call)
            made.raised += want.observed.error is not None
            problem = _difference(got, want)
            if problem is not None and OTHER_NUMBERS in problem and _jumps(fn, program, call, want):
                problem = None
            if (
                problem is None
                and "capture-start" in seen
                and seen.isdisjoint({"entry-installed", "eager-fallback"})
            ):
                problem = "it ran eagerly without a reason"
            if problem is not None:
                return f"call {number} ({call}): {problem}"
    made.entries = len(entries(compiled))
    made.eager = [f"{r.kind.id}: {r.detail}" for r in reasons(compiled)]
    failure = failure_of(compiled)
    return None if failure is None else str(failure)


def function_of(source: str) -> Callable[..., Any]:
    """The function of a program, whose lines tracebacks show."""
    name = f"<program {abs(hash(source)):x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "generated"}
    exec(compile(source, name, "exec"), namespace)
    function: Callable[..., Any] = namespace["program"]
    return function


def sized(seed: int, options: SizedOptions) -> tuple[SizedProgram, list[Call], list[int]]:
    """The program of a seed, its calls, and the numbers that decide the program."""
    choices = Seeded(seed)
    program = write_sized_program(choices, options)
    return program, calls_of(Seeded(seed + 1), program), choices.made


def shrunk(
    seed: int, options: SizedOptions, problem: str, backend: str = "smelt"
) -> tuple[SizedProgram, list[Call]]:
    """A smaller program with fewer calls that differs in the same way."""
    program, calls, numbers = sized(seed, options)

    def fails(program: SizedProgram, calls: Sequence[Call]) -> bool:
        found = outcome_of(program, calls, backend).problem
        return found is not None and kind_of(found) == kind_of(problem)

    for k in reversed(range(len(calls))):
        fewer = calls[:k] + calls[k + 1 :]
        if fewer and fails(program, fewer):
            calls = fewer

    def still(candidate: list[int]) -> bool:
        smaller = write_sized_program(Replayed(candidate), options)
        return fails(smaller, [_for(c, smaller) for c in calls])

    program = write_sized_program(Replayed(shrink(numbers, still)), options)
    calls = [_for(c, program) for c in calls]
    plain = [Call(c.sizes, (0,) * len(c.layouts)) for c in calls]
    return program, plain if fails(program, plain) else calls


def _for(call: Call, program: SizedProgram) -> Call:
    """The call with what another program takes."""
    sizes = {name: call.sizes.get(name, 3) for name in program.sizes}
    return Call(sizes, (*call.layouts, 0, 0, 0)[: len(program.inputs)])


def kind_of(problem: str) -> str:
    """What two reports of the same difference have in common: their words without names, numbers and calls."""
    problem = re.sub(r"^call \d+ \([^)]*\)?\): ", "", problem)
    return re.sub(r"[\d_]+|'[^']*'|<[^>]*>|\([^)]*\)|\[[^]]*\]", "", problem)[:60]
