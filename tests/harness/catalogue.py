"""Programs that must do compiled what they do eager.

    @program(graphs=1)
    def appends_to_argument():
        def fn(x, seen):
            seen.append(x.shape)
            return x + len(seen)
        seen = []
        return fn, [(tensor(3, 4), seen), (tensor(3, 4), seen), (tensor(2), seen)]

The decorated factory is a pytest test. It builds a fresh world: a function (or module, method, callable), at least three
argument tuples (`call(...)` where keywords are needed), and, as an optional third item, any object whose content is
compared after each call too (or a function without arguments that gives it; attributes, globals, lists, ...). What the
function itself holds (closure, defaults, `__self__`, module state) is compared without being named.

The factory is called twice under equal seeds: one world runs eagerly, in the other the function is compiled. After every
call both must show the same: result, arguments and state (deep: types, values, dtypes, strides, `requires_grad`, which
objects are the same object and which tensors share storage), the exception with its causes and contexts, what was printed,
the gradients that a backward of the result's sum leaves, the states of the random generators, grad mode, autocast and
default dtype. Iterators in a result are compared by what they give, coroutines by running them.

A row says how many graphs are compiled, why they break and what runs eagerly; where something else happens the test fails
and prints the line that the row should be, so a row cannot pass because everything ran eagerly.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy
import pytest
import torch
from torch.utils.hooks import RemovableHandle

import smelt
from smelt.errors import SmeltError
from smelt.reasons import REASONS
from smelt.report import inspect
from tests.harness.agreement import failure_of
from tests.harness.snapshot import Fact, difference, snapshot, tensors_in

SEED = 1234
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# `cuda` moves all worlds to a GPU, or to the simulated one where torch has none: their tensors are made there. What rows say
# of graphs and breaks is about the CPU.
DEVICE = os.environ.get("SMELT_DEVICE", "cpu")
ON_GPU = DEVICE == "cuda" and torch.version.cuda is not None  # no simulated one
# For programs that index out of range on purpose: on a GPU that ends the process's use of it, in eager as well.
asserts_on_gpu = pytest.mark.skipif(ON_GPU, reason="an index out of range is an assert of the GPU")
TORCH = "torch " + ".".join(torch.__version__.split(".")[:2])


@dataclass
class Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)


def call(*args: Any, **kwargs: Any) -> Call:
    """The arguments of one call, with keywords."""
    return Call(args, kwargs)


def tensor(*shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> torch.Tensor:
    """A random tensor; integers from 0 to 9 for integral types."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, dtype=dtype).requires_grad_(requires_grad)
    return torch.randint(0, 2 if dtype is torch.bool else 10, shape).to(dtype)


def leaf(*shape: int) -> torch.Tensor:
    return tensor(*shape, requires_grad=True)


def computed(*shape: int) -> torch.Tensor:
    """A tensor with a history."""
    return leaf(*shape) * 1.5


class Changing:
    """Calls between which the world changes: `Changing([(x,), (x,), (x,)], {1: f})` runs `f` just before the second one."""

    def __init__(self, calls: Sequence[Any], changes: Mapping[int, Callable[[], object]]) -> None:
        self.calls = calls
        self.changes = changes

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[Any]:
        for number, call in enumerate(self.calls):
            if number in self.changes:
                self.changes[number]()
            yield call


@dataclass(frozen=True)
class Compilation:
    """What was compiled for a row. Reasons are ids of smelt/reasons.py, one for each place in the user's code."""

    graphs: int
    later: int = 0
    breaks: tuple[str, ...] = ()
    eager: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"{name}={value!r}" for name, value in vars(self).items() if value or name == "graphs"]
        return f"@program({', '.join(said)})"


@dataclass(frozen=True)
class Unlike:
    """Why a row's numbers are not those of another version of Python or torch, and what they are there (None: not counted
    yet)."""

    reason: str
    compilation: Compilation | None = None


INLINED = Unlike("comprehensions are instructions of their function, so breaks in them are that function's")


def since(version: str, unlike: Unlike | str, graphs: int, **numbers: Any) -> dict[str, Unlike]:
    """Other numbers from a version of Python ("3.13") on, for the reason of `unlike`; as those of `program`."""
    reason = unlike if isinstance(unlike, str) else unlike.reason
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()}
    return {f"{version}+": Unlike(reason, Compilation(graphs, **given))}


def within(version: str, unlike: Unlike | str, graphs: int, **numbers: Any) -> dict[str, Unlike]:
    """The same for this version alone."""
    (other,) = since(version, unlike, graphs, **numbers).values()
    return {version: other}


# A break at the `iter` of what a comprehension goes over comes twice.
ITER_TWICE = "3.13.5 takes the iterator of a comprehension's iterator once more"


def _holds(version: str) -> bool:
    """Whether a key of `unlike` is of the Python or torch that runs."""
    if version.endswith("+"):
        return sys.version_info >= tuple(map(int, version[:-1].split(".")))
    return version in (PYTHON, TORCH)


def compilation_of(compiled: Any, first: int) -> Compilation:
    """What was compiled for `compiled`, of which there were `first` graphs after its first call."""
    found = [record for _, record in inspect.records(compiled)]
    breaks = sorted(reason.kind.id for record in found for reason in record.breaks)
    eager = sorted(reason.kind.id for record in found for reason in record.reasons)
    return Compilation(first, inspect.graph_count(compiled) - first, tuple(breaks), tuple(eager))


def program(
    graphs: int,
    *,
    later: int = 0,
    breaks: Sequence[str] = (),
    eager: Sequence[str] = (),
    unlike: Mapping[str, Unlike] = MappingProxyType({}),
    fullgraph: bool = False,
    backend: Any = "smelt",
    grad: bool | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    options: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a factory a test.

    Args:
        graphs: how many graphs the first call compiles (1: no break, 0: no tensor operation at all, or all of it eager).
        later: how many more the other calls compile.
        breaks: ids of the reasons why graphs break, once for each place, sorted.
        eager: ids of the reasons why a call, or the rest of one, runs eagerly, once for each place, sorted.
        unlike: by version of Python ("3.12"; "3.13+": from that on) or torch ("torch 2.11"), where bytecode or operators
            make other numbers.
        fullgraph: compile with `fullgraph=True`: anything uncaptured is an error.
        grad: True, False: grad mode during the calls; None: enabled, as by default.
        rtol, atol: tolerance of float32 values and Python floats.
        options: of `smelt.compile`.
    """
    row = Compilation(graphs, later, tuple(breaks), tuple(eager))
    unknown = {*row.breaks, *row.eager} - REASONS.keys()
    assert not unknown, f"no reason of smelt/reasons.py: {unknown}"
    said = next((other.compilation for version, other in unlike.items() if _holds(version)), row)

    def decorate(factory: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(factory)
        def run(*args: Any, **kwargs: Any) -> None:
            make = functools.partial(factory, *args, **kwargs)
            compiled: list[Any] = []

            def compile(fn: Any) -> Any:
                compiled.append(smelt.compile(fn, fullgraph=fullgraph, backend=backend, options=options))
                return compiled[0]

            first = 0
            with torch.set_grad_enabled(grad is not False):
                want = list(observe_world(make, lambda fn: fn))
                for number, observed in enumerate(observe_world(make, compile)):
                    problem = difference(observed.facts, want[number].facts, rtol, atol)
                    assert problem is None, f"call {number}: {problem}\n{report(compiled[0])}"
                    first = first if number else inspect.graph_count(compiled[0])
            check_compilation(compiled[0], compilation_of(compiled[0], first), said)

        run.__test__ = True  # type: ignore[attr-defined]
        return run

    return decorate


def check_compilation(compiled: Any, found: Compilation, said: Compilation | None) -> None:
    """What the row says is what happened. Failures of smelt itself cannot be said."""
    failure = failure_of(compiled)
    assert failure is None, f"{failure}\n{report(compiled)}"
    assert DEVICE != "cpu" or said is None or found == said, (
        f"{found} is what happened, the row says {said}\n{report(compiled)}"
    )


BACKENDS = ("smelt", "eager")


def on_both_backends(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """`program(**options)` under the smelt backend, and under the one that runs the torch-level graph."""

    def decorate(factory: Callable[..., Any]) -> Callable[..., None]:
        rows = {backend: program(backend=backend, **options)(factory) for backend in BACKENDS}

        def run(backend: str) -> None:
            rows[backend]()

        run.__name__ = factory.__name__
        run.__doc__ = factory.__doc__
        return pytest.mark.parametrize("backend", BACKENDS)(run)

    return decorate


BREAKS = {"control_flow": "break"}  # options of rows whose graphs break at conditions on tensors


def for_each_control_flow(whole: dict[str, Any], broken: dict[str, Any]) -> Callable[..., Any]:
    """Two rows of one program with conditions on tensors: `program(**whole)`, which captures both branches, and
    `program(**broken)`, whose graphs break at the conditions."""

    def decorate(factory: Callable[..., Any]) -> Callable[..., None]:
        rows = {"graph": program(**whole)(factory), "break": program(**broken, options=BREAKS)(factory)}

        def run(control_flow: str) -> None:
            rows[control_flow]()

        run.__name__, run.__doc__ = factory.__name__, factory.__doc__
        run.__test__ = True  # type: ignore[attr-defined]
        return pytest.mark.parametrize("control_flow", rows)(run)

    return decorate


FIRST_HOOK = 1_000_000


def number_handles() -> None:
    """Hooks are kept by numbers that the process counts; both worlds begin at the same one."""
    RemovableHandle.next_id = 1000


@dataclass
class Observed:
    facts: list[Fact]


def observe_world(make: Callable[[], Any], compile: Callable[[Any], Any]) -> Any:
    """Runs one world's calls in turn; yields what was observed after each."""
    torch.manual_seed(SEED), random.seed(SEED), numpy.random.seed(SEED)
    RemovableHandle.next_id = FIRST_HOOK  # programs can see the numbers of their hooks
    with contextlib.nullcontext() if DEVICE == "cpu" else torch.device(DEVICE):
        fn, calls, *rest = make()
    assert len(calls) >= 3, "a program needs at least three calls"
    target = compile(fn)
    for c in calls:
        c = c if isinstance(c, Call) else Call(tuple(c))
        yield _observe(fn, target, c, rest[0] if rest else None)


def _observe(fn: Any, target: Any, c: Call, state: Any) -> Observed:
    result = error = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = target(*c.args, **c.kwargs)
        except BaseException as e:
            if isinstance(e, (KeyboardInterrupt, SmeltError)):
                raise
            error = e
            _end_frames(e)
    _wait()
    after = _surroundings()
    after["backward"] = _backward(result)
    _wait()
    if isinstance(state, types.FunctionType):
        state = state()
    held = {"result": result, "error": error, "args": c.args, "kwargs": c.kwargs, "state": state}
    text = re.sub(
        r"grad_fn=<\w+>", "grad_fn=<...>", printed.getvalue()
    )  # a compiled graph's node has a name of its own
    held |= {"function": fn, "printed": text, "surroundings": after}
    return Observed(snapshot(held))


def _end_frames(error: BaseException) -> None:
    """Clears the frames that raised, which ends generators in them, now and not when the garbage is collected. The
    `checkpoint` of torch 2.11 leaves its hooks for saved tensors installed until then where its function raises, and they
    would pack the tensors that the next program saves."""
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__context__


def _wait() -> None:
    """Until a GPU has done what it was told: before, a `non_blocking` copy to the CPU holds anything, in eager too."""
    if ON_GPU:
        torch.cuda.synchronize()


def _surroundings() -> dict[str, Any]:
    """What a call could leave changed in the process."""
    return {
        "torch rng": torch.get_rng_state(),
        "random": hash(random.getstate()),
        "numpy": numpy.random.get_state()[1].tolist()[:8] + [numpy.random.get_state()[2]],
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _backward(result: Any) -> str:
    """Backward of sums of what requires grad in the result, as the state then shows in `.grad`. Gives the error."""
    try:
        # Asking may raise too: a view that autograd has given up on.
        roots = [t for t in tensors_in(result) if t.requires_grad and t.grad_fn is not None]
        for number, t in enumerate(roots):
            total = t.abs() if t.is_complex() else t
            if number % 2:  # a tangent that is not the same everywhere
                total = total * torch.arange(t.numel(), dtype=total.dtype, device=t.device).remainder(5).sub(
                    2
                ).view(t.shape)
            total.sum().backward(retain_graph=True)
    except RuntimeError as e:
        return str(e)
    return ""


def report(compiled: Any) -> str:
    """What was compiled, for the reader of a failure."""
    reasons = [f"reason: {r}" for r in inspect.reasons(compiled)]
    sources = [f"{e.source}guards:\n{e.guards}" for e in inspect.entries(compiled)]
    return "\n".join([*reasons, *sources])
