"""`Program`: an exported call that runs. Loading and running it do not import the compiler, unless the file has no plans for
this processor or this torch."""

from __future__ import annotations

import functools
import inspect
import os
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from smelt import _native, runtime
from smelt.errors import InputError, ProgramError
from smelt.exported import program_file
from smelt.exported.aten_graphs import restored
from smelt.exported.input_checks import ArgumentReader, NumberOf, check, same
from smelt.exported.program_file import Contents, Method, Parameter, TargetData
from smelt.exported.result_nest import build
from smelt.graph.graph_printer import code

if TYPE_CHECKING:
    from smelt.report.traces import GraphView

_MOST_INSTANCES = 64  # plans for sizes of earlier calls
_IDLE_ARENAS = 2  # that they hold between calls


class Program:
    """An exported call: `program(*args, **kwargs)` returns what the model would return, without gradients.

    Arguments bind to the model's signature. Raises TypeError for arguments that do not fit it, and InputError (a ValueError)
    for arguments for which the program was not exported. Writes to buffers change `state`, not the model. Calls are not
    synchronized: threads that share a program that writes its state need a lock.
    """

    def __init__(self, contents: Contents) -> None:
        self._state = dict(contents.state)
        self._contents = replace(contents, state=self._state)
        self._method: Method = contents.tables.methods[0]
        named = {p.name for p in self._method.signature if p.kind != inspect.Parameter.VAR_KEYWORD}
        self._rest = [key for key in self._method.keywords if key not in named]  # those of `**kwargs`
        self._plans = _Plans(self._contents, self._method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._method
        if len(args) != method.n_args or kwargs.keys() != set(method.keywords):
            args, kwargs = _bound(method, args, kwargs)
        if len(self._rest) > 1 and [key for key in kwargs if key in self._rest] != self._rest:
            raise InputError(f"pass the keywords {', '.join(self._rest)} in this order, as at the export")
        state = self._state
        read = ArgumentReader(args, kwargs, state)
        values = check(method.rules, method.sizes, read)
        inputs = tuple(
            [
                state[at] if isinstance(at, str) else at.value(read) if isinstance(at, NumberOf) else read(at)
                for at in method.inputs
            ]
        )
        with torch.no_grad():
            results = self._plans(tuple(values.values()))(inputs)
        for name, output in method.stores:
            made = results[output]
            assert isinstance(made, torch.Tensor)
            self._state[name] = made
        return build(
            method.result, results, lambda path: inputs[path] if isinstance(path, int) else read(path)
        )

    __call__.__smelt_disable__ = True  # type: ignore[attr-defined]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with its state to a file, whole or not at all. Raises OSError."""
        program_file.write(path, self._contents)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The parameters, buffers and constants that the program reads, by name. Those of a loaded program are views of its
        file; writes to them do not change the file."""
        return self._state

    @property
    def graph(self) -> str:
        """The aten graph as a Python program, with the user's lines. Comments name the tensors of the state."""
        graph = restored(self._contents.graph(self._method.graph), self.state)
        inputs = zip(graph.placeholders, self._method.inputs)
        names = [f"# {p.name} is {name}\n" for p, name in inputs if isinstance(name, str)]
        return "".join(names) + code(graph)

    def lower(self, operators: Literal["core", "prims"]) -> GraphView:
        """The aten graph in the operators of a set, as `GraphView.lower` has them; its inputs are those of `graph`. Imports
        the compiler."""
        from smelt.report.traces import GraphView  # noqa: PLC0415 (the compiler)

        return GraphView(restored(self._contents.graph(self._method.graph), self.state)).lower(operators)

    @property
    def signature(self) -> inspect.Signature:
        """The model's signature."""
        return _signature(self._method.signature)

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{s.name or s.symbol} from {s.low} to {s.high}" for s in self._method.sizes if not s.is_remainder
        )
        return f"<smelt program {self._method.name}{self.signature}{f', {sizes}' if sizes else ''}>"


def load(path: str | os.PathLike[str]) -> Program:
    """The program in a file that `Program.save` wrote. Raises OSError, and ProgramError for another or a damaged file."""
    contents = program_file.read(path)
    if not contents.tables.methods:
        raise ProgramError(f"{os.fspath(path)}: a program without methods")
    return Program(contents)


class _Plans:
    """The native plans of a method: one for fixed sizes, otherwise one for each set of sizes."""

    def __init__(self, contents: Contents, method: Method) -> None:
        self._names = [f"{size.name or size.text} = " for size in method.sizes]
        self._lock = threading.Lock()
        self._cached: dict[tuple[int, ...], _native.Plan] = {}
        self._budget = _native.ArenaBudget(_IDLE_ARENAS)
        self._loaded = self._load(contents, method)

    def __call__(self, numbers: tuple[int, ...]) -> _native.Plan:
        """The plan for these values of the size symbols."""
        found = self._cached.get(numbers)
        return self._made(numbers) if found is None else found

    def _made(self, numbers: tuple[int, ...]) -> _native.Plan:
        with self._lock:
            found = self._loaded.at(numbers)
            if found is None:
                sizes = ", ".join(f"{name}{n}" for name, n in zip(self._names, numbers))
                raise ProgramError(f"the program has no plan for {sizes}")
            self._budget.add(runtime.track(found))
            while len(self._cached) >= _MOST_INSTANCES:
                del self._cached[next(iter(self._cached))]
            self._cached[numbers] = found
            return found

    def _load(self, contents: Contents, method: Method) -> _native.ProgramPlans:
        reasons = []
        for target in contents.tables.targets:
            reason = _refusal(target)
            if target.graph == method.graph and reason is None:
                try:
                    return self._linked(contents, target)
                except ValueError as error:  # such as an unknown operator
                    reason = str(error)
                except (LookupError, TypeError) as error:
                    raise ProgramError(f"plans that do not fit the tables: {error!r}") from error
            reasons.append(reason)
        why = "; ".join(str(r) for r in reasons) or "it has no plans"
        warnings.warn(f"smelt: the program is compiled again for this machine: {why}", stacklevel=5)
        from smelt.exported.plan_making import compile_again  # noqa: PLC0415 (the compiler)

        target, plans = compile_again(contents, method)
        return self._linked(replace(contents, packed=plans), target)

    def _linked(self, contents: Contents, target: TargetData) -> _native.ProgramPlans:
        """The plans, best first, each decoded when a call needs it."""
        pairs = zip(target.plans, target.constants, strict=True)
        plans = tuple(
            (contents.stored(name), tuple(contents.state[c] for c in names)) for name, names in pairs
        )
        return _native.ProgramPlans(contents.stored(target.code), plans)


def _refusal(target: TargetData) -> str | None:
    """The reason why the plans of a target do not run here; None if they run."""
    wanted, found = (".".join(v.split(".")[:2]) for v in (target.torch, str(torch.__version__)))
    if wanted != found:
        return f"its plans are for torch {target.torch}, this is torch {torch.__version__}"
    return _native.lacking(target.triple, target.needs)


def _bound(
    method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the example passed them. Raises TypeError, and InputError for an argument that the example left at
    its default."""
    signature = _signature(method.signature)
    bound = signature.bind(*args, **kwargs)
    passed = dict(bound.arguments)
    example = signature.bind_partial(*(None,) * method.n_args, **dict.fromkeys(method.keywords)).arguments
    for p in method.signature:
        if p.name not in example and p.name in passed:
            if not p.is_stored or not same(passed[p.name], p.default):
                shown = f" {p.default!r}" if p.is_stored else ""
                raise InputError(f"{p.name} was left at its default{shown} at the export: leave it out")
            del passed[p.name]
        elif p.name in example and p.name not in passed:
            if not p.is_stored:
                raise InputError(f"{p.name} was passed at the export: pass it")
            passed[p.name] = p.default
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for p in method.signature:
        if p.name not in passed:
            continue
        if p.kind == inspect.Parameter.VAR_POSITIONAL:
            positional += passed[p.name]
        elif p.kind == inspect.Parameter.VAR_KEYWORD:
            named |= passed[p.name]
        elif p.name in method.keywords:
            named[p.name] = passed[p.name]
        else:
            positional.append(passed[p.name])
    if len(positional) != method.n_args or named.keys() != set(method.keywords):
        raise InputError(
            f"the program was exported with {method.n_args} positional arguments and the keywords "
            f"{', '.join(method.keywords) or 'none'}; got {len(positional)} and {', '.join(named) or 'none'}"
        )
    return tuple(positional), named


@functools.lru_cache(16)
def _cached_signature(parameters: tuple[tuple[str, int, bool], ...]) -> inspect.Signature:
    kinds = list(inspect._ParameterKind)
    return inspect.Signature(
        [
            inspect.Parameter(name, kinds[kind], default=... if has_default else inspect.Parameter.empty)
            for name, kind, has_default in parameters
        ]
    )


def _signature(parameters: tuple[Parameter, ...]) -> inspect.Signature:
    shape = _cached_signature(tuple((p.name, p.kind, p.has_default) for p in parameters))
    return shape.replace(
        parameters=[
            q.replace(default=p.default) if p.is_stored else q
            for p, q in zip(parameters, shape.parameters.values())
        ]
    )
