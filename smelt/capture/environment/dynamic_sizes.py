"""Dynamic sizes of the environment's tensors: sizes that differ between calls are symbolic, all others are specialized."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from smelt._native import isinstance
from smelt.capture.environment.dynamic_numbers import DynamicNumbers
from smelt.capture.environment.symbolic_size_policy import Path, Range, resolve_nothing, without_remainder
from smelt.guards.changed_numbers import size_source, stride_source
from smelt.guards.read_source import Missing, Reader
from smelt.guards.source import Source, source_at
from smelt.guards.tensor_facts import ANY, TensorFacts, stride_over, tensor_facts
from smelt.shapes.divisibility import as_divided
from smelt.shapes.expr import Sym, contiguous_stride
from smelt.size_marks import Mark, marks_of
from smelt.tracing.symbolic.sym_numbers import Int, size_of
from smelt.tracing.symbolic.symbolic_layouts import Over, SymbolicLayout, strides_over
from smelt.user_lines import Line


class DynamicSizes:
    """The symbolic sizes of one capture. Sizes of several tensors that are equal in this call, and were equal in earlier
    calls, share a symbol and are guarded to be equal, since operators mostly require that. If they are not, another capture
    gives them distinct symbols."""

    def __init__(self, numbers: DynamicNumbers) -> None:
        self._numbers = numbers
        self.symbol_sources = numbers.symbol_sources
        self._symbols: dict[Source, Sym] = {}
        self.observed: dict[Path, int] = {}  # the symbolic sizes, with their values in this call
        self.refused: dict[Source, int] = {}  # sizes that are specialized although they are marked as dynamic
        # symbolic sizes that were 1 in an earlier call, or whose mark allows 1
        self.may_be_one: set[Path] = set()
        self._resolved: dict[Source, Int | int] = {}  # sizes resolved before the program read their tensors
        self._visited: set[Source] = set()
        self._roots: Sequence[Source] = ()
        self._read = Reader(())

    def begin(self, roots: Sequence[Source], slots: Sequence[object]) -> None:
        """Start a capture of a frame with these argument slots, whose sources are `roots`."""
        self._roots, self._read = roots, Reader(slots)
        self.symbol_sources.resolve_ahead = self._resolve_ahead

    def end(self) -> None:
        """Drop the arguments and the reference cycle through this object."""
        self._roots, self._read = (), Reader(())
        self.symbol_sources.resolve_ahead = resolve_nothing

    def of(self, tensor: torch.Tensor, source: Source) -> tuple[SymbolicLayout, TensorFacts] | None:
        """The symbolic layout and the guard facts of the tensor at `source`, as its marks and the policy decide; None if all
        its sizes and strides are specialized."""
        policy = self.symbol_sources.policy
        if not policy.enabled or not (policy.selects_any or marks_of(tensor)):
            return None
        facts = tensor_facts(tensor)
        over = strides_over(facts.shape, facts.stride) if facts.layout is torch.strided else None
        dynamic = sorted(
            self._dynamic_dims(tensor, facts, source, over is not None),
            key=lambda item: policy.is_derived(item[1].path),
        )
        sizes = {dim: self._symbol(facts.shape[dim], at, mark) for dim, at, mark in dynamic}
        symbolic = {dim: size for dim, size in sizes.items() if not isinstance(size, int)}
        if over is None:
            return None
        shape = [sizes.get(dim, n) for dim, n in enumerate(facts.shape)]
        if facts.stride == contiguous_stride(facts.shape):
            return (SymbolicLayout.row_major(shape), with_any(facts, symbolic)) if sizes else None
        return self._strided(tensor, facts, source, shape, over)

    def _dynamic_dims(
        self, tensor: torch.Tensor, facts: TensorFacts, source: Source, has_layout: bool
    ) -> Iterator[tuple[int, Source, Mark | None]]:
        """The dimensions with symbolic sizes, each with the source of its size and its mark."""
        marks, policy = marks_of(tensor), self.symbol_sources.policy
        for dim, size in enumerate(facts.shape):
            at, mark = size_source(source, dim), marks.get(dim)
            choice = policy.choice(at.path, size, isinstance(tensor, torch.nn.Parameter), mark, has_layout)
            if choice == "refused":
                self.refused[at] = size
            elif choice == "symbolic":
                if mark is not None and mark.dynamic:
                    self.symbol_sources.marked.add(at.path)
                if policy.may_be_one(at.path, mark):
                    self.may_be_one.add(at.path)
                yield dim, at, mark

    def _includes(self, at: Source, size: int, tensor: torch.Tensor) -> bool:
        return self.symbol_sources.policy.includes(at.path, size, isinstance(tensor, torch.nn.Parameter))

    def _strided(
        self,
        tensor: torch.Tensor,
        facts: TensorFacts,
        source: Source,
        shape: list[Int | int],
        over: Sequence[Over | None],
    ) -> tuple[SymbolicLayout, TensorFacts] | None:
        """Layout and facts of a tensor that is not row-major. A stride that equals the extent of the next inner dimension is
        derived from it; another one is symbolic if it changed."""
        stride: list[Int | int] = list(facts.stride)
        codes, gaps = list(facts.stride), {}
        for dim in sorted(range(len(shape)), key=lambda d: (facts.stride[d], -d)):
            inner = over[dim]
            if inner is None:
                continue
            room = shape[inner.dim] * stride[inner.dim]
            at = stride_source(source, dim)
            if inner.exactly:
                stride[dim] = room
                codes[dim] = codes[dim] if isinstance(room, int) else stride_over(inner.dim, exactly=True)
            elif not inner.exactly and self._includes(at, facts.stride[dim], tensor):
                stride[dim], gap = self._numbers.stride(at, facts.stride[dim], room)
                codes[dim] = stride_over(inner.dim, exactly=False)
                self._record_size(at, gap)
                gaps[dim] = gap, inner.dim
            elif not isinstance(room, int):
                self._numbers.require_at_least(stride[dim], room)
        symbolic = [dim for dim, n in enumerate(shape) if not isinstance(n, int)]
        if not gaps and all(n is m for n, m in zip(shape, facts.shape)):
            return None
        shape_codes = tuple(ANY if d in symbolic else n for d, n in enumerate(facts.shape))
        layout = SymbolicLayout(tuple(shape), tuple(stride), gaps)
        return layout, replace(facts, shape=shape_codes, stride=tuple(codes))

    def _symbol(self, size: int, at: Source, mark: Mark | None) -> Int | int:
        symbol_sources, symbols = self.symbol_sources, self._numbers.symbols()
        policy = symbol_sources.policy
        if at in self._resolved:
            return self._resolved[at]
        if at.path in policy.ones:
            return 1
        self.observed[at.path] = size
        derived = symbol_sources.derive(at, size, symbols.hints) if mark is None else None
        if isinstance(derived, int):
            return derived
        if derived is not None:
            self._numbers.guard_size(at, derived)
            return symbols.number(derived)
        multiple = symbol_sources.derive_multiple(at, size, symbols.hints) if mark is None else None
        if multiple is not None:
            by, factor = multiple
            number, sym = self._numbers.multiple(at, size, by)
            self._symbols[at] = symbol_sources.symbols_before_break[factor] = sym
            symbol_sources.paths.setdefault(sym, set()).add(at.path)
            symbol_sources.partial.add(sym)
            return number
        known = symbol_sources.find_equal(at, size, mark)
        if known is not None:
            first, shared = known
            self._numbers.guard_equal(first, at)
            symbol_sources.record(at, shared)
            return symbols.number(shared)
        bounds = _range(size, mark, *policy.range(at.path, size))
        divisor, any_remainder = policy.divisor(at.path, size), policy.any_remainder(at.path)
        number = self._numbers.size(at, size, *bounds, divisor, any_remainder)
        symbol_sources.register_equal(at, size, size_of(number), mark)
        symbol_sources.register_symbols(at, size_of(number))
        self._record_size(at, number)
        return number

    def _resolve_ahead(self, path: Path) -> None:
        """Create the symbol of a size or number among the arguments, from which another size is derived."""
        source = source_at(path, self._roots)
        if source is None or source in self._visited or self.symbol_sources.policy.is_specialized(path):
            return
        self._visited.add(source)
        try:
            value, tensor_source = self._read(source), _tensor_source(source)
        except Missing:
            return
        if type(value) is not int or value < 2:
            return
        tensor = None if tensor_source is None else self._read(tensor_source)
        if isinstance(tensor, torch.Tensor):
            if not marks_of(tensor):  # marks override the policy
                self._resolved[source] = self._symbol(value, source, None)
        elif path in self._numbers.dynamic:
            size_of(self._numbers.at(source, value))

    def paths_of_full_size(self, sym: Sym) -> frozenset[Path]:
        """The paths of the sizes or numbers that this symbol equals; empty if it may be a quotient or factor of them."""
        if self.symbol_sources.divisors.get(sym, 1) > 1 or sym in self.symbol_sources.partial:
            return frozenset()
        return frozenset(self.symbol_sources.paths.get(sym, ()))

    def _record_size(self, at: Source, number: Int) -> None:
        divided = as_divided(size_of(number))
        assert divided is not None
        self._symbols[at] = divided.sym
        self.symbol_sources.divisors[divided.sym] = divided.divisor
        self.symbol_sources.record(at, size_of(number))
        self.symbol_sources.of_tensors |= set(divided.symbols)

    @property
    def needed(self) -> frozenset[Sym]:
        """The symbols that the program, or torch, needs specialized."""
        return frozenset(sym for at, sym in self._symbols.items() if at in self._numbers.needed)

    @property
    def needed_at(self) -> Line | None:
        """The line that needs the first of them."""
        return next(iter(self._numbers.needed.values()), None)

    @property
    def need_recapture(self) -> bool:
        """Whether some symbols must be specialized, or their ranges narrowed, so that this capture is discarded."""
        return bool(self.needed or self.symbol_sources.narrowed)

    def sources(self, symbols: Iterable[Sym]) -> tuple[str, ...]:
        """The first source of each of these symbols, as Python text."""
        all_paths = self.symbol_sources.paths
        paths = (min(all_paths[s], key=str) for s in symbols if all_paths.get(s))
        sources = (source_at(without_remainder(path), self._roots) for path in paths)
        return tuple(sorted(source.source for source in sources if source is not None))

    def paths_of(self, symbols: Iterable[Sym]) -> frozenset[frozenset[Path]]:
        """The paths of the sizes of each of these symbols."""
        all_paths = self.symbol_sources.paths
        return frozenset(frozenset(all_paths[s]) for s in symbols if s in all_paths)


def _tensor_source(at: Source) -> Source | None:
    """The source of the tensor whose size is at `at`; None if `at` is no size of a tensor."""
    shape = at.base
    return shape.base if shape is not None and shape.kind == "member" and shape.key == "shape" else None


def _range(size: int, mark: Mark | None, low: int, high: int) -> Range:
    """The range of a symbol whose value is now `size`: low..high, within that of its mark if that contains `size`."""
    least = low if mark is None or mark.min is None else max(low, mark.min)
    most = high if mark is None or mark.max is None else min(high, mark.max)
    return (least, most) if least <= size <= most else (low, high)


def with_any(facts: TensorFacts, dims: Mapping[int, object]) -> TensorFacts:
    """`facts` with the sizes of these dimensions, and the strides over them, as `ANY`."""
    if not dims:
        return facts
    last = max(dims)
    return replace(
        facts,
        shape=tuple(ANY if d in dims else n for d, n in enumerate(facts.shape)),
        stride=tuple(ANY if d < last else n for d, n in enumerate(facts.stride)),
    )
