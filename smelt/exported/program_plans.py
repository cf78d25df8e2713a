"""The callables of a loaded program's methods: native plans, or autograd nodes around them."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt import _native, runtime
from smelt.errors import ProgramError
from smelt.exported.input_checks import Values
from smelt.exported.program_file import Contents, Gradients, Method, TargetData

_MOST_INSTANCES = 64  # plans for sizes of earlier calls

Run = Callable[[tuple[Any, ...]], Sequence[Any]]


class MethodPlans:
    """The callables of a method: one for fixed sizes, otherwise one for each set of sizes."""

    def __init__(self, contents: Callable[[], Contents], method: Method) -> None:
        self._method = method
        self._lock = threading.Lock()
        self._cached: dict[tuple[int, ...], Run] = {}
        self._forward = GraphPlans(contents(), method, method.graph)

        def deferred(graph: int) -> Callable[[], GraphPlans]:  # loaded when a gradient first needs it
            return functools.cache(lambda: GraphPlans(contents(), method, graph))

        backwards = method.gradients.backwards if method.gradients is not None else ()
        self._backwards = {(b.defined, b.reach): deferred(b.graph) for b in backwards}

    def __call__(self, values: Values) -> Run:
        """The callable for these values of the size symbols, from the inputs of the graph to its outputs."""
        numbers = tuple(values.values())
        found = self._cached.get(numbers)
        return self._made(numbers, values) if found is None else found

    def _made(self, numbers: tuple[int, ...], values: Values) -> Run:
        with self._lock:
            made: Run = self._forward.at(numbers)
            if self._method.gradients is not None:
                made = self._node(self._method.gradients, made, numbers, values)
            while len(self._cached) >= _MOST_INSTANCES:
                del self._cached[next(iter(self._cached))]
            self._cached[numbers] = made
            return made

    def _node(self, g: Gradients, forward: Run, numbers: tuple[int, ...], values: Values) -> Run:
        @functools.cache  # all sets of requested gradients share a plan
        def plan(tangents: tuple[int, ...], reach: int) -> _native.Plan:
            return self._backwards[tangents, reach]().at(numbers)

        def backward(defined: tuple[bool, ...], reach: int = 0, requested: tuple[bool, ...] = ()) -> Run:
            tangents = tuple(k for k, is_defined in enumerate(defined) if is_defined)
            if (tangents, reach) in self._backwards:
                return plan(tangents, reach)
            return _Sum(len(g.saved), [plan((k,), reach) for k in tangents])

        spec: Any = {**g.spec(values), "name": "SmeltBackward", "forward": forward, "backward": backward}
        return _native.Differentiable(spec)


class GraphPlans:
    """The native plans of a graph, best first."""

    def __init__(self, contents: Contents, method: Method, number: int) -> None:
        self._names = [f"{size.name or size.text} = " for size in method.sizes]
        self._budget = _native.ArenaBudget(runtime.IDLE_ARENAS)
        self._loaded = _load(contents, method, number)

    def at(self, numbers: tuple[int, ...]) -> _native.Plan:
        """A new plan for these values of the size symbols. Raises ProgramError if none covers them."""
        found = self._loaded.at(numbers)
        if found is None:
            sizes = ", ".join(f"{name}{n}" for name, n in zip(self._names, numbers))
            raise ProgramError(f"the program has no plan for {sizes}")
        self._budget.add(runtime.track(found))
        return found


class _Sum:
    """The backward for some of several tangents: the sum of those for each alone."""

    def __init__(self, n_saved: int, plans: Sequence[_native.Plan]) -> None:
        self._n_saved, self._plans = n_saved, plans

    def __call__(self, values: tuple[Any, ...]) -> list[Any]:
        saved, tangents = values[: self._n_saved], values[self._n_saved :]
        total: list[Any] = []
        for plan, tangent in zip(self._plans, tangents, strict=True):
            found = plan((*saved, tangent))
            total = [_added(a, b) for a, b in zip(total or [None] * len(found), found, strict=True)]
        return total


def _added(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return torch.add(a, b)


def _load(contents: Contents, method: Method, number: int) -> _native.ProgramPlans:
    reasons = []
    for target in contents.tables.targets:
        if target.graph != number:
            continue
        reason = _refusal(target)
        if reason is None:
            try:
                return _linked(contents, target)
            except ValueError as error:  # such as an unknown operator
                reason = str(error)
            except (LookupError, TypeError) as error:
                raise ProgramError(f"plans that do not fit the tables: {error!r}") from error
        reasons.append(reason)
    why = "; ".join(reasons) or "it has no plans"
    if number == method.graph:
        warnings.warn(f"smelt: the program is compiled again for this machine: {why}", stacklevel=8)
    from smelt.exported.plan_making import compile_again  # noqa: PLC0415 (the compiler)

    target, plans = compile_again(contents, method, number)
    return _linked(replace(contents, packed=plans), target)


def _linked(contents: Contents, target: TargetData) -> _native.ProgramPlans:
    """The plans, best first, each decoded when a call needs it."""
    pairs = zip(target.plans, target.constants, strict=True)
    plans = tuple((contents.stored(name), tuple(contents.state[c] for c in names)) for name, names in pairs)
    return _native.ProgramPlans(contents.stored(target.code), plans)


def _refusal(target: TargetData) -> str | None:
    """The reason why the plans of a target do not run here; None if they run."""
    wanted, found = (".".join(v.split(".")[:2]) for v in (target.torch, str(torch.__version__)))
    if wanted != found:
        return f"its plans are for torch {target.torch}, this is torch {torch.__version__}"
    return _native.lacking(target.triple, target.needs)
