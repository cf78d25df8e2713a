"""`smelt.export`: capture of one call of a model as a program.

    call -> capture (as for `smelt.compile(model, fullgraph=True)`) -> checks, result, state -> plans -> Contents

Guards on arguments become checks of the program (`exported/input_checks.py`). Guards on anything else (globals, attributes
of modules, grad mode) are settled: the values that they checked are constants of the program. An effect outside of the state
raises ExportError.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from smelt import config as options
from smelt.backends import backend_registry
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.capture.environment.side_effects import CacheHit, SetItem
from smelt.config import Config
from smelt.errors import ExportError, SmeltError
from smelt.exported.argument_checks import ArgumentChecks, ArgumentNames
from smelt.exported.aten_graphs import as_data
from smelt.exported.captured_gradients import cut, outputs_of
from smelt.exported.captured_result import CapturedResult
from smelt.exported.captured_state import CapturedState, ProgramState, effect_text, restores
from smelt.exported.dynamic_dims import Declared, declarations, dim_text, paste, text_of
from smelt.exported.input_checks import SizeRule
from smelt.exported.plan_making import HOST, TARGETS, Part, best_first, compiling_for, target_of
from smelt.exported.program import Program
from smelt.exported.program_file import (
    Contents,
    Method,
    Parameter,
    Tables,
    TargetData,
    as_read,
    encoded,
    is_constant,
)
from smelt.graph.graph_printer import code
from smelt.guards.guard_failures import Failure
from smelt.guards.source import Source
from smelt.plan.serialization import packed
from smelt.reasons import Reason
from smelt.shapes.expr import Values
from smelt.size_marks import marked
from smelt.tracing.record.trace_at_sizes import within_bounds
from smelt.user_lines import is_own


@dataclass(frozen=True)
class Call:
    """An example call of a method, and the declarations of its sizes. `name`: of the method; empty: of the model itself."""

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic_shapes: Any


def calls_of(methods: Mapping[str, Any], dynamic_shapes: Any) -> list[Call]:
    """The calls of methods. Raises TypeError for arguments of another form."""
    shapes = {} if dynamic_shapes is None else dynamic_shapes
    if not isinstance(shapes, Mapping) or not shapes.keys() <= methods.keys() or not methods:
        raise TypeError("smelt.export: with methods, dynamic_shapes is a dict by the names of methods")
    calls = []
    for name, of in methods.items():
        if not isinstance(of, (tuple, dict)):
            raise TypeError(
                f"smelt.export: the arguments of the method {name} are a tuple, or a dict by parameter, got {of!r}"
            )
        args, kwargs = (of, {}) if isinstance(of, tuple) else ((), of)
        calls.append(Call(name, args, kwargs, shapes.get(name)))
    return calls


def export(model: Any, calls: Sequence[Call], gradients: bool, targets: Sequence[str] = (HOST,)) -> Program:
    """The program of these calls; see `smelt.export`."""
    _check_targets(targets)
    contents = _Contents(ProgramState(model, gradients), best_first(targets))
    for call in calls:
        _add_call(contents, model, call, gradients)
    return Program(contents.finished())


def _check_targets(targets: Sequence[str]) -> None:
    known = ", ".join(TARGETS)
    if not targets:
        raise ExportError(f"targets must be one or more of {known}, got {targets!r}")
    for target in targets:
        if target not in TARGETS:
            raise ExportError(f"unknown target {target!r}; known: {known}")


class _Contents:
    """The contents of a program while methods are added."""

    def __init__(self, state: ProgramState, kinds: Sequence[str]) -> None:
        """`kinds`: the targets, best first."""
        self.state = state
        self.kinds = kinds
        self.graphs = 0
        self.methods: list[Method] = []
        self.targets: list[TargetData] = []
        self.sections: dict[str, bytes] = {}

    def add_graph(self, part: Part, sizes: Sequence[SizeRule], values: Values, config: Config) -> None:
        """Add a graph and its plans."""
        self.graphs += 1
        self.sections[f"graph.{part.number}"] = packed(encoded(as_data(part.graph, self.state.constant)))
        for i, kind in enumerate(self.kinds):
            with compiling_for(kind):
                suffix = f".{i}" if i else ""
                target, plans = target_of(part, sizes, values, self.state.constant, config, suffix)
            self.targets.append(target)
            self.sections |= plans

    def finished(self) -> Contents:
        tables = Tables({"torch": str(torch.__version__)}, tuple(self.methods), tuple(self.targets))
        return Contents(as_read(tables), self.sections, self.state.tensors())


def _add_call(contents: _Contents, model: Any, call: Call, gradients: bool) -> None:
    """Capture a call and add it to the program as a method."""
    target = model if call.name in ("", "forward") else getattr(model, call.name)
    bound = _signature_of(target).bind(*call.args, **call.kwargs)
    declared = declarations(_by_parameter(bound), call.dynamic_shapes)
    _check_examples(declared)

    def capture(declared: Sequence[tuple[torch.Tensor, Declared]], contents: _Contents) -> None:
        marks: dict[int, tuple[torch.Tensor, dict[int, Any]]] = {}
        for tensor, d in declared:
            marks.setdefault(id(tensor), (tensor, {}))[1][d.dim] = d.mark
        exporter = _Exporter(options.defaults(), target, call, bound, contents, gradients)
        with torch.set_grad_enabled(gradients), marked(list(marks.values())):
            exporter.run([d for _, d in declared])

    try:
        capture(declared, contents)
    except _Specialized as error:
        sizes = {d: tensor.shape[d.dim] for tensor, d in declared}

        def merged(first: Declared, second: Declared) -> None:
            def renamed(d: Declared) -> Declared:
                same = d.name == second.name
                return replace(d, name=first.name, min=first.min, max=first.max) if same else d

            others = _Contents(ProgramState(model, gradients), contents.kinds)
            capture([(t, renamed(d)) for t, d in declared], others)

        _check_equal(error, sizes, merged)
        raise ExportError(str(error)) from error.__cause__


class _Specialized(ExportError):
    """The program works for only one size of each of the declared dimensions `dims`; `where` is the reason."""

    def __init__(self, text: str, dims: Sequence[Declared], where: str) -> None:
        super().__init__(text)
        self.dims, self.where = dims, where


def _check_equal(
    error: _Specialized, sizes: Mapping[Declared, int], merged: Callable[[Declared, Declared], None]
) -> None:
    """Raise ExportError if it suffices that two dimensions are equal: capture succeeds with one name for both."""
    for d in error.dims:
        for other in sizes:
            if not d.name or not other.name or d.name == other.name or sizes[d] != sizes[other]:
                continue
            try:
                merged(other, d)
            except SmeltError:
                continue
            raise ExportError(
                f"dimension {d.dim} of {text_of(d.of)}, the Dim {d.name!r}, must equal dimension {other.dim} of "
                f"{text_of(other.of)}, the Dim {other.name!r}{error.where}. Declare one Dim for both: "
                f"{paste(d, dim_text(other))}"
            ) from None


def _check_examples(declared: Sequence[tuple[torch.Tensor, Declared]]) -> None:
    """Raise ExportError if the example has several sizes for one name."""
    first: dict[str, tuple[Declared, int]] = {}
    for tensor, d in declared:
        size = tensor.shape[d.dim]
        other, known = first.setdefault(d.name, (d, size)) if d.name else (d, size)
        if known != size:
            raise ExportError(
                f"the Dim {d.name!r} is {known} in dimension {other.dim} of {text_of(other.of)} and {size} in dimension "
                f"{d.dim} of {text_of(d.of)}: give these Dims two names"
            )


def _signature_of(model: Any) -> inspect.Signature:
    try:
        return inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except ValueError as error:  # of builtins
        raise ExportError(f"{model!r} has no signature: export a Python function that calls it") from error


def _by_parameter(bound: inspect.BoundArguments) -> dict[str, Any]:
    """The arguments by name; those of `**kwargs` by their own names."""
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named


def _call(target: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the model. Capture sees this frame: slot 0 is the model, slots 1 and 2 are the arguments."""
    return target(*args, **kwargs)


class _Exporter(FrameCompiler):
    """Captures one call without running or installing it."""

    def __init__(
        self,
        config: Config,
        target: Any,
        call: Call,
        bound: inspect.BoundArguments,
        contents: _Contents,
        gradients: bool,
    ) -> None:
        super().__init__(backend_registry.lookup("smelt"), config, fullgraph=True)
        self.name = (
            type(target).__qualname__
            if isinstance(target, nn.Module)
            else getattr(target, "__qualname__", "call")
        )
        self._target, self._call, self._bound = target, call, bound
        self._contents, self._gradients = contents, gradients
        self._refused: dict[Source, tuple[int, Reason | None]] = {}
        self._declared: list[Declared] = []
        self._names = ArgumentNames(call.args, call.kwargs, bound)

    def run(self, declared: list[Declared]) -> None:
        """Capture the call. Raises ExportError and the exceptions of the call."""
        self._declared = declared
        args, kwargs = self._call.args, dict(self._call.kwargs)
        known = len(self._contents.methods)
        error: SmeltError | None = None
        try:
            outcome = self(_call, (self._target, args, kwargs))  # type: ignore[arg-type]
        except ExportError:
            raise
        except SmeltError as e:
            error = e
        if error is not None:
            raise ExportError(f"{self.name} cannot be exported as one graph: {error}") from error
        if callable(outcome):  # the program raised
            _call(self._target, *args, **kwargs)
            outcome()
        if len(self._contents.methods) == known:
            raise ExportError(
                f"{self.name} cannot be captured here: another tracer or a capture is active, or smelt is disabled"
            )

    def check_marks(self, name: str, sizes: Mapping[Source, int]) -> None:
        """Record which declared sizes are specialized."""
        self._refused = {
            source: (size, self.record.specialized_for.get(source.source)) for source, size in sizes.items()
        }

    def install(
        self,
        fn: Any,
        slots: tuple[object, ...],
        captured: CapturedFrame,
        why: Failure | None,
        begin: float,
    ) -> None:
        """Add a method to the program instead of installing an entry."""
        self._check_captured(captured)
        traced = within_bounds(captured.traced)
        contents = self._contents
        state = CapturedState(contents.state, captured, traced)
        reader = ArgumentChecks(self._names, captured, traced, self._declared, state.names)
        outputs = outputs_of(self.name, traced)
        stores = self._stores(captured, state, outputs, reader.text)
        self._check_declared(reader, captured)
        result = CapturedResult(captured, reader, outputs).nodes()
        values = {sym: size.hint for sym, size in traced.sizes.items()}
        inputs = (
            *(
                path if (path := reader.path(source)) is not None else state.names[i]
                for i, source in enumerate(captured.input_sources)
            ),
            *(reader.number(n.symbol.expression) for n in traced.numbers),
        )
        reals = [captured.env.trace.inputs.real(fake) for fake in traced.inputs]
        number = contents.graphs
        if traced.joint is None:
            parts, gradients = [Part(number, traced.aten_graph)], None
        else:
            parts, gradients = cut(traced, number, self.config)
        for part in parts:
            contents.add_graph(part, reader.sizes, values, self.config)
        text = code(captured.traced.torch_graph)
        contents.sections[f"text.{number}"] = packed(text.encode(errors="backslashreplace"))
        contents.methods.append(
            Method(
                self._call.name or self.name,
                number,
                _parameters(self._bound.signature),
                len(self._call.args),
                tuple(self._call.kwargs),
                tuple(reader.rules),
                tuple(reader.sizes),
                tuple(values.values()),
                inputs,
                stores,
                tuple(result),
                tuple(
                    i
                    for i, real in enumerate(reals)
                    if self._gradients and real is not None and real.requires_grad
                ),
                gradients,
            )
        )

    def _stores(
        self,
        captured: CapturedFrame,
        state: CapturedState,
        outputs: Mapping[int, int],
        text: Callable[[Source], str],
    ) -> tuple[tuple[str, int], ...]:
        """The buffers that outputs of the graph replace. Raises ExportError for other effects."""
        stores = []
        for effect in captured.effects:
            if isinstance(effect, CacheHit) or restores(effect, captured):
                continue
            name = state.buffer_of(effect)
            output = outputs.get(id(effect.value)) if isinstance(effect, SetItem) else None
            if not isinstance(effect, SetItem) or name is None or output is None:
                raise ExportError(effect_text(self.name, effect, captured, text))
            state.check_replaced(name, effect, captured)
            spec, held = effect.value.spec, self._contents.state.reals[name]
            found = tuple(spec.shape), tuple(spec.stride), spec.dtype, spec.device
            if found != (tuple(held.shape), held.stride(), held.dtype, held.device):
                raise ExportError(
                    f"{self.name} replaces the buffer {name}, {held.dtype} of {tuple(held.shape)}, by a tensor {spec.dtype} "
                    f"of {tuple(spec.shape)}: a buffer of a program keeps its sizes, strides and dtype"
                )
            stores.append((name, output))
        return tuple(stores)

    def _check_captured(self, captured: CapturedFrame) -> None:
        """Raise ExportError for random draws, data-dependent sizes and gradients that a program cannot hold."""
        traced = captured.traced
        if captured.draws:
            raise ExportError(
                f"{self.name} draws random numbers of Python or NumPy: draw them outside, or with torch"
            )
        if traced.unbacked is not None:
            raise ExportError(
                f"{self.name} has sizes that data decide (nonzero, masks, item()): pass them as arguments"
            )
        if traced.needs_grad and not self._gradients:
            raise ExportError(
                f"{self.name} uses gradients inside, or returns a view of a tensor that requires them: programs run without "
                "them; wrap it in torch.no_grad(), or return a copy"
            )
        if traced.needs_grad and traced.joint is None:
            reason = self.record.no_joint_graph_reason
            detail = "" if reason is None else f" ({reason.detail}{line_text(reason)})"
            raise ExportError(f"{self.name} has gradients that cannot be compiled ahead of time{detail}")

    def _check_declared(self, reader: ArgumentChecks, captured: CapturedFrame) -> None:
        """Raise ExportError if the capture contradicts the declarations."""
        found = []
        for source, (size, reason) in self._refused.items():
            base = source.base.base if source.base is not None else None
            assert base is not None
            declared = reader.declared_at(base, source.key)
            if declared is not None:
                found.append((declared, size, reason))
        if found:
            d, size, reason = found[0]
            where = "" if reason is None else f": {reason.detail}{line_text(reason)}"
            raise _Specialized(
                f"dimension {d.dim} of {text_of(d.of)} is declared {dim_text(d)}, but the program works for size {size} "
                f"only{where}. Change that line, or declare it static: {paste(d, 'None')}",
                [d for d, _, _ in found],
                where,
            )
        reader.check_declared()


def line_text(reason: Reason) -> str:
    """The text " at <line>" for a reason at a user line, otherwise ""."""
    return "" if reason.line is None or is_own(reason.line.filename) else f" at {reason.line}"


def _parameters(signature: inspect.Signature) -> tuple[Parameter, ...]:
    made = []
    for p in signature.parameters.values():
        has_default = p.default is not p.empty
        is_stored = has_default and is_constant(p.default)
        made.append(Parameter(p.name, int(p.kind), has_default, is_stored, p.default if is_stored else None))
    return tuple(made)
