"""`Program`: exported calls that run. Loading and running it do not import the compiler, unless the file has no plans for
this processor or this torch."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from smelt.errors import InputError, ProgramError
from smelt.exported import program_file
from smelt.exported.aten_graphs import restored
from smelt.exported.input_checks import ArgumentReader, NumberOf, TensorRule, check, same
from smelt.exported.program_file import Contents, Method, Parameter
from smelt.exported.program_plans import MethodPlans
from smelt.exported.result_nest import build
from smelt.exported.weight_updates import updated
from smelt.graph.graph_printer import code

if TYPE_CHECKING:
    from smelt.report.traces import GraphView


class Program:
    """An exported call: `program(*args, **kwargs)` returns what the model would return. `method` returns the program of
    another method of the same file.

    Arguments bind to the model's signature. Raises TypeError for arguments that do not fit it, and InputError (a ValueError)
    for arguments for which the program was not exported. Without `gradients=True` at the export, calls compute no gradients
    and raise InputError for an argument that requires them, unless grad mode is off. Writes to buffers change `state`, not
    the model. Calls are not synchronized: threads that share a program that writes its state need a lock.
    """

    def __init__(self, contents: Contents) -> None:
        shared = _Shared(contents)
        shared.programs = {
            method.name: self if i == 0 else object.__new__(type(self))
            for i, method in enumerate(contents.tables.methods)
        }
        for method in contents.tables.methods:
            shared.programs[method.name]._set_up(shared, method)

    def _set_up(self, shared: _Shared, method: Method) -> None:
        self._shared = shared
        self._method = method
        named = {p.name for p in self._method.signature if p.kind != inspect.Parameter.VAR_KEYWORD}
        self._rest = [key for key in self._method.keywords if key not in named]  # those of `**kwargs`
        self._without_gradient = _without_gradient(self._method)
        self._plans = MethodPlans(shared.contents, method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self._method
        if len(args) != method.n_args or kwargs.keys() != set(method.keywords):
            args, kwargs = _bound(method, args, kwargs)
        if len(self._rest) > 1 and [key for key in kwargs if key in self._rest] != self._rest:
            raise InputError(f"pass the keywords {', '.join(self._rest)} in this order, as at the export")
        state = self._shared.state
        read = ArgumentReader(args, kwargs, state)
        values = check(method.rules, method.sizes, read)
        inputs = tuple(
            [
                state[at] if isinstance(at, str) else at.value(read) if isinstance(at, NumberOf) else read(at)
                for at in method.inputs
            ]
        )
        if torch.is_grad_enabled():
            for i in self._without_gradient:
                if isinstance(inputs[i], torch.Tensor) and inputs[i].requires_grad:
                    raise InputError(_required(method, i))
        run = self._plans(values)
        if method.gradients is not None:
            results = run(inputs)
        else:
            with torch.no_grad():
                results = run(inputs)
        for name, output in method.stores:
            made = results[output]
            assert isinstance(made, torch.Tensor)
            self._shared.state[name] = made
        return build(
            method.result, results, lambda path: inputs[path] if isinstance(path, int) else read(path)
        )

    __call__.__smelt_disable__ = True  # type: ignore[attr-defined]

    def save(self, path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> None:
        """Write the program with its state to a file, whole or not at all. Raises OSError.

        `weights`: a safetensors file for the weights, which is written first. Constants of plans stay in the program, and so
        do tensors that share parts of their memory. Load both with `smelt.load(path, weights)`.
        """
        program_file.write(path, self._shared.contents(), weights)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the program's methods. The first is the one that the program itself calls."""
        return tuple(self._shared.programs)

    def method(self, name: str) -> Program:
        """The program that calls another method of this one: `program.method("encode")(x)`. It shares the state. Raises
        KeyError if there is none."""
        if name not in self._shared.programs:
            raise KeyError(f"the program has no method {name}, only {', '.join(self.methods)}")
        return self._shared.programs[name]

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy these values into the state. Calls in progress in other threads read the old values, later calls the new
        ones. The tensors of `parameters` are different: they are written in place, so that an optimizer keeps them, and
        calls in progress may read old and new values. Tensors that share memory, such as tied weights, keep sharing it.

        Raises InputError, and replaces nothing, for an unknown name, another size, dtype, device or layout, and for a
        constant that a plan holds.
        """
        with self._shared.lock:
            self._shared.state = updated(self._shared.state, weights, self._shared.constants)

    @property
    def state(self) -> Mapping[str, torch.Tensor]:
        """The parameters, buffers and constants that the program reads, by name. Those of a loaded program are views of its
        file; writes to them do not change the file."""
        return self._shared.state

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the state that require grad, with their names: those of the model that did so at an export with
        `gradients=True`. An optimizer may write them; later calls read what it wrote."""
        return (
            (name, tensor) for name, tensor in self.state.items() if tensor.requires_grad and tensor.is_leaf
        )

    def parameters(self) -> Iterator[torch.Tensor]:
        """The tensors of `named_parameters`, for an optimizer."""
        return (tensor for _, tensor in self.named_parameters())

    @property
    def code(self) -> str:
        """The calls of torch that the export captured, as a Python program, with the user's lines. Raises ProgramError for a
        file of a version of smelt that did not store it."""
        return self._shared.contents().section(f"text.{self._method.graph}").decode()

    @property
    def graph(self) -> str:
        """The aten graph as a Python program, with the user's lines. Comments name the tensors of the state."""
        graph = restored(self._shared.contents().graph(self._method.graph), self.state)
        inputs = zip(graph.placeholders, self._method.inputs)
        names = [f"# {p.name} is {name}\n" for p, name in inputs if isinstance(name, str)]
        return "".join(names) + code(graph)

    def lower(self, operators: Literal["core", "prims"]) -> GraphView:
        """The aten graph in the operators of a set, as `GraphView.lower` has them; its inputs are those of `graph`. Imports
        the compiler."""
        from smelt.report.traces import GraphView  # noqa: PLC0415 (the compiler)

        return GraphView(restored(self._shared.contents().graph(self._method.graph), self.state)).lower(
            operators
        )

    @property
    def signature(self) -> inspect.Signature:
        """The model's signature."""
        return _signature(self._method.signature)

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{s.name or s.symbol} from {s.low} to {s.high}" for s in self._method.sizes if not s.is_remainder
        )
        return f"<smelt program {self._method.name}{self.signature}{f', {sizes}' if sizes else ''}>"


def load(path: str | os.PathLike[str], weights: str | os.PathLike[str] | None = None) -> Program:
    """The program in a file that `Program.save` wrote. Raises OSError, and ProgramError for another or a damaged file."""
    contents = program_file.read(path, weights)
    names = {method.name for method in contents.tables.methods}
    if not names or len(names) < len(contents.tables.methods):
        raise ProgramError(f"{os.fspath(path)}: a program without methods, or with two of one name")
    return Program(contents)


class _Shared:
    """What the methods of a program share. `state` is replaced as a whole when weights are updated, so a call reads one
    state; nothing else holds the tensors, so the old ones are freed."""

    def __init__(self, contents: Contents) -> None:
        self._contents = replace(contents, state={})
        self.state = dict(contents.state)
        self.lock = threading.Lock()
        self.constants = contents.tables.constants
        self.programs: dict[str, Program] = {}

    def contents(self) -> Contents:
        """The contents with the present state."""
        return replace(self._contents, state=self.state)


def _without_gradient(method: Method) -> list[int]:
    """The inputs that must not require grad: gradients with respect to them would be lost."""
    is_checked: tuple[type, ...] = (tuple,) if method.gradients is None else (tuple, str)
    return [
        i
        for i, at in enumerate(method.inputs)
        if isinstance(at, is_checked) and i not in method.differentiated
    ]


def _required(method: Method, i: int) -> str:
    """Why input `i` must not require grad."""
    at = method.inputs[i]
    name = next((r.text for r in method.rules if isinstance(r, TensorRule) and r.path == at), at)
    how = "pass it with .detach(), or call the program under torch.no_grad()"
    if method.gradients is None:
        return f"{name} requires grad, but the program was exported without gradients: export it with gradients=True, {how}"
    return f"{name} requires grad, but did not at the export: export the program with one that does, {how}"


def _bound(
    method: Method, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the example passed them. Raises TypeError, and InputError for an argument that the example left at
    its default."""
    signature = _signature(method.signature)
    bound = signature.bind(*args, **kwargs)
    passed = bound.arguments
    example = signature.bind_partial(*(None,) * method.n_args, **dict.fromkeys(method.keywords)).arguments
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for p in method.signature:
        if p.kind == inspect.Parameter.VAR_POSITIONAL:
            values = passed.get(p.name, ())
            at_export = max(0, method.n_args - len(positional))
            if len(values) != at_export:
                raise InputError(f"{p.name} had length {at_export} at the export, got {len(values)}")
            positional += values
        elif p.kind == inspect.Parameter.VAR_KEYWORD:
            for key in passed.get(p.name, ()):
                if key not in method.keywords:
                    raise InputError(f"{key} was not passed at the export: leave it out")
            named |= passed.get(p.name, {})
            for key in method.keywords:
                if key not in named:
                    raise InputError(f"{key} was passed at the export: pass it")
        elif p.name not in example:
            if p.name in passed and not (p.is_stored and same(passed[p.name], p.default)):
                shown = f" {p.default!r}" if p.is_stored else ""
                raise InputError(f"{p.name} was left at its default{shown} at the export: leave it out")
        else:
            if p.name not in passed and not p.is_stored:
                raise InputError(f"{p.name} was passed at the export: pass it")
            value = passed.get(p.name, p.default)
            if p.name in method.keywords:
                named[p.name] = value
            else:
                positional.append(value)
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
