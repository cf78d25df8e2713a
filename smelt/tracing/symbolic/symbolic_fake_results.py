"""Results of an operator on fakes with symbolic sizes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import TensorSpec
from smelt.graph.operator_effects import DeclaredResult, Effects
from smelt.graph.pytree import leaves
from smelt.graph.sample_sizes import hinted
from smelt.graph.unbacked_sizes import is_unbacked
from smelt.ops.dependent_sizes import equal_symbols, lists_of_sizes, required, with_found_out
from smelt.ops.symbolic_results import accepts, culprits, required_sizes, results
from smelt.reasons import (
    DATA_DEPENDENT,
    DATA_DEPENDENT_SHAPE,
    UNSUPPORTED_CALL,
    UNSUPPORTED_OBJECT,
    ReasonKind,
)
from smelt.shapes.divisibility import divisors_in
from smelt.shapes.expr import Expr, Size, Sym
from smelt.torch_private import OpOverload
from smelt.tracing.composites.symbolic_selects import view_of
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.call_arguments import Args, Kwargs
from smelt.tracing.record.recorded_results import CONJ_NEG_VIEWS, RecordedResult, ResultLeaf, leaf_spec
from smelt.tracing.record.trace_inputs import Inputs

_META = torch.device("meta")
_CPU = torch.device("cpu")
_MOST = 16  # largest divisor that is tried
_FARTHEST = 1 << 40  # largest end of a range
_MOST_PAIRS = 8  # of sizes that are tried


def spec_of_fake(value: Any) -> TensorSpec | None:
    """The spec of a fake; None for other objects."""
    return value.spec if type(value) is FakeTensor else None


@dataclass
class SymbolicCall:
    """A call whose arguments have `symbols` in their sizes, or are such sizes. Its results are on `device`."""

    inputs: Inputs
    func: OpOverload
    info: Effects
    args: Args
    kwargs: Kwargs
    device: torch.device
    symbols: frozenset[Sym]

    def infer(self) -> RecordedResult:
        """The recorded results. Raises NeedsFixedSize, and Unsupported for calls that no sizes allow."""
        if self.info.data_dependent:
            raise self._unsupported(DATA_DEPENDENT, str(self.func))
        for kind, func in CONJ_NEG_VIEWS.items():
            if self.func is func:
                spec = self.args[0].spec
                return RecordedResult(None, [ResultLeaf(kind, spec, self.info.names[0])], spec)
        tensors = leaves((*self.args, *self.kwargs.values()), torch.Tensor)
        if len({t.device for t in tensors if t.dim() or t.device != _CPU}) > 1:
            raise self._needs_fixed_size("of tensors on several devices")
        with hinted({s: self.inputs.hint(s) for s in self.symbols}):
            specs, size_bounds = self._results(tensors)
        declared = self.info.results
        if not declared:
            return RecordedResult(None, [ResultLeaf("none")], None, size_bounds)
        single = len(declared) == 1 and not isinstance(specs, tuple)
        results = [self._leaf(r, v, -1) for r, v in zip(declared, [specs] if single else specs)]
        if single and isinstance(results[0], list):
            return RecordedResult(list, results[0], leaf_spec(results[0]), size_bounds)
        spec = results[0].spec if single else tuple(map(leaf_spec, results))
        return RecordedResult(None if single else tuple, results, spec, size_bounds)

    def _results(self, tensors: list[torch.Tensor]) -> tuple[Any, list[tuple[Size, int, int]]]:
        """(specs, or returned argument fakes; the required bounds of sizes)."""
        args: Args = tuple(self._with_fakes(self.args))
        kwargs: Kwargs = self._with_fakes(self.kwargs)
        if "device" in self.info.names:
            if kwargs.get("device") is not None or not tensors:
                kwargs["device"] = _META
            kwargs.pop("pin_memory", None)
        if kwargs.get("layout") not in (None, torch.strided):
            raise self._unsupported(UNSUPPORTED_OBJECT, f"a {kwargs['layout']} tensor")
        view = view_of(self.func, args, kwargs)
        if view is not None:
            return view, []
        try:
            specs = results(self.func, args, kwargs, self.device, spec_of_fake)
            return specs, required_sizes(self.func, args, kwargs, self.device, spec_of_fake, specs)
        except NotImplementedError as error:
            if self.info.dynamic_shape:
                raise self._unsupported(DATA_DEPENDENT_SHAPE, str(self.func)) from error
            if self.info.only_writes:
                written = tuple(self.info.argument(r.arg, args, kwargs) for r in self.info.results)
                return written[0] if len(written) == 1 else written, []
            raise self._unsupported(UNSUPPORTED_CALL, f"{self.func} has no shape function") from error
        except NeedsFixedSize as error:
            if self.info.dynamic_shape and "meta tensor" in str(error):
                raise self._unsupported(DATA_DEPENDENT_SHAPE, str(self.func)) from error
            syms, derived = self.symbols, dict[Sym, Size]()
            if len(syms) > 1:
                hints = {s: self.inputs.hint(s) for s in self.symbols}
                syms = culprits(self.func, args, kwargs, self.device, spec_of_fake, hints) or self.symbols
                derived = self._dependent_sizes(args, kwargs, hints)
            equal = equal_symbols(derived)
            derived = {sym: size for sym, size in derived.items() if sym not in equal}
            divisors, ranges = self._divisors(args, kwargs, syms), self._ranges(args, kwargs, syms)
            raise NeedsFixedSize(
                error.reason.detail,
                syms,
                divisors=divisors,
                ranges=ranges,
                equal=equal,
                derived=derived,
                assumed=self._equal_to_unbacked(args, kwargs),
            ) from error

    def _dependent_sizes(self, args: Args, kwargs: Kwargs, hints: dict[Sym, int]) -> dict[Sym, Size]:
        """Sizes that suffice as requirements for some of the symbols: each as an expression over others."""
        shapes = [t.spec.shape for t in leaves((args, kwargs), FakeTensor)]
        lists = list(lists_of_sizes((args, kwargs)))
        if shapes:
            lists, hints = with_found_out(shapes[0], lists, hints)
        sizes = required(
            [*shapes, *lists],
            hints,
            lambda values: accepts(self.func, args, kwargs, self.device, spec_of_fake, values),
            hints.keys() - self.symbols,
        )
        return {sym: size for sym, size in sizes.items() if not isinstance(size, int)}

    def _equal_to_unbacked(self, args: Args, kwargs: Kwargs) -> dict[Sym, Size]:
        """An unbacked size, and the other size that it must equal for the operator to accept the arguments; empty if no
        single pair suffices."""
        shapes = [t.spec.shape for t in leaves((args, kwargs), FakeTensor)]
        sizes = dict.fromkeys(chain(*shapes, *lists_of_sizes((args, kwargs))))
        unbacked = [n for n in sizes if isinstance(n, Sym) and is_unbacked(n)]
        pairs = [(sym, n) for sym in reversed(unbacked) for n in sizes if n not in (sym, 0, 1, -1)]
        for sym, size in pairs[:_MOST_PAIRS]:
            if accepts(self.func, args, kwargs, self.device, spec_of_fake, {sym: size}):
                return {sym: size}
        return {}

    def _divisors(self, args: Args, kwargs: Kwargs, syms: frozenset[Sym]) -> dict[Sym, int]:
        """Divisors of those of `syms` whose remainder it suffices to know: divisors among the arguments or tensors,
        whose sizes may fit for multiples only. Symbols without one that have changed may have to be multiples as well:
        where a size is inferred (`x.view(-1, 2)`), of 2 (`glu`), of an int argument (`pixel_unshuffle`)."""
        shapes = (tensor.spec.shape for tensor in leaves((args, kwargs), FakeTensor))
        divided = divisors_in(chain(leaves((args, kwargs), Expr), *shapes))
        tried = [{sym: by for sym, by in divided.items() if sym in syms}]
        symbols = self.inputs.numbers.symbols
        changed = [sym for sym in syms if symbols is not None and symbols.has_changed(sym)]
        if changed:
            lists = (sizes for sizes in lists_of_sizes((args, kwargs)) if -1 in sizes)
            known = [prod(n for n in sizes if isinstance(n, int) and n > 1) for sizes in lists]
            known += sorted({2, *(n for n in leaves((args, kwargs), int) if 1 < n <= _MOST)})
            tried += [dict.fromkeys(changed, by) for by in known if by > 1]
        return next((divisors for divisors in tried if self._fit(args, kwargs, divisors)), {})

    def _fit(self, args: Args, kwargs: Kwargs, divisors: dict[Sym, int]) -> bool:
        """Whether the operator accepts all sizes with the same remainders as those of this call."""
        multiples = {sym: sym * by + self.inputs.hint(sym) % by for sym, by in divisors.items()}
        return bool(divisors) and accepts(self.func, args, kwargs, self.device, spec_of_fake, multiples)

    def _ranges(self, args: Args, kwargs: Kwargs, syms: frozenset[Sym]) -> dict[Sym, tuple[int, int]]:
        """Ranges of those of `syms` for which it suffices to know the range: the trace depends on it already, but too
        late for sizes that are equal only there, such as `s % 512` and `s`."""
        symbols = self.inputs.numbers.symbols
        known = {} if symbols is None else {sym: symbols.bounds(sym) for sym in syms}
        ranges = {sym: ends for sym, ends in known.items() if ends[1] < min(sym.hi, _FARTHEST)}
        narrower = {sym: Sym(sym.name, *ends) for sym, ends in ranges.items()}
        fits = ranges and accepts(self.func, args, kwargs, self.device, spec_of_fake, narrower)
        return ranges if fits else {}

    def _with_fakes(self, value: Any) -> Any:
        """The arguments with fakes in place of real tensors, except scalar CPU tensors."""
        if isinstance(value, (list, tuple)):
            return [self._with_fakes(v) for v in value]
        if isinstance(value, dict):
            return {k: self._with_fakes(v) for k, v in value.items()}
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
            return value if value.dim() == 0 and value.device == _CPU else self.inputs.fake_for_native(value)
        return value

    def _leaf(self, result: DeclaredResult, item: Any, index: int) -> Any:
        """The recorded form of a result, or of element `index` of a list result: `item` is a spec, or a returned
        argument fake."""
        if item is None:
            return ResultLeaf("none")
        source = self.info.argument(result.arg, self.args, self.kwargs) if result.arg else None
        if result.kind == "same":
            if index < 0 and isinstance(source, (list, tuple)):
                return [self._leaf(result, v, i) for i, v in enumerate(source)]
            fake: Any = source[index] if isinstance(source, (list, tuple)) else source
            return ResultLeaf("same", fake.spec, result.arg, index)
        if isinstance(item, (list, tuple)):
            return [self._leaf(result, v, i) for i, v in enumerate(item)]
        if type(item) is FakeTensor:
            return ResultLeaf("same", item.spec, *self._argument_position(item))
        if isinstance(item, (int, Expr)) and not isinstance(item, bool):
            return ResultLeaf("number", size=item)
        if not isinstance(item, TensorSpec):
            raise self._needs_fixed_size("returns a number")
        if result.kind != "view":
            return ResultLeaf("fresh", item)
        if type(source) is not FakeTensor or not (
            source.dtype == item.dtype or source.dtype.is_complex != item.dtype.is_complex
        ):
            raise self._needs_fixed_size("returns a view of another dtype")
        return ResultLeaf("view", item, result.arg)

    def _argument_position(self, fake: FakeTensor) -> tuple[str, int]:
        """(name, list index or -1) of an argument."""
        for name in self.info.names:
            value = self.info.argument(name, self.args, self.kwargs)
            for i, element in enumerate(value if isinstance(value, (list, tuple)) else ()):
                if element is fake:
                    return name, i
            if value is fake:
                return name, -1
        raise self._needs_fixed_size("returns a fake that is no argument")

    def _needs_fixed_size(self, what: str) -> NeedsFixedSize:
        return NeedsFixedSize(f"{self.func} {what}", self.symbols)

    def _unsupported(self, kind: ReasonKind, detail: str) -> Unsupported:
        return self.inputs.call.unsupported(kind, detail)
