"""Recording at the aten level: an operator runs on metadata and becomes a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from smelt.errors import Unsupported
from smelt.graph.ir import TensorSpec
from smelt.graph.operator_effects import Effects, effects
from smelt.ops.symbolic_rules import OFFSETS, PLACES, RANGES, SLICE
from smelt.reasons import DATA_DEPENDENT, UNSUPPORTED_OBJECT
from smelt.shapes.expr import Expr, Size, bounds
from smelt.torch_private import OpOverload
from smelt.tracing.composites.symbolic_diagonals import in_square
from smelt.tracing.composites.symbolic_selects import in_pieces, in_range
from smelt.tracing.fake import meta_results
from smelt.tracing.fake.constant_folding import KnownValues
from smelt.tracing.fake.fake_tensor import FakeTensor, fakes_in
from smelt.tracing.functionalize.recorded_writes import Writes
from smelt.tracing.functionalize.view_copies import Copies
from smelt.tracing.record.call_arguments import LEAF_TYPES, Args, Kwargs, Unnameable, other_argument
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.number_inputs import NumberInputs, size_arguments, with_sizes
from smelt.tracing.record.recorded_results import fresh
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.symbolic.sym_numbers import PLAIN_TYPE, SYMBOLIC, hint
from smelt.tracing.symbolic.symbolic_numbers import Symbols


class OperatorRecorder:
    """Records ATen operators.

    The parts of the trace that it works with are public: rules for single operators
    (`smelt.tracing.record.recording_rules`) and bodies of torch-level functions (`Body`) are handed the recorder and
    use them.
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
        self.known = KnownValues(call, tape, writes)
        self.new_size: Callable[[Size], Size] = _no_new_size
        self.places: dict[Any, tuple[FakeTensor, FakeTensor]] = {}
        # Masks and numbers, by their value, and where they are true, what has them as its sizes.
        self.shown: set[int] = set()  # storages of such places that the program was given

    def run(self, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
        """Runs an operator on metadata and records its aten node. Raises what the operator raises for such metadata."""
        symbols = self.numbers.symbols
        if symbols is not None and symbols.hints:
            args, kwargs = with_sizes(func, args, kwargs)
            func, args, kwargs = in_pieces(symbols, func, args, kwargs)
            args, kwargs = in_range(symbols, func, args, kwargs, self.new_size)
            diagonal = in_square(self.run, symbols, func, args, kwargs)
            if diagonal is not None:
                return diagonal
            if symbols.known.numbers and func not in RANGES and func not in PLACES:
                args, kwargs = self._with_new_sizes(symbols, func, args, kwargs)
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
        if symbols is not None:
            args, kwargs = tuple(map(hint, args)), {k: hint(v) for k, v in kwargs.items()}
        out, spec = meta_results.infer(self.inputs, func, info, tuple(key), args, kwargs)
        node = self.tape.add_operator(func, tuple(nodes), node_kwargs, meta_results.stem(func), spec)
        if info.writes:
            self.writes.note(list(_written(info, args, kwargs)))
        elif not info.results:  # an assertion: the torch-level call has an effect, too
            self.call.wrote = True
        self.tape.finish_operator(node, out)
        if symbols is not None and symbols.known.equalities and not info.writes:
            return self._settled(symbols, out)
        return out

    def _settled(self, symbols: Symbols, out: Any) -> Any:
        """A result with sizes that are known to be equal to simpler ones: a part of it, which is all of it."""
        if isinstance(out, (tuple, list)):
            return type(out)(self._settled(symbols, value) for value in out)
        if type(out) is not FakeTensor:
            return out
        sizes = tuple(map(symbols.known.settled, out.spec.shape))
        if sizes == out.spec.shape:
            return out
        found = out
        for dim, size in enumerate(sizes):
            if size != out.spec.shape[dim]:
                found = self.run(SLICE, (found, dim, 0, size), {})
        node = out.aten_node
        return found if node is not None and effects(node.target).view else self.run(_CLONE, (found,), {})

    def _with_new_sizes(
        self, symbols: Symbols, func: OpOverload, args: Args, kwargs: Kwargs
    ) -> tuple[Args, Kwargs]:
        """The arguments with symbols of their own for sizes that are negative for some of the numbers that are tried."""

        def settled(value: Any) -> Any:
            if isinstance(value, Expr) and bounds(value)[0] < 0 and symbols.known.concerns(value):
                return self.new_size(value)
            return [settled(v) for v in value] if type(value) is list else value

        names = size_arguments(func) - OFFSETS
        given = zip(args, func._schema.arguments)
        return (
            tuple(settled(v) if a.name in names else v for v, a in given),
            {k: settled(v) if k in names else v for k, v in kwargs.items()},
        )

    def run_as(
        self, func: OpOverload, args: Args, kwargs: Kwargs, spec: TensorSpec | tuple[TensorSpec, ...]
    ) -> Any:
        """Records an operator that gives fresh tensors of these specs, which no shape function knows."""
        nodes = tuple(self._argument(a, []) for a in args)
        named = {k: self._argument(v, []) for k, v in kwargs.items()}
        out = (
            tuple(fresh(self.inputs, s) for s in spec)
            if isinstance(spec, tuple)
            else fresh(self.inputs, spec)
        )
        node = self.tape.add_operator(func, nodes, named, meta_results.stem(func), spec)
        self.tape.finish_operator(node, out)
        return out

    def _argument(self, value: Any, key: list[Any]) -> Any:
        """`value` as a node argument; appends what a shape function may see of it to `key`."""
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
            return self._argument(self.inputs.stand_in(value), key)
        try:
            return other_argument(value)
        except Unnameable as error:
            raise self.call.unsupported(UNSUPPORTED_OBJECT, str(error)) from error

    def _check_writable(self, info: Effects, args: Args, kwargs: Kwargs) -> None:
        """What eager checks where it counts a tensor's version, in its own words; and what autograd checks, of inputs."""
        target = args[0] if args else None
        if type(target) is FakeTensor and target.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
        arguments = fakes_in([*args, *kwargs.values()])
        differentiated = torch.is_grad_enabled() and any(f.requires_grad for f in arguments)
        for written in _written(info, args, kwargs):
            self.writes.check_history(written, differentiated)

    def refuse_value(self, what: str) -> Unsupported:
        """The error for `what` reads a value that is not known."""
        return self.call.unsupported(DATA_DEPENDENT, what)


_CLONE = torch.ops.aten.clone.default


def _no_new_size(size: Size) -> Size:
    return size


_LEAST, _GREATEST = (
    -(1 << 63),
    (1 << 63) - 1,
)  # what operators take for an int; torch makes other dtypes of larger ones

# What is run in place of a torch-level function's own code: `body(recorder, function, positional arguments)`.
Body = Callable[[OperatorRecorder, Any, Args], Any]


def _written(info: Effects, args: Args, kwargs: Kwargs) -> Iterator[FakeTensor]:
    """What an operator writes."""
    for name in info.writes:
        value = info.argument(name, args, kwargs)
        for fake in value if isinstance(value, (list, tuple)) else (value,):
            if type(fake) is FakeTensor:
                yield fake
