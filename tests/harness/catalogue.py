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
"""

from __future__ import annotations

import contextlib
import functools
import io
import random
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch.utils.hooks import RemovableHandle

import smelt
from smelt.errors import SmeltError
from smelt.report import inspect
from tests.harness.snapshot import Fact, difference, snapshot, tensors_in

SEED = 1234


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


def program(
    graphs: int | None = None,
    *,
    fullgraph: bool = False,
    backend: Any = "smelt",
    grad: bool | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    options: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Makes a factory a test.

    Args:
        graphs: how many graphs the first call may take (1: no break, 0: no tensor operation at all). None: not checked.
        fullgraph: compile with `fullgraph=True`: anything uncaptured is an error.
        grad: True, False: grad mode during the calls; None: enabled, as by default.
        rtol, atol: tolerance of float32 values and Python floats.
        options: of `smelt.compile`.
    """

    def decorate(factory: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(factory)
        def run(*args: Any, **kwargs: Any) -> None:
            make = functools.partial(factory, *args, **kwargs)
            compiled: list[Any] = []

            def compile(fn: Any) -> Any:
                compiled.append(smelt.compile(fn, fullgraph=fullgraph, backend=backend, options=options))
                return compiled[0]

            with torch.set_grad_enabled(grad is not False):
                want = list(observe_world(make, lambda fn: fn))
                for number, observed in enumerate(observe_world(make, compile)):
                    problem = difference(observed.facts, want[number].facts, rtol, atol)
                    assert problem is None, f"call {number}: {problem}\n{report(compiled[0])}"
                    if number == 0:
                        _check_graphs(compiled[0], graphs)
            _check_reasons(compiled[0], graphs, any(o.raised for o in want))

        run.__test__ = True  # type: ignore[attr-defined]
        return run

    return decorate


BACKENDS = ("smelt", "eager")


def on_both_backends(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """`program(**options)` under the smelt backend, and under the one that runs the torch-level graph."""

    def decorate(factory: Callable[..., Any]) -> Callable[..., None]:
        def run(backend: str) -> None:
            program(backend=backend, **options)(factory)()

        run.__name__ = factory.__name__
        run.__doc__ = factory.__doc__
        return pytest.mark.parametrize("backend", BACKENDS)(run)

    return decorate


FIRST_HOOK = 1_000_000


def number_handles() -> None:
    """Hooks are kept by numbers that the process counts; both worlds begin at the same one."""
    RemovableHandle.next_id = 1000


@dataclass
class Observed:
    facts: list[Fact]
    raised: bool


def observe_world(make: Callable[[], Any], compile: Callable[[Any], Any]) -> Any:
    """Runs one world's calls in turn; yields what was observed after each."""
    torch.manual_seed(SEED), random.seed(SEED), numpy.random.seed(SEED)
    RemovableHandle.next_id = FIRST_HOOK  # programs can see the numbers of their hooks
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
    after = _surroundings()
    after["backward"] = _backward(result)
    if isinstance(state, types.FunctionType):
        state = state()
    held = {"result": result, "error": error, "args": c.args, "kwargs": c.kwargs, "state": state}
    text = re.sub(
        r"grad_fn=<\w+>", "grad_fn=<...>", printed.getvalue()
    )  # a compiled graph's node has a name of its own
    held |= {"function": fn, "printed": text, "surroundings": after}
    return Observed(snapshot(held), error is not None)


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
                total = total * torch.arange(t.numel(), dtype=total.dtype).remainder(5).sub(2).view(t.shape)
            total.sum().backward(retain_graph=True)
    except RuntimeError as e:
        return str(e)
    return ""


def _graph_count(compiled: Any) -> int | None:
    """How many graphs there are; None while what is installed cannot say."""
    count = getattr(inspect, "graph_count", None)
    if count is not None:
        return count(compiled)
    did = [
        entry.graph is not None
        and (bool(entry.traced.outputs) or any(n.op.startswith("call") for n in entry.traced.aten_graph))
        for entry in inspect.entries(compiled)
    ]
    return sum(did) if not inspect.reasons(compiled) else None


def _check_graphs(compiled: Any, graphs: int | None) -> None:
    count = _graph_count(compiled)
    if graphs is not None and count is not None and not _only_exceptions(compiled):
        assert count == graphs, f"{count} graphs in the first call, expected {graphs}\n{report(compiled)}"


def _only_exceptions(compiled: Any) -> bool:
    kinds = [r.kind.id for r in inspect.reasons(compiled)]
    return bool(kinds) and all(kind == "user-exception" for kind in kinds)


def _check_reasons(compiled: Any, graphs: int | None, raises: bool) -> None:
    """Whole capture leaves no reason, except that a call which raises is run eagerly. Failures of smelt never pass."""
    for reason in inspect.reasons(compiled):
        assert reason.kind.id not in ("internal-error", "backend-failed"), f"{reason}\n{report(compiled)}"
        if graphs in (0, 1) and not (raises and reason.kind.id == "user-exception"):
            raise AssertionError(f"not captured: {reason}\n{report(compiled)}")


def report(compiled: Any) -> str:
    """What was compiled, for the reader of a failure."""
    reasons = [f"reason: {r}" for r in inspect.reasons(compiled)]
    sources = [f"{e.source}guards:\n{e.guards}" for e in inspect.entries(compiled)]
    return "\n".join([*reasons, *sources])
