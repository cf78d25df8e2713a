"""`smelt.export`: captures one call of a model as a program.

    call -> capture (as for `smelt.compile(model, fullgraph=True)`) -> checks, result, state -> plans -> Contents

Guards on arguments become checks of the program (`input_checks.py`). Guards on anything else (globals, attributes of
modules, grad mode) are settled: their values are constants of the program. Effects outside of the state are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from smelt import config as options
from smelt.backends import backend_registry
from smelt.capture.driver.capture_frame import CapturedFrame
from smelt.capture.driver.frame_compiler import FrameCompiler
from smelt.capture.environment.side_effects import CacheHit, Effect, SetAttr, SetItem
from smelt.config import Config
from smelt.errors import ExportError, SmeltError
from smelt.exported.aten_graphs import as_data
from smelt.exported.dynamic_dims import Declared, declarations, text_of
from smelt.exported.input_checks import (
    RULE_KINDS,
    NumberOf,
    Path,
    Rule,
    SizeRule,
    TensorRule,
    class_name,
    computed,
)
from smelt.exported.plan_making import target_of
from smelt.exported.program import Program
from smelt.exported.program_file import (
    Contents,
    Method,
    Parameter,
    Tables,
    as_read,
    can_be_encoded,
    encoded,
    packed,
)
from smelt.exported.result_nest import ResultNode
from smelt.guards.guard import Guard
from smelt.guards.guard_failures import Failure
from smelt.guards.source import Source
from smelt.guards.tensor_facts import ANY_OR_ONE, TensorFacts
from smelt.reasons import Reason
from smelt.shapes.expr import INFINITE, Expression, Sym, leaves
from smelt.size_marks import marked
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_at_sizes import within_bounds
from smelt.tracing.record.traced import Traced
from smelt.tracing.symbolic.sym_numbers import NUMBERS
from smelt.user_lines import is_own

# Guards whose facts are settled also where they rest on an argument: of classes, functions and autograd.
_SETTLED = frozenset(
    {"type_version", "function", "no_hooks", "slot", "unhooked_leaf", "write_restriction", "global_state"}
)
_OF_CLASSES = frozenset(
    {"type", "cell", "default", "kwdefault"}
)  # steps of sources, behind which nothing is an argument's
_ROOTS = {1: "args", 2: "kwargs"}  # the slots of the captured frame; slot 0 is the model


def export(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Program:
    """The program of one call; see `smelt.export`."""
    signature = _signature_of(model)
    bound = signature.bind(*args, **kwargs)
    declared = declarations(_by_parameter(bound), dynamic_shapes)
    _check_examples(declared)

    def captured(declared: Sequence[tuple[torch.Tensor, Declared]]) -> Contents:
        marks: dict[int, tuple[torch.Tensor, dict[int, Any]]] = {}
        for tensor, d in declared:
            marks.setdefault(id(tensor), (tensor, {}))[1][d.dim] = d.mark
        with torch.no_grad(), marked(list(marks.values())):
            return _Exporter(options.defaults(), model, args, dict(kwargs), bound).run(
                [d for _, d in declared]
            )

    try:
        return Program(captured(declared))
    except _Specialized as error:
        sizes = {d: tensor.shape[d.dim] for tensor, d in declared}
        _check_equal(error, sizes, lambda name: captured([(t, replace(d, name=name)) for t, d in declared]))
        raise ExportError(str(error)) from error.__cause__


class _Specialized(ExportError):
    """The program works for one size of declared dimensions only. `dims` are these, `where` is the reason."""

    def __init__(self, text: str, dims: Sequence[Declared], where: str) -> None:
        super().__init__(text)
        self.dims, self.where = dims, where


def _check_equal(
    error: _Specialized, sizes: Mapping[Declared, int], merged: Callable[[str], Contents]
) -> None:
    """Raises ExportError if the dimensions need only be equal: the call can be captured with one name for them."""
    first, *others = error.dims
    different = [d for d in others if d.name != first.name and sizes[d] == sizes[first]]
    if not different or not first.name or not all(d.name for d in sizes):
        return
    try:
        merged(first.name)
    except SmeltError:
        return
    other = different[0]
    raise ExportError(
        f"dimension {other.dim} of {text_of(other.of)}, the Dim {other.name!r}, must equal dimension {first.dim} of "
        f"{text_of(first.of)}, the Dim {first.name!r}{error.where}. Declare one Dim for both: "
        f"{_paste(other, _dim_text(first))}"
    ) from None


def _check_examples(declared: Sequence[tuple[torch.Tensor, Declared]]) -> None:
    """Raises ExportError where the example has several sizes for one name."""
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
    return inspect.signature(model.forward if isinstance(model, nn.Module) else model)


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
    """The captured frame: slot 0 is the model, slots 1 and 2 are the arguments."""
    return target(*args, **kwargs)


class _Exporter(FrameCompiler):
    """Captures one call without running or installing it."""

    def __init__(
        self,
        config: Config,
        model: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bound: inspect.BoundArguments,
    ) -> None:
        super().__init__(backend_registry.lookup("smelt"), config, fullgraph=True)
        self.name = (
            type(model).__qualname__
            if isinstance(model, nn.Module)
            else getattr(model, "__qualname__", "call")
        )
        self._model, self._args, self._kwargs, self._bound = model, args, kwargs, bound
        self._contents: Contents | None = None
        self._refused: dict[Source, tuple[int, Reason | None]] = {}
        self._declared: list[Declared] = []
        self._names = _ArgumentNames(args, kwargs, bound)

    def run(self, declared: list[Declared]) -> Contents:
        """Capture the call. Raises ExportError, and what the call itself raises."""
        self._declared = declared
        slots = (self._model, self._args, self._kwargs)
        error: SmeltError | None = None
        try:
            outcome = self(_call, slots)  # type: ignore[arg-type]
        except ExportError:
            raise
        except SmeltError as e:
            error = e
        if error is not None:
            raise ExportError(f"{self.name} cannot be exported as one graph: {error}") from error
        if callable(outcome):  # the program raised
            _call(*slots[:1], *self._args, **self._kwargs)
            outcome()
        if self._contents is None:
            raise ExportError(
                f"{self.name} cannot be captured here: another tracer or a capture is active, or smelt is disabled"
            )
        return self._contents

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
        """Make the program in place of an entry."""
        self._check_captured(captured)
        traced = within_bounds(captured.traced)
        state = _State(self._model, captured, traced)
        stores = self._stores(captured, state)
        reader = _GuardReader(self._names, captured, traced, self._declared, state)
        self._check_declared(reader, captured)
        result = _Result(captured, reader).nodes()
        values = {sym: size.hint for sym, size in traced.sizes.items()}
        inputs = (
            *(
                path if (path := reader.path(source)) is not None else state.names[i]
                for i, source in enumerate(captured.input_sources)
            ),
            *(reader.number(n.symbol.expression) for n in traced.numbers),
        )
        graph = traced.aten_graph
        data = as_data(graph, state.constant)
        target, plans = target_of(graph, reader.sizes, values, state.constant, self.config)
        method = Method(
            self.name,
            0,
            _parameters(self._bound.signature),
            len(self._args),
            tuple(self._kwargs),
            tuple(reader.rules),
            tuple(reader.sizes),
            tuple(values.values()),
            inputs,
            stores,
            tuple(result),
        )
        producer = {"torch": str(torch.__version__), "format": "aten"}
        tables = Tables(producer, (method,), (target,))
        sections = {"graph.0": packed(encoded(data)), **plans}
        self._contents = Contents(as_read(tables), sections, state.tensors)

    def _stores(self, captured: CapturedFrame, state: _State) -> tuple[tuple[str, int], ...]:
        """The buffers that outputs of the graph replace. Raises ExportError for other effects."""
        outputs = {id(fake): i for i, fake in enumerate(captured.traced.outputs)}
        stores = []
        for effect in captured.effects:
            if isinstance(effect, CacheHit) or _restores(effect):
                continue
            name = state.buffer_of(effect)
            output = outputs.get(id(effect.value)) if isinstance(effect, SetItem) else None
            if not isinstance(effect, SetItem) or name is None or output is None:
                raise ExportError(_effect_text(self.name, effect, captured))
            spec, held = effect.value.spec, state.tensors[name]
            found = tuple(spec.shape), tuple(spec.stride), spec.dtype, spec.device
            if found != (tuple(held.shape), held.stride(), held.dtype, held.device):
                raise ExportError(
                    f"{self.name} replaces the buffer {name}, {held.dtype} of {tuple(held.shape)}, by a tensor {spec.dtype} "
                    f"of {tuple(spec.shape)}: a buffer of a program keeps its sizes, strides and dtype"
                )
            stores.append((name, output))
        return tuple(stores)

    def _check_captured(self, captured: CapturedFrame) -> None:
        """Raise ExportError for what no program does."""
        traced = captured.traced
        if captured.draws:
            raise ExportError(
                f"{self.name} draws random numbers of Python or NumPy: draw them outside, or with torch"
            )
        if traced.unbacked is not None:
            raise ExportError(
                f"{self.name} has sizes that data decide (nonzero, masks, item()): pass them as arguments"
            )
        if traced.needs_grad:
            raise ExportError(
                f"{self.name} uses gradients inside: programs run without them; wrap it in torch.no_grad()"
            )

    def _check_declared(self, reader: _GuardReader, captured: CapturedFrame) -> None:
        """Raise ExportError where the capture contradicts the declarations."""
        found = []
        for source, (size, reason) in self._refused.items():
            base = source.base.base if source.base is not None else None
            assert base is not None
            declared = reader.declared_at(base, source.key)
            if declared is not None:
                found.append((declared, size, reason))
        if found:
            d, size, reason = found[0]
            where = "" if reason is None else f": {reason.detail}{_line_text(reason)}"
            raise _Specialized(
                f"dimension {d.dim} of {text_of(d.of)} is declared {_dim_text(d)}, but the program works for size {size} "
                f"only{where}. Change that line, or declare it static: {_paste(d, 'None')}",
                [d for d, _, _ in found],
                where,
            )
        reader.check_declared()


# ---------------------------------------------------------------------------------------------------- arguments


class _ArgumentNames:
    """Names of arguments for messages, as the signature has them."""

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], bound: inspect.BoundArguments
    ) -> None:
        names = []
        for p in bound.signature.parameters.values():
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
                names.append(p.name)
            elif p.kind is p.VAR_POSITIONAL:
                names += [f"{p.name}[{i}]" for i in range(len(args) - len(names))]
        self._names = names
        self.paths: dict[str, tuple[str, Any]] = {
            name: ("args", i) for i, name in enumerate(names[: len(args)])
        }
        self.paths |= {name: ("kwargs", name) for name in kwargs}

    def __call__(self, root: str, key: Any) -> str:
        if root == "kwargs":
            return str(key)
        return self._names[key] if key < len(self._names) else f"args[{key}]"


def _parameters(signature: inspect.Signature) -> tuple[Parameter, ...]:
    made = []
    for p in signature.parameters.values():
        has_default = p.default is not p.empty
        default = p.default if has_default and can_be_encoded(p.default) else None
        made.append(Parameter(p.name, int(p.kind), has_default, default))
    return tuple(made)


# ------------------------------------------------------------------------------------------------------- state


class _State:
    """The tensors of the program: parameters and buffers by the names of `state_dict`, other tensors by their sources, and
    constants of the graph. Those that the program writes are copies, so that the model keeps its own."""

    def __init__(self, model: Any, captured: CapturedFrame, traced: Traced) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.names: dict[int, str] = {}  # by input of the graph
        self._constants: dict[int, str] = {}
        known = self._known = dict[int, str]()
        self._modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
        if isinstance(model, nn.Module):
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                known.setdefault(id(tensor), name)
        reals = {}
        for i, (fake, source) in enumerate(zip(traced.inputs, captured.input_sources)):
            if _root_of(source) is not None:
                continue
            real = captured.env.trace.inputs.real(fake)
            if (
                real is None
                or type(real) not in (torch.Tensor, nn.Parameter)
                or source.kind in ("array", "values")
            ):
                raise ExportError(f"{source.source} is no plain tensor that a program can hold")
            reals[i] = real
            self.names[i] = known.get(id(real), _name_of(source))
        written = {reals[i].untyped_storage().data_ptr() for i in traced.mutated if i in reals}
        copies: dict[int, torch.UntypedStorage] = {}
        for i, real in reals.items():
            self.tensors[self.names[i]] = _held(real, written, copies)

    def buffer_of(self, effect: Effect) -> str | None:
        """The name of the buffer that an effect replaces, which is part of the state then."""
        for path, module in self._modules:
            if (
                isinstance(effect, SetItem)
                and effect.target is module._buffers
                and isinstance(effect.key, str)
            ):
                before = module._buffers.get(effect.key)
                if before is None or type(before) is not torch.Tensor:
                    return None
                name = f"{path}.{effect.key}" if path else effect.key
                name = self._known.get(id(before), name)
                self.tensors.setdefault(name, before.detach())
                return name
        return None

    def constant(self, tensor: torch.Tensor) -> str:
        """The name of a constant of the graph, which is part of the state."""
        name = self._constants.get(id(tensor))
        if name is None:
            name = self._constants[id(tensor)] = f"constant.{len(self._constants)}"
            self.tensors[name] = tensor.detach()
        return name


def _held(real: torch.Tensor, written: set[int], copies: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """The tensor that the program holds: `real`, without gradients, or a copy of it in a copy of its storage."""
    storage = real.untyped_storage()
    if storage.data_ptr() not in written:
        return real.detach()
    copy = copies.setdefault(storage.data_ptr(), storage.clone())
    made = torch.empty(0, dtype=real.dtype)
    return made.set_(copy, real.storage_offset(), real.shape, real.stride())  # type: ignore[arg-type]


def _name_of(source: Source) -> str:
    """A readable name of a tensor that is neither a parameter nor a buffer."""
    return source.source.removeprefix("L['target'].").replace("L['target']", "model")


def _root_of(source: Source) -> str | None:
    """The slot of arguments in which a source begins, if it leads through values of the arguments only."""
    at: Source | None = source
    while at is not None:
        if at.kind in _OF_CLASSES:
            return None
        if at.base is None:
            return _ROOTS.get(at.index) if at.kind == "arg" else None
        at = at.base
    return None


# ------------------------------------------------------------------------------------------------------ guards


@dataclass(frozen=True)
class _Seen:
    """A declared dimension and what the capture made of it."""

    declared: Declared
    tensor: Source
    line: str


class _GuardReader:
    """The guards of a capture as checks of arguments. `sizes` and `rules` are those of the program."""

    def __init__(
        self,
        names: _ArgumentNames,
        captured: CapturedFrame,
        traced: Traced,
        declared: Sequence[Declared],
        state: _State,
    ) -> None:
        self._names, self._captured, self._traced = names, captured, traced
        self._declared = {self._declared_path(d): d for d in declared}
        self._inputs = {
            path: fake
            for fake, source in zip(traced.inputs, captured.input_sources)
            if (path := self.path(source)) is not None
        }
        self._specs = {
            path: placeholder.spec
            for placeholder, source in zip(traced.aten_graph.placeholders, captured.input_sources)
            if (path := self.path(source)) is not None
        }
        self.sizes = [self._size_rule(sym) for sym in traced.sizes]
        self.rules: list[TensorRule | Rule] = []
        for guard in captured.guards:
            rule = self._rule(guard)
            if rule is not None and rule not in self.rules:
                self.rules.append(rule)

    def path(self, source: Source) -> Path | None:
        """The path of an argument's part; None for what is no argument."""
        if _root_of(source) is None:
            return None
        steps: list[tuple[str, Any]] = []
        at: Source = source
        while at.base is not None:
            steps.append((at.kind, at.key))
            at = at.base
        root = _ROOTS[at.index]
        steps.reverse()
        if not steps:
            return ((root, None),)
        return ((root, steps[0][1]), *steps[1:])

    def text(self, source: Source) -> str:
        """The name of an argument's part in messages."""
        path = self.path(source)
        if path is None:
            return source.source
        return self._text(path)

    def _text(self, path: Path) -> str:
        (root, key), *steps = path
        text = "the arguments" if key is None else self._names(root, key)
        for kind, key in steps:
            text += {"item": f"[{key!r}]", "call": "()", "element": f".flatten()[{key}]"}.get(kind, f".{key}")
        return text

    def _declared_path(self, d: Declared) -> tuple[Path, int]:
        name, *keys = d.of
        root = self._names.paths.get(str(name))
        if root is None:  # of *args
            first, *keys = keys
            root = self._names.paths[f"{name}[{first}]"]
        return (root, *(("item", key) for key in keys)), d.dim

    def declared_at(self, tensor: Source, dim: int) -> Declared | None:
        """What is declared of a dimension."""
        path = self.path(tensor)
        return None if path is None else self._at(path, dim)

    def _at(self, path: Path, dim: int) -> Declared | None:
        plain = (path[0], *(("item", key) for _, key in path[1:]))
        return self._declared.get((path, dim)) or self._declared.get((plain, dim))

    def _size_rule(self, sym: Sym) -> SizeRule:
        size = self._traced.sizes[sym]
        s = size.source
        over = None if s.over is None else int(s.over)
        place = s.dim, s.divisor, over, s.is_remainder, sym.lo, sym.hi
        tensors = len(self._captured.input_sources)
        if size.input >= tensors:
            expression = self._traced.numbers[size.input - tensors].symbol.expression
            return SizeRule(sym, self.number(expression), "a number of the arguments", "", *place)
        source = self._captured.input_sources[size.input]
        path = self.path(source)
        if path is None:
            raise ExportError(f"a size of {source.source} is dynamic: only sizes of arguments may be")
        declared = self._at(path, s.dim)
        name = declared.name if declared is not None else ""
        return SizeRule(sym, path, self._text(path), name, *place)

    def number(self, expression: Expression) -> NumberOf:
        """A number as the program computes it. Raises ExportError where it does not follow from the arguments."""
        of = leaves(expression)
        paths = [self.path(source) for source in of]
        known = tuple(path for path in paths if path is not None)
        if len(known) < len(paths):
            raise ExportError("a number of the call does not follow from its arguments; make it a constant")
        return NumberOf(_tree(expression, {id(source): i for i, source in enumerate(of)}), known)

    def _rule(self, guard: Guard) -> TensorRule | Rule | None:
        """The check of a guard; None if it is settled or the binding of arguments implies it."""
        kind = guard.kind.name
        sources = (
            guard.sources if guard.kind.is_relation else (guard.source,) if guard.source is not None else ()
        )
        paths = [self.path(source) for source in sources]
        line = "" if guard.line is None or is_own(guard.line.filename) else str(guard.line)
        if not paths or all(path is None for path in paths) or kind in _SETTLED:
            return None
        if any(path is None for path in paths):
            return self._mixed(guard, [path for path in paths if path is not None], line)
        known = tuple(path for path in paths if path is not None)
        if known[0][0][1] is None:  # of the tuple or dict of the arguments themselves
            return None
        if kind == "tensor":
            assert guard.facts is not None
            return self._tensor_rule(known[0], guard.facts)
        value: Any = guard.value
        if kind == "id":
            if value is None or value is True or value is False:
                kind = "eq"
            else:
                raise ExportError(
                    f"{self._text(known[0])} is {guard.text.partition(' is ')[2] or 'an object'}: a program takes tensors, "
                    "numbers, texts and containers of these. Make it an attribute of the model"
                )
        if kind == "type":
            value = class_name(value)
        elif kind == "number":
            value = value.__name__
        elif kind in ("no_overlap", "shared_storage", "distinct", "alias"):
            value = None
        elif kind == "expression":
            return self._expression(guard, known, line)
        if kind not in RULE_KINDS or not can_be_encoded(value):
            raise ExportError(
                f"the call depends on {self._text(known[0])} in a way that no program checks: {guard.text}"
            )
        names = ", ".join(map(self._text, known))
        key, is_in = value if kind == "contains" else ("", True)
        texts = {
            "contains": f"{names} must {'' if is_in else 'not '}have the key {key!r}",
            "type": f"{names} must be a {value}",
            "len": f"{names} must have length {value}",
            "keys": f"{names} must have the keys {value!r}",
            "eq": f"{names} must be {value!r}",
            "no_overlap": f"{names} must share no memory",
            "distinct": f"{names} must be different objects",
            "alias": f"{names} must be one object, as at the export",
            "shared_storage": f"{names} must share memory",
        }
        return Rule(kind, known, value, texts.get(kind, f"{names}: {guard.text}"), line)

    def _mixed(self, guard: Guard, paths: list[Path], line: str) -> Rule | None:
        """A relation between arguments and the state: arguments never are, or share memory with, tensors of the state, which
        belong to the program; so relations between arguments remain."""
        if guard.kind.name in ("distinct", "no_overlap"):
            if len(paths) < 2:
                return None
            names = ", ".join(map(self._text, paths))
            what = "share no memory" if guard.kind.name == "no_overlap" else "be different objects"
            return Rule(guard.kind.name, tuple(paths), None, f"{names} must {what}", line)
        raise ExportError(
            f"the call depends on a relation of {self._text(paths[0])} to the model's own state: {guard.text}. "
            "Pass a tensor of its own"
        )

    def _tensor_rule(self, path: Path, facts: TensorFacts) -> TensorRule:
        spec = self._specs.get(path)
        least = 1 if ANY_OR_ONE in facts.shape else 2
        if facts.type not in (torch.Tensor, nn.Parameter):
            raise ExportError(f"{self._text(path)} is a {facts.type.__name__}: programs take plain tensors")
        shape: tuple[Any, ...] = tuple(n if n >= 0 else None for n in facts.shape)
        stride: tuple[Any, ...] = tuple(n if n >= 0 else None for n in facts.stride)
        if spec is not None and facts.layout is torch.strided:
            shape, stride = tuple(spec.shape), tuple(spec.stride)
        elif any(n < -1 for n in facts.stride):
            raise ExportError(
                f"{self._text(path)} has a layout that no program checks; pass a contiguous tensor"
            )
        return TensorRule(
            path, self._text(path), facts.dtype, facts.device, facts.layout, shape, stride, least
        )

    def _expression(self, guard: Guard, paths: tuple[Path, ...], line: str) -> Rule | None:
        expression, expected = guard.value
        of = leaves(expression)
        tree = _tree(expression, {id(source): i for i, source in enumerate(of)})
        value = expected.__name__ if isinstance(expected, type) else expected
        shown = guard.text
        for source in of:
            shown = shown.replace(source.source, self.text(source))
        return Rule("expression", paths, (tree, value), f"{shown} must hold", line)

    # ---- declarations

    def check_declared(self) -> None:
        """Raise ExportError where the capture found more than the declarations say."""
        seen: dict[Sym, Declared] = {}
        for (path, dim), d in self._declared.items():
            spec = next((s for p, s in self._specs.items() if self._at(p, dim) is d), None)
            if spec is None or not d.name:
                continue
            size = spec.shape[dim]
            if not isinstance(size, Sym):
                self._contradicted(d, size)
                continue
            other = seen.setdefault(size, d)
            if other.name != d.name:
                raise ExportError(
                    f"dimension {d.dim} of {text_of(d.of)}, the Dim {d.name!r}, must equal dimension {other.dim} of "
                    f"{text_of(other.of)}, the Dim {other.name!r}{self._why(path, dim)}. Declare one Dim for both: "
                    f"{_paste(d, _dim_text(other))}"
                )
            low, high = d.min if d.min is not None else 2, d.max if d.max is not None else INFINITE
            if size.lo > max(low, 1) or size.hi < high:
                declared = replace(d, min=size.lo, max=None if size.hi >= INFINITE else size.hi)
                raise ExportError(
                    f"dimension {d.dim} of {text_of(d.of)} is declared {_dim_text(d)}, but the program needs it "
                    f"{_range_text(size.lo, size.hi)}{self._why(path, dim)}. Declare {_paste(d, _dim_text(declared))}"
                )
        for rule in self.rules:
            if isinstance(rule, Rule) and rule.kind == "expression":
                self._check_condition(rule)

    def _contradicted(self, d: Declared, size: Any) -> None:
        what = f"{size}" if isinstance(size, int) else f"of the form {size}"
        raise ExportError(
            f"dimension {d.dim} of {text_of(d.of)} is declared {_dim_text(d)}, but the program needs it to be {what}. "
            f"Declare {_paste(d, 'None' if isinstance(size, int) else 'Dim.AUTO')}"
        )

    def _check_condition(self, rule: Rule) -> None:
        """Raise ExportError for a condition on sizes with declared names that their declarations do not imply."""
        declared = [
            d
            for path in rule.paths
            if path[-2:-1] == (("member", "shape"),) and (d := self._at(path[:-2], path[-1][1]))
        ]
        named = [d for d in declared if d.name]
        if not named or self._implied(rule, declared):
            return
        where = f" ({rule.line})" if rule.line else ""
        raise ExportError(
            f"{rule.text}{where}, which the declaration of dimension {named[0].dim} of {text_of(named[0].of)}, "
            f"{_dim_text(named[0])}, does not say. Declare {_paste(named[0], 'Dim.AUTO')}"
        )

    def _implied(self, rule: Rule, declared: Sequence[Declared]) -> bool:
        """Whether a condition holds for the least and the largest declared sizes: conditions on one size are ranges."""
        if len({d.name for d in declared}) != 1 or len(declared) != len(rule.paths):
            return False
        ends = [
            max(d.min if d.min is not None else 2, 1) if low else (d.max if d.max is not None else 1 << 40)
            for low in (True, False)
            for d in declared[:1]
        ]
        return all(computed(rule.value[0], lambda i, n=n: n) == rule.value[1] for n in ends)  # type: ignore[misc]

    def _why(self, path: Path, dim: int) -> str:
        """The user's line of a guard on a size."""
        for guard in self._captured.guards:
            sources = guard.sources if guard.kind.is_relation else (guard.source,) if guard.source else ()
            for source in sources:
                at = self.path(source)
                if (
                    at is not None
                    and at[-1:] == (("item", dim),)
                    and at[:-2] == path
                    and guard.line is not None
                ):
                    return f" at {guard.line}"
        return ""


def _tree(e: Any, leaf: Mapping[int, int]) -> Any:
    """An expression as nested tuples (`input_checks.computed`)."""
    if not isinstance(e, Expression):
        return e
    if e.op == "leaf":
        return "leaf", leaf[id(e.args[0])]
    if e.op == "const":
        return e.args[0]
    return (e.op, *(_tree(a, leaf) for a in e.args))


def _dim_text(d: Declared) -> str:
    bounds = (f", {k}={v}" for k, v in (("min", d.min), ("max", d.max)) if v is not None)
    return f'Dim("{d.name}"{"".join(bounds)})' if d.name else "Dim.AUTO"


def _paste(d: Declared, entry: str) -> str:
    """The declaration to write instead."""
    text = f"{{{d.dim}: {entry}}}"
    for key in reversed(d.of):
        text = f"{{{key!r}: {text}}}"
    return f"dynamic_shapes={text}"


def _range_text(low: int, high: int) -> str:
    return f"at least {low}" if high >= INFINITE else f"from {low} to {high}"


def _line_text(reason: Reason) -> str:
    return "" if reason.line is None or is_own(reason.line.filename) else f" at {reason.line}"


def _restores(effect: Effect) -> bool:
    """Whether the effect leaves the object as it was: a global that the call sets and resets."""
    if isinstance(effect, SetAttr):
        try:
            attributes = object.__getattribute__(effect.target, "__dict__")
        except AttributeError:
            return False
        return attributes.get(effect.name, effect) is effect.value
    if isinstance(effect, SetItem) and type(effect.target) is dict:
        return effect.target.get(effect.key, effect) is effect.value
    return False


def _effect_text(name: str, effect: Effect, captured: CapturedFrame) -> str:
    line = captured.env.log.line_of(effect.target)
    where = "" if line is None or is_own(line.filename) else f" at {line}"
    called = getattr(effect.target, "__name__", "a function")
    source = captured.source_of(effect.target)
    target = "an object" if source is None else _readable(source)
    what = {
        "Call": f"calls {called}",
        "SetAttr": f"sets the attribute {getattr(effect, 'name', '')!r} of {target}",
        "DelAttr": f"deletes the attribute {getattr(effect, 'name', '')!r} of {target}",
        "SetItem": f"sets the entry {getattr(effect, 'key', '')!r} of {target}",
        "DelItem": f"deletes the entry {getattr(effect, 'key', '')!r} of {target}",
        "SetCell": "sets a variable of an enclosing function",
        "Advance": f"advances the iterator {target}",
    }.get(type(effect).__name__, f"changes the contents of {target}")
    return (
        f"{name} {what}{where}, which is an effect outside of the program. Remove that line, return the value, or register "
        "a buffer and write it in place (buffer.copy_(value))"
    )


def _readable(source: Source) -> str:
    """The text of a source, with the model by that name."""
    return source.source.replace("L['target']", "the model")


# ------------------------------------------------------------------------------------------------------ result


class _Result:
    """The result of a captured frame as nodes (`result_nest.py`)."""

    def __init__(self, captured: CapturedFrame, reader: _GuardReader) -> None:
        self._captured, self._reader = captured, reader
        self._outputs = {id(fake): i for i, fake in enumerate(captured.traced.outputs)}
        self._inputs = {id(fake): i for i, fake in enumerate(captured.traced.inputs)}
        self._nodes: list[ResultNode] = []
        self._known: dict[int, int] = {}
        self._open: set[int] = set()

    def nodes(self) -> list[ResultNode]:
        """The nodes, the result last. Raises ExportError for objects that no program returns."""
        last = self._visit(self._captured.result)
        if last != len(self._nodes) - 1:  # the result is a part of itself, listed before
            self._nodes.append(self._nodes[last])
        return self._nodes

    def _visit(self, x: Any) -> int:
        found = self._known.get(id(x))
        if found is None:
            if id(x) in self._open:
                raise ExportError("the result contains itself")
            self._open.add(id(x))
            node = self._node(x)
            self._open.discard(id(x))
            self._nodes.append(node)
            found = self._known[id(x)] = len(self._nodes) - 1
        return found

    def _node(self, x: Any) -> ResultNode:
        if isinstance(x, FakeTensor):
            return self._tensor(x)
        if type(x) in NUMBERS:
            return ResultNode("number", self._reader.number(x.node.expression), ())
        if x is None or isinstance(x, (bool, int, float, str, bytes, complex, torch.dtype, torch.device)):
            if type(x) not in (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device):
                raise ExportError(f"the result contains a {type(x).__name__}, which no program returns")
            return ResultNode("constant", x, ())
        source = self._captured.source_of(x)
        path = None if source is None else self._reader.path(source)
        if path is not None:
            return ResultNode("input", path, ())
        if type(x) is torch.Size:
            return ResultNode("size", None, tuple(map(self._visit, x)))
        if type(x) in (tuple, list):
            return ResultNode(type(x).__name__, None, tuple(map(self._visit, x)))
        if type(x) is dict and all(can_be_encoded(key) for key in x):
            return ResultNode("dict", tuple(x), tuple(map(self._visit, x.values())))
        return self._fields(x)

    def _fields(self, x: Any) -> ResultNode:
        cls = type(x)
        if isinstance(x, tuple) and hasattr(cls, "_fields"):
            names, values = tuple(cls._fields), tuple(x)
        elif is_dataclass(x) and all(f.init for f in fields(x)):
            names = tuple(f.name for f in fields(x))
            values = tuple(object.__getattribute__(x, "__dict__").get(name) for name in names)
        else:
            raise ExportError(
                f"the result contains a {class_name(cls)}: programs return tensors, numbers, texts, and tuples, lists, "
                "dicts, named tuples and dataclasses of these. Return its tensors (of transformers' models: use_cache=False)"
            )
        if "<locals>" in cls.__qualname__:
            raise ExportError(
                f"the result contains a {class_name(cls)}, a class inside of a function: move it to a module"
            )
        value = cls.__module__, cls.__qualname__, names
        return ResultNode("fields", value, tuple(map(self._visit, values)))

    def _tensor(self, x: FakeTensor) -> ResultNode:
        source = self._captured.source_of(x)
        path = None if source is None else self._reader.path(source)
        if path is not None:
            return ResultNode("input", path, ())
        if id(x) in self._inputs:
            return ResultNode("input", self._inputs[id(x)], ())
        if id(x) in self._outputs:
            return ResultNode("tensor", self._outputs[id(x)], ())
        raise ExportError(
            "the result contains a tensor that the graph neither takes nor computes; return a copy of it"
        )
