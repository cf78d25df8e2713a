"""Sizes of tensors from outside that differ from call to call: they are symbolic, all others are part of the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from smelt._native import isinstance
from smelt.capture.environment.dynamic_numbers import ChangingNumbers
from smelt.capture.environment.symbolic_size_policy import Path, Range, meet_nothing, without_remainder
from smelt.guards.changed_numbers import size_source, stride_source
from smelt.guards.guard import ANY, TensorFacts, stride_over
from smelt.guards.guard_evaluation import tensor_facts
from smelt.guards.read_source import Missing, Reader
from smelt.guards.source import Source, source_at
from smelt.shapes.divisibility import as_divided
from smelt.shapes.expr import Sym, contiguous_stride
from smelt.size_marks import Mark, marks_of
from smelt.tracing.symbolic.sym_numbers import Int, size_of
from smelt.tracing.symbolic.symbolic_layouts import Over, SymbolicLayout, strides_over
from smelt.user_lines import Line


class ChangingSizes:
    """The symbolic sizes of one capture. Sizes of several tensors that are equal in this call, and were in the calls before,
    are one symbol, and guarded to be equal: what a program adds or multiplies mostly has them in common, and if not, another
    capture tells them apart."""

    def __init__(self, numbers: ChangingNumbers) -> None:
        self._numbers = numbers
        self.places = numbers.places
        self._symbols: dict[Source, Sym] = {}
        self.seen: dict[Path, int] = {}  # those that are symbolic, as they are in this call
        self.refused: dict[Source, int] = {}  # sizes that are numbers, though they are marked to be symbolic
        self.may_be_one: set[Path] = set()  # those that are symbolic, and were 1 before, or are marked so
        self._made: dict[Source, Int | int] = {}  # before the program came to their tensors
        self._met: set[Source] = set()
        self._roots: Sequence[Source] = ()
        self._read = Reader(())

    def begin(self, roots: Sequence[Source], slots: Sequence[object]) -> None:
        """The arguments of this capture's frame, and where they are found."""
        self._roots, self._read = roots, Reader(slots)
        self.places.meet = self._meet

    def end(self) -> None:
        """Drops the arguments, and what refers to this object, so that all goes when nobody needs it."""
        self._roots, self._read = (), Reader(())
        self.places.meet = meet_nothing

    def of(self, tensor: torch.Tensor, source: Source) -> tuple[SymbolicLayout, TensorFacts] | None:
        """Layout and facts of the tensor found at `source`, with the sizes and strides that are symbolic, as its marks say,
        else the policy; None where none is."""
        policy = self.places.policy
        if not policy.wanted or not (policy.names_any or marks_of(tensor)):
            return None
        facts = tensor_facts(tensor)
        over = strides_over(facts.shape, facts.stride) if facts.layout is torch.strided else None
        places = sorted(
            self._sizes(tensor, facts, source, over is not None), key=lambda p: policy.is_sum(p[1][0].path)
        )
        made = {dim: self._symbol(facts.shape[dim], *at) for dim, at in places}
        found = {dim: size for dim, size in made.items() if not isinstance(size, int)}
        if over is None:
            return None
        shape = [made.get(dim, n) for dim, n in enumerate(facts.shape)]
        if facts.stride == contiguous_stride(facts.shape):
            return (SymbolicLayout.row_major(shape), with_any(facts, found)) if made else None
        return self._laid_out(tensor, facts, source, shape, over)

    def _sizes(
        self, tensor: torch.Tensor, facts: TensorFacts, source: Source, laid_out: bool
    ) -> Iterator[tuple[int, tuple[Source, Mark | None]]]:
        """The dimensions whose sizes are symbolic: where each is found, and its mark."""
        marks = marks_of(tensor)
        for dim, size in enumerate(facts.shape):
            at, mark = size_source(source, dim), marks.get(dim)
            wanted = self._includes(at, size, tensor) if mark is None else mark.dynamic
            if not wanted or size < 2:
                continue
            low, high = self.places.policy.range(at.path, size)
            if laid_out and not self.places.policy.is_fixed(at.path) and low < high:
                if self.places.policy.was_one(at.path) or (mark is not None and mark.min == 1):
                    self.may_be_one.add(at.path)
                yield dim, (at, mark)
            elif mark is not None:
                self.refused[at] = size

    def _includes(self, at: Source, size: int, tensor: torch.Tensor) -> bool:
        return self.places.policy.includes(at.path, size, isinstance(tensor, torch.nn.Parameter))

    def _laid_out(
        self,
        tensor: torch.Tensor,
        facts: TensorFacts,
        source: Source,
        shape: list[Int | int],
        over: Sequence[Over | None],
    ) -> tuple[SymbolicLayout, TensorFacts] | None:
        """Strides that are as large as the dimension next to them follow from it; others are symbolic if they changed."""
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
                self._note(at, gap)
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
        if at in self._made:
            return self._made[at]
        if at.path in self.places.policy.ones:
            return 1
        self.seen[at.path] = size
        follows = self.places.follows(at, size, self._numbers.symbols().hints) if mark is None else None
        if isinstance(follows, int):
            return follows
        if follows is not None:
            self._numbers.guard_size(at, follows)
            return self._numbers.symbols().number(follows)
        several = self.places.multiple_of(at, size, self._numbers.symbols().hints) if mark is None else None
        if several is not None:
            by, times = several
            multiple, sym = self._numbers.multiple(at, size, by)
            self._symbols[at] = self.places.before[times] = sym
            self.places.paths.setdefault(sym, set()).add(at.path)
            self.places.parts.add(sym)
            return multiple
        known = self.places.known_like(at, size, mark)
        if known is not None:
            first, found = known
            self._numbers.guard_equal(first, at)
            self.places.note(at, found)
            return self._numbers.symbols().number(found)
        policy = self.places.policy
        bounds = _range(size, mark, *policy.range(at.path, size))
        divisor, any_remainder = policy.divisor(at.path, size), policy.any_remainder(at.path)
        made = self._numbers.size(at, size, *bounds, divisor, any_remainder)
        self.places.first_like(at, size, size_of(made), mark)
        self.places.made_at(at, size_of(made))
        self._note(at, made)
        return made

    def _meet(self, path: Path) -> None:
        """Makes the symbol of a size, or number, among the arguments, from which the size of another one follows."""
        source = source_at(path, self._roots)
        if source is None or source in self._met or self.places.policy.is_fixed(path):
            return
        self._met.add(source)
        try:
            value, tensor = self._read(source), _sized(source)
        except Missing:
            return
        if type(value) is not int or value < 2:
            return
        found = None if tensor is None else self._read(tensor)
        if isinstance(found, torch.Tensor):
            if not marks_of(found):  # they may say otherwise
                self._made[source] = self._symbol(value, source, None)
        elif path in self._numbers.dynamic:
            size_of(self._numbers.at(source, value))

    def whole_at(self, sym: Sym) -> frozenset[Path]:
        """Where this symbol is all of the size, or number, that was found; nowhere where it may be a part of one."""
        if self.places.divisors.get(sym, 1) > 1 or sym in self.places.parts:
            return frozenset()
        return frozenset(self.places.paths.get(sym, ()))

    def _note(self, at: Source, number: Int) -> None:
        found = as_divided(size_of(number))
        assert found is not None
        self._symbols[at] = found.sym
        self.places.divisors[found.sym] = found.divisor
        self.places.note(at, size_of(number))
        self.places.of_tensors |= set(found.symbols)

    @property
    def needed(self) -> frozenset[Sym]:
        """Those that the program, or torch, needs as numbers."""
        return frozenset(sym for at, sym in self._symbols.items() if at in self._numbers.needed)

    @property
    def needed_at(self) -> Line | None:
        """The line that needs the first of them."""
        return next(iter(self._numbers.needed.values()), None)

    @property
    def are_in_vain(self) -> bool:
        """Whether some were needed as numbers, or are to be in narrower ranges: the capture begins again."""
        return bool(self.needed or self.places.narrowed)

    def sources(self, symbols: Iterable[Sym]) -> tuple[str, ...]:
        """The first place at which each of these sizes was found, as Python has it."""
        paths = (min(self.places.paths[s], key=str) for s in symbols if self.places.paths.get(s))
        found = (source_at(without_remainder(path), self._roots) for path in paths)
        return tuple(sorted(source.source for source in found if source is not None))

    def found_at(self, symbols: Iterable[Sym]) -> frozenset[frozenset[Path]]:
        """Where the sizes were found that each of these stands for."""
        return frozenset(frozenset(self.places.paths[s]) for s in symbols if s in self.places.paths)


def _sized(at: Source) -> Source | None:
    """The tensor of which the size is found there, if it is one."""
    shape = at.base
    return shape.base if shape is not None and shape.kind == "member" and shape.key == "shape" else None


def _range(size: int, mark: Mark | None, low: int, high: int) -> Range:
    """The least and the largest value of a symbol that is now `size`: from `low` to `high`, and as marked; without marks
    that do not hold now."""
    least = low if mark is None or mark.min is None else max(low, mark.min)
    most = high if mark is None or mark.max is None else min(high, mark.max)
    return (least, most) if least <= size <= most else (low, high)


def with_any(facts: TensorFacts, dims: Mapping[int, object]) -> TensorFacts:
    """The facts, where the sizes of these dimensions may be any."""
    if not dims:
        return facts
    last = max(dims)
    return replace(
        facts,
        shape=tuple(ANY if d in dims else n for d, n in enumerate(facts.shape)),
        stride=tuple(ANY if d < last else n for d, n in enumerate(facts.stride)),
    )
