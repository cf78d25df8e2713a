"""Recording at the aten level: an operator runs on metadata and becomes a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import TensorSpec
from smelt.graph.operator_effects import Effects, effects
from smelt.graph.pytree import map_leaves
from smelt.ops.node_builders import CLONE
from smelt.ops.symbolic_rules import OFFSETS, RANGES, SINGLE_INDEX, SLICE
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_OBJECT
from smelt.shapes.expr import Expr, Size, Sym, bounds, subs
from smelt.torch_private import OpOverload
from smelt.tracing.composites.symbolic_diagonals import square_diagonal
from smelt.tracing.composites.symbolic_selects import clamp_to_range, split_into_sizes
from smelt.tracing.fake import meta_results
from smelt.tracing.fake.constant_folding import ConstantFolding
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.functionalize.recorded_writes import Writes
from smelt.tracing.functionalize.view_copies import Copies
from smelt.tracing.record.call_arguments import LEAF_TYPES, Args, Kwargs, Unnameable, other_argument
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.number_inputs import NumberInputs, numbers_to_sizes, size_arguments
from smelt.tracing.record.recorded_results import fresh_fake
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.symbolic.sym_numbers import PLAIN_TYPE, SYMBOLIC, hint
from smelt.tracing.symbolic.symbolic_numbers import Symbols


class AtenCallRecorder:
    """Records ATen operators.

    Its attributes are public for the rules of single operators (`recording_rules.py`) and for composites
    (`Composite`), which receive the recorder.
    """

    def __init__(
        self,
        call: CurrentCall,
        tape: Tape,
        inputs: Inputs,
        writes: Writes,
        copies: Copies,
        numbers: NumberInputs,
    ) -> None:
        self.call = call
        self.tape = tape
        self.inputs = inputs
        self.writes = writes
        self.copies = copies
        self.numbers = numbers
        self.constants = ConstantFolding(call, tape, writes)
        self.symbol_for_size: Callable[[Size], Size] = _no_symbol
        self.mask_indices: dict[Any, tuple[FakeTensor, FakeTensor]] = {}
        # By value key of a mask or integer tensor: the tensor, and its `nonzero()` or the carrier of its numbers.
        self.exposed_masks: set[int] = set()  # storages of `nonzero()` results that the program received

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """Run an operator on metadata and record its aten node. Raises what the operator raises for such metadata."""
        symbols = self.numbers.symbols
        if symbols is not None and symbols.hints:
            args, kwargs = numbers_to_sizes(func, args, kwargs)
            func, args, kwargs = split_into_sizes(symbols, func, args, kwargs)
            args, kwargs = clamp_to_range(symbols, func, args, kwargs, self.symbol_for_size)
            diagonal = square_diagonal(self.run, symbols, func, args, kwargs)
            if diagonal is not None:
                return diagonal
            if symbols.unbacked.numbers and func not in RANGES and func not in SINGLE_INDEX:
                args, kwargs = self._with_nonnegative_sizes(symbols, func, args, kwargs)
        key: list[Any] = [func]
        nodes: list[Any] = []
        for a in args:
            kind = type(a)
            if kind is FakeTensor:
                nodes.append(a.aten_node or self.inputs.aten_node(a))
                key.append(id(a.cached_spec or a.spec))
            elif a is None or (kind is int and _LEAST <= a <= _GREATEST):
                nodes.append(a)
                key.append(a)
            else:
                nodes.append(self._argument(a, key))
        node_kwargs = {}
        for name, a in kwargs.items():
            key.append(name)
            node_kwargs[name] = self._argument(a, key)
        info = effects(func)
        if info.writes:
            self._check_writable(info, args, kwargs)
        symbolic = args, kwargs
        if symbols is not None:
            args, kwargs = tuple(map(hint, args)), {k: hint(v) for k, v in kwargs.items()}
        try:
            out, spec = meta_results.infer(self.inputs, func, info, tuple(key), args, kwargs)
        except NeedsFixedSize as error:
            if symbols is None or info.writes or not symbols.assume_equal(error.assumed):
                raise
            return self.run(func, *self._with_equal_sizes(symbolic, error.assumed))
        node = self.tape.add_operator(func, tuple(nodes), node_kwargs, meta_results.stem(func), spec)
        if info.writes:
            self.writes.record(list(_mutated_arguments(info, args, kwargs)))
        elif not info.results:  # an assertion: the torch-level call has an effect as well
            self.call.mutated = True
        self.tape.finish_operator(node, out)
        if symbols is not None and symbols.unbacked.equalities and not info.writes:
            return self._with_simplified_sizes(symbols, out)
        return out

    def _with_equal_sizes(self, arguments: tuple[Args, Kwargs], equal: Mapping[Sym, Size]) -> Any:
        """The arguments with the sizes that symbols are assumed to equal."""

        def replaced(value: FakeTensor | Expr) -> Any:
            if isinstance(value, Expr):
                return subs(value, equal)
            return self._narrowed(value, tuple([subs(size, equal) for size in value.spec.shape]))

        return map_leaves(arguments, (FakeTensor, Expr), replaced)

    def _narrowed(self, fake: FakeTensor, sizes: tuple[Size, ...]) -> FakeTensor:
        """A view of the full length with these sizes, which equal those of `fake`."""
        for dim, (size, now) in enumerate(zip(sizes, fake.spec.shape, strict=True)):
            if size != now:
                fake = self.run(SLICE, (fake, dim, 0, size), {})
        return fake

    def _with_simplified_sizes(self, symbols: Symbols, out: Any) -> Any:
        """Narrow a result whose sizes equal simpler ones (by an assumed equality) to a slice of the full length with
        those sizes."""
        if isinstance(out, (tuple, list)):
            return type(out)(self._with_simplified_sizes(symbols, value) for value in out)
        if type(out) is not FakeTensor:
            return out
        sizes = tuple(map(symbols.unbacked.simplified, out.spec.shape))
        if sizes == out.spec.shape:
            return out
        view = self._narrowed(out, sizes)
        node = out.aten_node
        return view if node is not None and effects(node.target).view else self.run(CLONE, (view,), {})

    def _with_nonnegative_sizes(
        self, symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        """Replace unbacked sizes that are negative for some sample values by symbols of their own."""

        def replaced(value: Any) -> Any:
            if isinstance(value, Expr) and bounds(value)[0] < 0 and symbols.unbacked.occurs_in(value):
                return self.symbol_for_size(value)
            return [replaced(v) for v in value] if type(value) is list else value

        names = size_arguments(func) - OFFSETS
        return (
            tuple(replaced(v) if a.name in names else v for v, a in zip(args, func._schema.arguments)),
            {k: replaced(v) if k in names else v for k, v in kwargs.items()},
        )

    def record_with_specs(
        self, func: OpOverload, args: Args, kwargs: Kwargs, spec: TensorSpec | tuple[TensorSpec, ...]
    ) -> Any:
        """Record an operator that returns fresh tensors of these specs, which no shape function computes."""
        nodes = tuple(self._argument(a, []) for a in args)
        named = {k: self._argument(v, []) for k, v in kwargs.items()}
        out = (
            tuple(fresh_fake(self.inputs, s) for s in spec)
            if isinstance(spec, tuple)
            else fresh_fake(self.inputs, spec)
        )
        node = self.tape.add_operator(func, nodes, named, meta_results.stem(func), spec)
        self.tape.finish_operator(node, out)
        return out

    def _argument(self, value: Any, key: list[Any]) -> Any:
        """`value` as a node argument. Appends what a shape function may depend on to `key`."""
        kind = type(value)
        if kind is FakeTensor:
            key.append(id(value.spec))
            return value.aten_node or self.inputs.aten_node(value)
        if kind is list or kind is tuple:
            key.append((kind, len(value)))
            return [self._argument(v, key) for v in value]
        if kind is float or kind is bool or kind is complex:
            key.append((kind, value))
            return value
        if kind in LEAF_TYPES:
            if kind is int and not _LEAST <= value <= _GREATEST:
                raise self.call.unsupported(UNSUPPORTED_OBJECT, "an integer of more than 64 bits")
            key.append(value)
            return value
        if isinstance(value, Expr):
            key.append(value)
            return value
        if kind in SYMBOLIC:
            key.append((PLAIN_TYPE[kind], "symbolic"))
            return self.numbers.node(value, self.tape.aten)
        if isinstance(value, torch.Tensor):
            return self._argument(self.inputs.fake_for_native(value), key)
        try:
            return other_argument(value)
        except Unnameable as error:
            raise self.call.unsupported(UNSUPPORTED_OBJECT, str(error)) from error

    def _check_writable(self, info: Effects, args: Args, kwargs: Kwargs) -> None:
        """Raise Unsupported for writes that autograd refuses."""
        arguments = fakes_in([*args, *kwargs.values()])
        differentiated = torch.is_grad_enabled() and any(f.requires_grad for f in arguments)
        for written in _mutated_arguments(info, args, kwargs):
            self.writes.check_history(written, differentiated)

    def data_dependent_error(self, what: str) -> Unsupported:
        """The error to raise where `what` reads a value that is not a constant."""
        return self.call.unsupported(DATA_DEPENDENT, what)


def _no_symbol(size: Size) -> Size:
    return size


_LEAST, _GREATEST = (
    -(1 << 63),
    (1 << 63) - 1,
)  # the range of int arguments; torch converts larger ints to other dtypes

# Replacement for a torch-level function's own code: `composite(recorder, function, positional arguments)`.
Composite = Callable[[AtenCallRecorder, Any, Args], Any]


def _mutated_arguments(info: Effects, args: Args, kwargs: Kwargs) -> Iterator[FakeTensor]:
    """The fakes that an operator writes."""
    for name in info.writes:
        value = info.argument(name, args, kwargs)
        for fake in value if isinstance(value, (list, tuple)) else (value,):
            if type(fake) is FakeTensor:
                yield fake
