"""Sizes of tensors from outside that differ from call to call: they are symbolic, all others are part of the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from smelt._native import isinstance
from smelt.capture.outside.changing_numbers import ChangingNumbers
from smelt.capture.outside.symbolic_sizes import FIXED_SIZES, Path
from smelt.graph.divisors import multiple_of
from smelt.graph.sizes import INFINITE, Sym, contiguous_stride
from smelt.guards.changed_numbers import size_origin, stride_origin
from smelt.guards.evaluate import tensor_facts
from smelt.guards.guard import ANY, TensorFacts, stride_over
from smelt.guards.origin import Origin
from smelt.marks import Mark, marks_of
from smelt.trace.symbolic_layouts import Over, SymbolicLayout, strides_over
from smelt.trace.symbols import Int, size_of


class ChangingSizes:
    """The symbolic sizes of one capture. Sizes that are equal in this call, and were in the calls before, are one symbol,
    and guarded to be equal: what a program adds or multiplies mostly has them in common, and if not, another capture tells
    them apart."""

    def __init__(self, numbers: ChangingNumbers) -> None:
        self.policy = FIXED_SIZES
        self._numbers = numbers
        numbers.may_be_size, numbers.may_divide = self._take_number, self._may_divide
        # By what they are now and were before, and what is said of them.
        self._like: dict[tuple[object, ...], tuple[Origin, Int]] = {}
        self._paths: dict[Sym, set[Path]] = {}
        self._symbols: dict[Origin, Sym] = {}
        self.refused: dict[Origin, int] = {}  # sizes that are numbers, though they are marked to be symbolic

    def of(self, tensor: torch.Tensor, origin: Origin) -> tuple[SymbolicLayout, TensorFacts] | None:
        """Layout and facts of the tensor found at `origin`, with the sizes and strides that are symbolic, as its marks say,
        else the policy; None where none is."""
        if not self.policy.wanted:
            return None
        found = {dim: self._symbol(tensor.shape[dim], *at) for dim, at in self._sizes(tensor, origin)}
        over = _over(tensor)
        if over is None:
            return None
        shape = [found.get(dim, n) for dim, n in enumerate(tensor.shape)]
        if _is_row_major(tensor):
            return (SymbolicLayout.row_major(shape), with_any(tensor_facts(tensor), found)) if found else None
        return self._laid_out(tensor, origin, shape, over)

    def _sizes(
        self, tensor: torch.Tensor, origin: Origin
    ) -> Iterator[tuple[int, tuple[Origin, Mark | None]]]:
        """The dimensions whose sizes are symbolic: where each is found, and its mark."""
        marks, laid_out = marks_of(tensor), _over(tensor) is not None
        for dim, size in enumerate(tensor.shape):
            at, mark = size_origin(origin, dim), marks.get(dim)
            wanted = self._includes(at, size, tensor) if mark is None else mark.dynamic
            if not wanted or size < 2:
                continue
            if laid_out and not self.policy.is_fixed(at.path) and size >= self.policy.divisor(at.path):
                yield dim, (at, mark)
            elif mark is not None:
                self.refused[at] = size

    def _includes(self, at: Origin, size: int, tensor: torch.Tensor) -> bool:
        is_parameter, on_cpu = isinstance(tensor, torch.nn.Parameter), tensor.device.type == "cpu"
        return self.policy.includes(at.path, size, is_parameter, on_cpu)

    def _laid_out(
        self, tensor: torch.Tensor, origin: Origin, shape: list[Int | int], over: Sequence[Over | None]
    ) -> tuple[SymbolicLayout, TensorFacts] | None:
        """Strides that are as large as the dimension next to them follow from it; others are symbolic if they changed."""
        stride: list[Int | int] = list(tensor.stride())
        codes, gaps = list(tensor.stride()), {}
        for dim in sorted(range(len(shape)), key=lambda d: (tensor.stride(d), -d)):
            inner = over[dim]
            if inner is None:
                continue
            room = shape[inner.dim] * stride[inner.dim]
            at = stride_origin(origin, dim)
            if inner.exactly and not isinstance(room, int):
                stride[dim], codes[dim] = room, stride_over(inner.dim, exactly=True)
            elif not inner.exactly and self._includes(at, stride[dim], tensor):
                stride[dim], gap = self._numbers.stride(at, stride[dim], room)
                codes[dim] = stride_over(inner.dim, exactly=False)
                self._note(at, gap)
                gaps[dim] = gap, inner.dim
            elif not isinstance(room, int):
                self._numbers.require_at_least(stride[dim], room)
        symbolic = [dim for dim, n in enumerate(shape) if not isinstance(n, int)]
        if not symbolic and not gaps:
            return None
        facts = tensor_facts(tensor)
        shape_codes = tuple(ANY if d in symbolic else n for d, n in enumerate(facts.shape))
        layout = SymbolicLayout(tuple(shape), tuple(stride), gaps)
        return layout, replace(facts, shape=shape_codes, stride=tuple(codes))

    def _symbol(self, size: int, at: Origin, mark: Mark | None) -> Int:
        apart, divisor = at.path in self.policy.apart, self.policy.divisor(at.path)
        values = size, self.policy.before(at.path), mark, divisor
        known = None if apart else self._like.get(values)
        if known is not None:
            first, made = known
            self._numbers.guard_equal(first, at)
            self._paths[_sym_of(made)].add(at.path)
            return made
        made = self._numbers.size(at, size, *_range(size, mark), divisor)
        self._note(at, made)
        if not apart:
            self._like[values] = at, made
        return made

    def _note(self, at: Origin, number: Int) -> None:
        self._symbols[at] = _sym_of(number)
        self._paths[_sym_of(number)] = {at.path}

    def _take_number(self, origin: Origin, sym: Sym) -> bool:
        """Whether the number found there may be the size `sym`."""
        if self.policy.is_fixed(origin.path):
            return False
        self._paths[sym] = {origin.path}
        return True

    def _may_divide(self, sym: Sym, divisor: int) -> bool:
        """Whether another capture would know what the sizes of a symbol leave when divided by this, too."""
        paths = self._paths[sym] if sym in self._symbols.values() else ()
        divided = self.policy.with_divisors((path, divisor) for path in paths)
        return divided != self.policy

    @property
    def needed(self) -> frozenset[Sym]:
        """Those that the program, or torch, needs as numbers."""
        return frozenset(sym for at, sym in self._symbols.items() if at in self._numbers.needed)

    def places(self, symbols: Iterable[Sym]) -> frozenset[frozenset[Path]]:
        """Where the sizes were found that each of these stands for."""
        return frozenset(frozenset(self._paths[s]) for s in symbols if s in self._paths)


def _over(tensor: torch.Tensor) -> tuple[Over | None, ...] | None:
    """How its strides follow from each other; None where they do not."""
    return strides_over(tensor.shape, tensor.stride()) if tensor.layout is torch.strided else None


def _is_row_major(tensor: torch.Tensor) -> bool:
    return tensor.stride() == contiguous_stride(tensor.shape)


def _sym_of(number: Int) -> Sym:
    found = multiple_of(size_of(number))
    assert found is not None
    return found[0]


def _range(size: int, mark: Mark | None) -> tuple[int, int]:
    """The least and the largest value of a symbol that is now `size`, as marked; without marks that do not hold now."""
    least = 2 if mark is None or mark.min is None else max(2, mark.min)
    most = INFINITE if mark is None or mark.max is None else mark.max
    return (least, most) if least <= size <= most else (2, INFINITE)


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
