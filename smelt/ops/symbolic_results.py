"""Results of operators for symbolic sizes. The shape function runs for an assignment of sample sizes to the symbols, and
confirms the layout that a rule states (`layout_rules.py`). Without a rule it runs for each assignment, and the result sizes
are the expressions that fit all answers.

If the operator raises for one assignment, it may do so for some sizes: the symbols are then specialized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.ir import TensorSpec
from smelt.graph.operator_effects import effects
from smelt.graph.sample_sizes import (
    COUNT,
    HUGE,
    ITSELF,
    LARGE,
    MOST,
    Candidates,
    at,
    candidates_of,
    more_of,
    now,
    products,
    syms_of,
    values_of,
    widened,
)
from smelt.graph.tensor_specs import empty_like_spec, make_spec, with_sizes
from smelt.ops.layout_rules import Layout, Layouts, known_layout, named_arguments
from smelt.ops.layouts import Accepted, not_tried, of_row, on_metas, seen_on_gpu
from smelt.ops.layouts.meta_layouts import CPU, elements, of_cpp
from smelt.ops.layouts.observed_layouts import Seen
from smelt.ops.recompute_rules import Class
from smelt.ops.registry import row
from smelt.ops.result_shapes import Shape, is_windowed, least_sizes, quotients
from smelt.ops.symbolic_rules import SELECT, SINGLE_INDEX
from smelt.shapes.divisibility import is_remainder
from smelt.shapes.expr import (
    INFINITE,
    Expr,
    Size,
    Sym,
    bounds,
    ceil_div,
    contiguous_stride,
    evaluate,
    free_syms,
)
from smelt.shapes.substitute import substitute
from smelt.torch_private import OpOverload

_META = torch.device("meta")
_MOST_TRIED = 1 << 22  # elements of a GPU's tensors of sizes that nobody gave
# Elements of arguments and results on a CPU, for an operator that is run to know its results.
_MOST_RUN = 1 << 26
_MOST_ELEMENTS = 1 << 50  # of an operand: what is made of it may have some thousand times as many

# Sizes of their results are quotients, which a multiple of a size may resemble.
_DIVIDING = (
    "conv",
    "pool",
    "unfold",
    "im2col",
    "col2im",
    "upsample",
    "grid",
    "fft",
    "stft",
    "chunk",
    "split",
    "slice",
)
# What these do, and the rows that say `any_size`, is right, or an error under every assignment, for all sizes from 2 on. Of
# all others the sizes are required to lie between the smallest and the largest that were tried (`required_sizes`).
_SAFE_CLASSES = (
    Class.CREATION, Class.POINTWISE, Class.TRANSCENDENTAL, Class.ROWS, Class.REDUCTION, Class.STATISTICS,
    Class.SCAN, Class.PRODUCT,
)  # fmt: skip
_DIAGONALS = {
    "diagonal": 2,
    "diagonal_copy": 2,
    "diagonal_scatter": 3,
}  # where the dimensions are among the arguments


def required_sizes(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
    found: Any,
) -> list[tuple[Size, int, int]]:
    """Sizes with the range that each must be in for `found`, which `results` returned, to hold."""
    if _is_safe(func, args):
        least = least_sizes(_name(func), named_arguments(func, args, kwargs), spec_of)
        return [(size, n, INFINITE) for size, n in least if isinstance(size, Expr)]
    syms = symbols_in((args, kwargs), spec_of)
    last = _last(func, [s for leaf in _leaves((args, kwargs)) if (s := spec_of(leaf)) is not None])
    made: list[tuple[Size, int, int]] = []

    def holds_at(sym: Sym, number: int) -> bool:
        one: dict[Sym, Size] = {sym: number}
        positional, named = (_replaced(tree, one, spec_of) for tree in (list(args), kwargs))
        try:
            out, _ = _Asked(func, positional, named, device, _spec_of).answer(0)
        except NeedsFixedSize:
            return False
        return _fits(substitute(found, one), out, {s: at(s, 0) for s in syms})

    for sym in sorted(syms, key=str):
        tried = min(values_of(sym))
        small = (n for n in range(max(sym.lo, 2), tried) if holds_at(sym, n))
        made.append((sym, next(small, tried), _rounded_down(at(sym, last))))
    return made


def _rounded_down(number: int) -> int:
    """A large number without the part that distinguishes symbols: two captures that name a size differently then
    require the same of it."""
    return number // 1000 * 1000 or number


def _last(func: OpOverload, specs: Sequence[TensorSpec]) -> int:
    """The assignment with the largest numbers that the operator may be asked about."""
    if row(func).run_on_zeros and row(func).layout is None:
        return COUNT - 1
    elements = max((prod(at(n, HUGE) for n in spec.shape) for spec in specs), default=0)
    return HUGE if elements < _MOST_ELEMENTS else LARGE


def _is_run(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the operator may run to determine its results."""
    return row(func).run_on_zeros and of_row(func, args, kwargs) is NotImplemented


def _is_safe(func: OpOverload, args: Sequence[Any]) -> bool:
    name = func._schema.name.removeprefix("aten::")
    if name in ("split", "unsafe_split"):  # where it has no other size, it gives as many pieces
        shape = args[0].spec.shape
        dim = args[2] if len(args) > 2 else 0
        return -len(shape) <= dim < len(shape) and isinstance(shape[dim], int)
    if name in _DIAGONALS:  # of another the shorter dimension decides
        shape, dims = args[0].spec.shape, args[_DIAGONALS[name] :] or (0, 1)
        return (
            len(dims) == 2
            and all(-len(shape) <= d < len(shape) for d in dims)
            and shape[dims[0]] == shape[dims[1]]
        )
    if name == "topk":
        return isinstance(args[1], Expr)  # it is checked then that there are as many
    if name in ("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce"):
        return _covers(*args[:4])
    if torch.Tag.pointwise in func.tags or row(func).recompute in _SAFE_CLASSES or row(func).any_size:
        return True
    pure = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    return pure is not None and row(getattr(pure, pure.overloads()[0])).any_size


def _covers(x: Any, dim: int, index: Any, source: Any = None) -> bool:
    """Whether every index has a position and a value, whatever the sizes are."""
    shape, index_shape = x.spec.shape, index.spec.shape
    if hasattr(source, "spec") and isinstance(source.spec, TensorSpec) and source.spec.shape != index_shape:
        return False
    return len(shape) == len(index_shape) and all(
        a is b or d == dim % len(shape) for d, (a, b) in enumerate(zip(shape, index_shape))
    )


def symbols_in(args: Any, spec_of: Callable[[Any], TensorSpec | None]) -> frozenset[Sym]:
    """The symbols among arguments. `spec_of` returns the spec of a tensor argument, and None for anything else."""
    found: set[Sym] = set()
    for leaf in _leaves(args):
        spec = leaf if isinstance(leaf, TensorSpec) else spec_of(leaf)
        if spec is not None:
            found |= syms_of(spec)
        elif isinstance(leaf, Expr):
            found |= free_syms(leaf)
    return frozenset(found)


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _leaves(item)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


def results(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
) -> Any:
    """The results of `func`: specs in place of tensors, in lists and tuples; a returned argument is itself.

    Raises NeedsFixedSize, or NotImplementedError if it has no shape function.
    """
    if func in SINGLE_INDEX and func is not SELECT:  # the index is in range, and does not affect the layout
        args = [0 if a.name == "index" else v for v, a in zip(args, func._schema.arguments)]
    offsets = _offsets_below_zero((args, kwargs), spec_of)
    if offsets:
        return _results_with_symbols_for(offsets, func, args, kwargs, device, spec_of)
    safe, symbols = _is_safe(func, args), symbols_in((args, kwargs), spec_of)
    if not safe or not is_windowed(_name(func)):
        try:
            return _results(func, args, kwargs, device, spec_of)
        except NeedsFixedSize as error:
            if not safe or not (isinstance(error, _Unclear) or _are_small((args, kwargs), spec_of)):
                raise
    # With large numbers, of which no quotient vanishes. Of images, what is symbolic of the result is at least two, so no
    # window is larger than its image.
    syms = widened(symbols)
    narrow = {wide: sym for sym, wide in syms.items()}
    large_args, large_kwargs = (_replaced(tree, syms, spec_of) for tree in (list(args), kwargs))
    try:
        if _are_small((large_args, large_kwargs), _spec_of, 1):  # a fixed size divided by a symbol
            raise NeedsFixedSize(f"{func} of what is small where a symbol is large", symbols)
        found = _results(func, large_args, large_kwargs, device, _spec_of)
    except NeedsFixedSize as error:
        raise NeedsFixedSize(error.reason.detail, frozenset(syms)) from None
    return substitute(found, narrow)


def _offsets_below_zero(args: Any, spec_of: Callable[[Any], TensorSpec | None]) -> list[Expr]:
    """Offsets of tensors that are negative under an assignment: assignments ignore that an index from the end is within its
    size."""
    specs = (spec for leaf in _leaves(args) if (spec := spec_of(leaf)) is not None)
    offsets = dict.fromkeys(spec.offset for spec in specs if isinstance(spec.offset, Expr))
    return [offset for offset in offsets if min(at(offset, k) for k in range(ITSELF + 1)) < 0]


def _results_with_symbols_for(
    offsets: Sequence[Expr],
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
) -> Any:
    """The results of tensors at these offsets, found with a symbol in place of each."""
    taken = {sym.name for sym in symbols_in((args, kwargs), spec_of)}
    free = (Sym(name, 2) for name in map("s{}".format, range(MOST - 1, -1, -1)) if name not in taken)
    symbol_of = dict(zip(offsets, free))
    if len(symbol_of) < len(offsets):
        raise NeedsFixedSize(f"{func} of tensors at many offsets", symbols_in((args, kwargs), spec_of))
    originals: dict[int, tuple[_Tensor, Any]] = {}

    def replaced(tree: Any) -> Any:
        if isinstance(tree, (list, tuple)):
            return [replaced(item) for item in tree]
        if isinstance(tree, dict):
            return {name: replaced(item) for name, item in tree.items()}
        spec = spec_of(tree)
        if spec is None or spec.offset not in symbol_of:
            return tree
        moved = _Tensor(
            make_spec(
                *(spec.shape, spec.stride, spec.dtype, spec.device, symbol_of[spec.offset]),
                spec.requires_grad,
            )
        )
        originals[id(moved)] = moved, tree
        return moved

    def returned(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(returned, value))
        return originals[id(value)][1] if id(value) in originals else value

    found = results(func, replaced(args), replaced(kwargs), device, lambda x: _spec_of(x) or spec_of(x))
    return substitute(returned(found), {sym: offset for offset, sym in symbol_of.items()})


def _are_small(args: Any, spec_of: Callable[[Any], TensorSpec | None], least: int = 2) -> bool:
    """Whether a symbolic size of the tensors is less than `least` under an assignment. In calls none is below 2."""
    shapes = (spec.shape for leaf in _leaves(args) if (spec := spec_of(leaf)) is not None)
    return any(min(values_of(n)) < least for shape in shapes for n in shape if isinstance(n, Expr))


def _replaced(tree: Any, values: Mapping[Sym, Size], spec_of: Callable[[Any], TensorSpec | None]) -> Any:
    """Arguments with the symbols replaced."""
    if isinstance(tree, (list, tuple)):
        return [_replaced(item, values, spec_of) for item in tree]
    if isinstance(tree, dict):
        return {name: _replaced(item, values, spec_of) for name, item in tree.items()}
    spec = spec_of(tree)
    if spec is not None:
        return _Tensor(substitute(spec, values))
    return substitute(tree, values)


def _name(func: OpOverload) -> str:
    return func._schema.name.removeprefix("aten::")


def _check_count(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    spec_of: Callable[[Any], TensorSpec | None],
) -> None:
    """Raise NeedsFixedSize for the chunks of a dimension whose length decides their number: the sample sizes would
    make millions."""
    if _name(func) not in ("unbind", "split", "unsafe_split"):
        return
    named = named_arguments(func, args, kwargs)
    spec, dim = spec_of(named["self"]), named["dim"]
    if spec is None or not -len(spec.shape) <= dim < len(spec.shape):
        return
    each = named.get("split_size", 1)
    if not isinstance(each, int) or each < 1:
        return
    fewest, most = bounds(ceil_div(spec.shape[dim], each))
    if fewest < most:
        raise NeedsFixedSize(
            f"{_name(func)}: how many results there are depends on sizes", free_syms(spec.shape[dim])
        )


def _results(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
) -> Any:
    asked = _Asked(func, args, kwargs, device, spec_of)
    syms, specs, sizes = asked.syms, asked.specs, asked.sizes
    _check_count(func, args, kwargs, spec_of)
    layouts = known_layout(func, args, kwargs, spec_of)
    shapes = [spec.shape for spec in specs]
    k = _of_a_call([*shapes, *_shapes(layouts)])
    first = out, back = asked.answer(k)
    known = None if id(out) in back or layouts is None else _by_rule(asked, layouts, out, k)
    if known is not None:
        _check_itself(asked, known)
        return known
    declared = effects(func).results
    returns_arguments = bool(declared) and all(result.kind == "same" for result in declared)
    tried: Sequence[int] = range(COUNT)
    if returns_arguments:  # of a slice, whose size may be negative for other samples (`40 - s0`)
        tried = [n for n in tried if n == k or _are_of_calls(shapes, lambda size, n=n: at(size, n))]  # type: ignore[misc]
    answers, meta_arguments = zip(*(first if n == k else asked.answer(n) for n in tried))
    if returns_arguments:
        _check_itself(asked, None)
        written = tuple(effects(func).argument(result.arg, tuple(args), kwargs) for result in declared)
        return written[0] if len(written) == 1 else written
    name = _name(func)
    sizes += quotients(name, named_arguments(func, args, kwargs), spec_of)
    shape = next(_shapes(layouts), None)
    found = _Fit(name, candidates_of(specs, sizes), shape, shapes, syms, device, meta_arguments).tree(answers)
    _check_itself(asked, found)
    _check_current_call(asked, found)
    for numbers in more_of(syms):
        out, _ = asked.answer_for(lambda size, numbers=numbers: evaluate(size, numbers))  # type: ignore[misc]
        if not _fits(found, out, numbers, shapes):
            raise NeedsFixedSize(f"{name}: other sizes of these ranges make a difference", syms)
    last = _last(func, specs)
    if device.type == "cpu" and last >= COUNT and not _is_safe(func, args):
        # All large, and each beside small others: which is smaller may decide (a diagonal of 2 * s by t).
        for sym in (None, *syms) if len(syms) > 1 else (None,):
            numbers = {s: at(s, last if sym in (None, s) else 0) for s in syms}
            out, _ = asked.answer_for(lambda size, numbers=numbers: evaluate(size, numbers))  # type: ignore[misc]
            if not _fits(found, out, numbers):
                raise NeedsFixedSize(f"{name}: large sizes make a difference", syms)
    return found


def fitted(
    name: str,
    answers: Sequence[Any],
    specs: Sequence[TensorSpec],
    sizes: Sequence[Size],
    device: torch.device,
) -> Any:
    """The results, as specs, of a function of tensors with these `specs` and of `sizes` that gave the meta tensors `answers`
    for the first assignments. Raises NeedsFixedSize if no expressions fit them."""
    shapes = [spec.shape for spec in specs]
    syms = frozenset[Sym]().union(*map(syms_of, specs), *map(free_syms, sizes))
    return _Fit(name, candidates_of(specs, sizes), None, shapes, syms, device, [{}] * COUNT).tree(answers)


def _check_itself(asked: _Asked, found: Any) -> None:
    """Raise NeedsFixedSize if sizes of 0 or 1 change the results found for others."""
    if any(s.lo == s.hi for s in asked.syms):
        out, _ = asked.answer(ITSELF)
        if found is not None and not _has_sizes(found, out, lambda size: at(size, ITSELF)):
            raise NeedsFixedSize(f"{asked.func}: sizes of 0 or 1 make a difference", asked.syms)


def _check_current_call(asked: _Asked, found: Any) -> None:
    """Raise NeedsFixedSize if the fitted result, or the first of several, has not the sizes of the current call.

    Unbacked sizes have no value in that call, and a shape function may refuse a likely value; then nothing is checked.
    torch's shape functions are wrong about further results of some operators (`_embedding_bag`), which run where they have
    few elements.
    """
    try:
        out, _ = asked.answer_for(now)
    except NeedsFixedSize:
        return
    if isinstance(found, tuple) and len(found) == len(out):
        found, out = found[:1], out[:1]
    if not _has_sizes(found, out, now):
        raise NeedsFixedSize(f"{asked.func}: the sizes of this call make a difference", asked.syms)


def culprits(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
    hints: Mapping[Sym, int],
) -> frozenset[Sym]:
    """Symbols that suffice to specialize, at their `hints`, if `results` raises NeedsFixedSize. Earlier symbols stay
    symbolic if possible: they are mostly batches and lengths, later ones features. Remainders come last."""
    syms = sorted(symbols_in((args, kwargs), spec_of), key=lambda s: (is_remainder(s), len(s.name), s.name))
    fixed: dict[Sym, Size] = {s: hints[s] for s in syms}
    for sym in syms:
        others = {s: n for s, n in fixed.items() if s is not sym}
        if accepts(func, args, kwargs, device, spec_of, others):
            fixed = others
    return frozenset(fixed)


def accepts(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    device: torch.device,
    spec_of: Callable[[Any], TensorSpec | None],
    values: Mapping[Sym, Size],
) -> bool:
    """Whether `results` succeeds with these sizes in place of the symbols."""
    positional, named = (_replaced(tree, values, spec_of) for tree in (list(args), kwargs))
    try:
        results(func, positional, named, device, _spec_of)
    except NeedsFixedSize:
        return False
    return True


@dataclass(frozen=True)
class _Tensor:
    """A placeholder for a tensor."""

    spec: TensorSpec


def _spec_of(value: Any) -> TensorSpec | None:
    return value.spec if isinstance(value, _Tensor) else None


def _fits(found: Any, out: Any, numbers: Mapping[Sym, int], shapes: Sequence[Shape] = ()) -> bool:
    """Whether the specs match the tensors `out` for these values of the symbols; for operands of these `shapes`, or
    results, with sizes that no call has, only the shape."""
    if isinstance(found, (list, tuple)):
        return len(found) == len(out) and all(_fits(f, o, numbers, shapes) for f, o in zip(found, out))
    if not isinstance(found, TensorSpec):
        return True
    spec = substitute(found, numbers)
    if shapes and not _are_of_calls((*shapes, found.shape), lambda size: evaluate(size, numbers)):
        return spec.shape == tuple(out.size())
    return (spec.shape, spec.stride, spec.offset) == (out.size(), out.stride(), out.storage_offset())


def _are_of_calls(shapes: Iterable[Shape], number_of: Callable[[Size], int]) -> bool:
    """Whether each symbolic size is at least 2, as in a call: strides of a dimension of 1 are arbitrary, and layouts
    that differ for others may be equal there."""
    return all(number_of(n) > 1 for shape in shapes for n in shape if isinstance(n, Expr))


def _has_sizes(found: Any, out: Any, number_of: Callable[[Size], int]) -> bool:
    """Whether the specs have the sizes of the tensors `out` under an assignment."""
    if isinstance(found, (list, tuple)):
        return len(found) == len(out) and all(_has_sizes(f, o, number_of) for f, o in zip(found, out))
    if not isinstance(found, TensorSpec):
        return True
    return isinstance(out, torch.Tensor) and out.size() == tuple(map(number_of, found.shape))


class _Asked:
    """A call under several assignments: the state that they share."""

    def __init__(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        device: torch.device,
        spec_of: Callable[[Any], TensorSpec | None],
    ) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.device, self.spec_of = device, spec_of
        leaves = list(_leaves((args, kwargs)))
        self.syms = symbols_in(leaves, spec_of)
        self.specs = [s for leaf in leaves if (s := spec_of(leaf)) is not None]
        self.sizes = [leaf for leaf in leaves if isinstance(leaf, Expr)]
        self._why = None
        if self.syms and not _are_consistent(func, args, self.specs):
            self._why = NeedsFixedSize(f"{func} is tried, for which sizes must be consistent", self.syms)
        # On one element of each tensor they are the same call, unless a number differs.
        self._accepted = None if self.sizes else Accepted()

    def answer(self, k: int) -> tuple[Any, dict[int, tuple[torch.Tensor, Any]]]:
        """(results under assignment k; by id, the meta arguments with the tensors that they represent)."""
        return self.answer_for(lambda size: at(size, k))

    def answer_for(self, number_of: Callable[[Size], int]) -> tuple[Any, dict[int, tuple[torch.Tensor, Any]]]:
        """The answer for other numbers."""
        try:
            positional, named, back = self._arguments(number_of)
            why, seen = self._why, None
            if self._is_large_on_gpu(positional, named):
                seen = self._seen
                why = NeedsFixedSize(f"{self.func} is tried on a GPU, of large tensors", self.syms)
            if _is_run(self.func, positional, named) and (
                _elements_with_results(self.func, positional, named) > _MOST_RUN
            ):
                raise NeedsFixedSize(
                    f"{self.func} is run to know its results, of tensors this large", self.syms
                )
            device = self.device if seen is None else CPU
            with not_tried(why if seen is None else self._why):
                out = on_metas(self.func, positional, named, device, self._accepted)
            out = out if seen is None else seen.of(out)
            self._check_not_resized(out, number_of)
        except NotImplementedError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise NeedsFixedSize(f"{self.func} raises for some sizes: {error}", self.syms) from error
        return out, back

    def _check_not_resized(self, out: Any, number_of: Callable[[Size], int]) -> None:
        """Raise NeedsFixedSize if the call resizes an argument: `out=` of another size."""
        declared = effects(self.func).results
        if not any(result.kind == "same" for result in declared):
            return
        for result, item in zip(declared, out if isinstance(out, tuple) else (out,)):
            if result.kind != "same" or not isinstance(item, torch.Tensor):
                continue
            spec = self.spec_of(effects(self.func).argument(result.arg, tuple(self.args), self.kwargs))
            if spec is not None and item.shape != with_sizes(spec, number_of).shape:
                raise NeedsFixedSize(f"{self.func} resizes what it writes for some sizes", self.syms)

    def _arguments(
        self, number_of: Callable[[Size], int]
    ) -> tuple[list[Any], dict[str, Any], dict[int, tuple[torch.Tensor, Any]]]:
        """The arguments with numbers for sizes, and the mapping in `answer`."""
        back: dict[int, tuple[torch.Tensor, Any]] = {}

        def number(value: Any) -> Any:
            spec = self.spec_of(value)
            if spec is not None:
                meta = empty_like_spec(with_sizes(spec, number_of), _META)
                back[id(meta)] = meta, value
                return meta
            if isinstance(value, Expr):
                return number_of(value)
            if isinstance(value, (list, tuple)):
                return [number(v) for v in value]
            return value

        return [number(a) for a in self.args], {name: number(v) for name, v in self.kwargs.items()}, back

    def _is_large_on_gpu(self, positional: list[Any], named: dict[str, Any]) -> bool:
        """Whether a GPU may lack memory for these tensors, whose sizes no call has."""
        if self.device.type == "cpu" or not self.syms:
            return False
        return elements((positional, named)) > _MOST_TRIED

    @cached_property
    def _seen(self) -> Seen | None:
        """The difference between GPU and CPU layouts of the results, from the sizes of the current call."""
        sizes = [n for spec in self.specs for n in spec.shape]
        fixed = {n for n in sizes if isinstance(n, int)} - {now(n) for n in sizes if isinstance(n, Expr)}
        positional, named, _ = self._arguments(now)
        with not_tried(None):
            return seen_on_gpu(self.func, positional, named, self.device, fixed)


def _elements_with_results(func: OpOverload, positional: list[Any], named: dict[str, Any]) -> int:
    """The number of elements of arguments and results, by torch's shape function, which is right about sizes."""
    return elements((positional, named, of_cpp(func, positional, named)))


def _shapes(layouts: Layouts | None) -> Iterator[Shape]:
    for layout in [layouts] if isinstance(layouts, tuple) else layouts or ():
        if layout is not None:
            yield layout[0]


def _of_a_call(shapes: Sequence[Shape]) -> int:
    """An assignment with sizes as in a call; the first if there is none."""
    return next((k for k in range(COUNT) if _are_of_calls(shapes, lambda n, k=k: at(n, k))), 0)  # type: ignore[misc]


def _by_rule(asked: _Asked, layouts: Layouts, out: Any, k: int) -> Any:
    """The result specs with these layouts; None if they do not match torch's (`out`) under assignment k."""
    if isinstance(layouts, tuple):
        return _laid_out(asked, layouts, out, k)
    if not isinstance(out, (list, tuple)) or len(out) != len(layouts):
        return None
    made = [None if o is None else _laid_out(asked, layout, o, k) for layout, o in zip(layouts, out)]
    if any(spec is None and o is not None for spec, o in zip(made, out)):
        return None
    return made if isinstance(out, list) else tuple(made)


def _laid_out(asked: _Asked, layout: Layout | None, out: Any, k: int) -> TensorSpec | None:
    if not isinstance(out, torch.Tensor) or out.is_conj() or out.is_neg():
        return None
    shape, stride, offset = layout or (tuple(out.size()), out.stride(), 0)
    if stride is None:
        return None
    said = out.size(), out.stride(), out.storage_offset()
    if (tuple(at(n, k) for n in shape), tuple(at(n, k) for n in stride), at(offset, k)) != said:
        return None
    return make_spec(shape, stride, out.dtype, asked.device, offset)


def _are_consistent(func: OpOverload, args: Sequence[Any], specs: Sequence[TensorSpec]) -> bool:
    """Whether the operator can run on tensors with sample sizes: a single operand is consistent with itself;
    normalized images are with tensors of their channels or groups, if those are concrete, and rows with tensors of
    their columns; operators that require equal sizes check them."""
    if len(specs) < 2:
        return True
    if "layer_norm" in func._schema.name:
        return _are_rows(args, specs)
    if "_attention" in func._schema.name:
        return _is_attention(dict(zip(effects(func).names, args)), specs)
    if "_norm" not in func._schema.name:
        return _is_safe(func, args)
    first, *others = specs
    if len(first.shape) < 2 or not isinstance(first.shape[1], int):
        return False
    return all(
        s.shape == first.shape or not syms_of(s) or _of_groups(s.shape, first.shape[0]) for s in others
    )


def _of_groups(shape: Shape, images: Size) -> bool:
    """Whether it has the shape of per-image statistics of channel groups."""
    return len(shape) == 2 and shape[0] == images and isinstance(shape[1], int)


def _is_attention(arguments: Mapping[str, Any], specs: Sequence[TensorSpec]) -> bool:
    """Whether queries, keys and values have one batch, keys and values one length, heads have fixed sizes, and all
    other operands belong to them."""
    shapes = [getattr(arguments.get(name), "spec", None) for name in ("query", "key", "value")]
    if not all(isinstance(s, TensorSpec) and len(s.shape) == 4 for s in shapes):
        return False
    q, k, v = (s.shape for s in shapes)  # type: ignore[union-attr]
    if q[0] != k[0] or k[:3] != v[:3] or not all(isinstance(n, int) for n in (q[1], k[1], q[3], k[3], v[3])):
        return False
    scores, rows = (q[0], q[1], q[2], k[2]), (*q[:3], v[3])
    for s in specs:
        of_rows = len(s.shape) == 3 and s.shape[:2] == q[:2] and free_syms(s.shape[2]) <= free_syms(q[2])
        is_bias = len(s.shape) == 4 and all(n in (1, whole) for n, whole in zip(s.shape, scores))
        if syms_of(s) and s.shape not in (q, k, v, rows) and not of_rows and not is_bias:
            return False
    return True


def _are_rows(args: Sequence[Any], specs: Sequence[TensorSpec]) -> bool:
    """Whether the operands are rows of a fixed size, tensors of their columns, and tensors of the same rows."""
    columns = next((a for a in args if isinstance(a, (list, tuple))), ())
    shape, count = specs[0].shape, len(columns)
    if not count or not all(isinstance(n, int) for n in (*columns, *shape[-count:])):
        return False
    rows = shape[:-count]
    fitting = (shape, (*rows, *(1,) * count))
    return all(s.shape in fitting or not syms_of(s) for s in specs)


class _Unclear(NeedsFixedSize):
    """No expression fits the answers, or several do."""


class _Fit:
    """Result sizes. `shape`: that of a window's images, if known. `operands`: their shapes. `meta_arguments`: for each
    assignment the meta arguments that were returned, with the tensors that they represent."""

    def __init__(
        self,
        name: str,
        candidates: Candidates,
        shape: Shape | None,
        operands: Sequence[Shape],
        syms: frozenset[Sym],
        device: torch.device,
        meta_arguments: Sequence[dict[int, tuple[torch.Tensor, Any]]],
    ) -> None:
        self.name = name
        self.candidates = candidates
        self.known = shape
        self.operands = operands
        self.syms = syms
        self.device = device
        self.meta_arguments = meta_arguments
        self.combined = not any(part in name for part in _DIVIDING)

    def tree(self, answers: Sequence[Any]) -> Any:
        first = answers[0]
        if any(type(a) is not type(first) for a in answers):
            raise self.refuse("kinds of results")
        if isinstance(first, torch.Tensor):
            return self.tensor(answers)
        if isinstance(first, (list, tuple)):
            if any(len(a) != len(first) for a in answers):
                raise self.refuse("how many results there are")
            made = [self.tree(items) for items in zip(*answers)]
            return made if isinstance(first, list) else tuple(made)
        if any(a != first for a in answers):
            found = self.candidates.fit(answers, False) if all(type(a) is int for a in answers) else None
            if found is None:
                raise self.refuse("a number")
            return found
        return first

    def tensor(self, metas: Sequence[torch.Tensor]) -> Any:
        back = [known.get(id(meta)) for known, meta in zip(self.meta_arguments, metas)]
        if any(b is not None for b in back):
            if any(b is None or b[1] is not back[0][1] for b in back):  # type: ignore[index]
                raise self.refuse("whether it gives its argument back")
            return back[0][1]  # type: ignore[index]
        if (
            len({(m.dtype, m.dim(), m.is_conj(), m.is_neg()) for m in metas}) != 1
            or metas[0].is_conj()
            or metas[0].is_neg()
        ):
            raise self.refuse("the dtype")
        shape = self.shape([tuple(m.size()) for m in metas])
        strides = list(zip(*(m.stride() for m in metas)))
        offset = tuple(int(m.storage_offset()) for m in metas)
        return make_spec(shape, self.strides(shape, strides), metas[0].dtype, self.device, self.size(offset))

    def shape(self, values: Sequence[tuple[int, ...]]) -> Shape:
        if self.known is not None and list(values) == [
            tuple(at(n, k) for n in self.known) for k in range(COUNT)
        ]:
            return self.known
        return tuple(map(self.size, zip(*values)))

    def strides(self, shape: tuple[Size, ...], values: Sequence[tuple[int, ...]]) -> tuple[Size, ...]:
        telling = [k for k in range(COUNT) if _are_of_calls((*self.operands, shape), lambda n, k=k: at(n, k))]  # type: ignore[misc]
        telling = telling or [*range(COUNT)]
        order = sorted(range(len(shape)), key=lambda d: (-values[d][telling[-1]], d))  # outermost first
        permuted = dict(zip(order, contiguous_stride([shape[d] for d in order])))
        denses = contiguous_stride(shape), tuple(permuted[d] for d in range(len(shape)))
        for dense in denses:
            if all(at(n, k) == v[k] for n, v in zip(dense, values) for k in telling):
                return dense
        of_shape = Candidates(products(shape))
        found: list[Size] = []
        for d, stride in enumerate(values):
            made = of_shape.fit(stride, combined=False)
            if made is None and shape[d] == 1:  # it says nothing of where elements are
                made = self.candidates.fit(stride, self.combined) or denses[0][d]
            found.append(self.size(stride) if made is None else made)
        return tuple(found)

    def size(self, values: Sequence[int]) -> Size:
        found = self.candidates.fit(values, self.combined)
        if found is None:
            raise self.refuse(f"a size of {list(values)}")
        return found

    def refuse(self, what: str) -> NeedsFixedSize:
        return _Unclear(f"{self.name}: {what} depends on sizes in a way that is not known", self.syms)
