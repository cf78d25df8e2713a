"""The recorded form of an operator's results, cached per call signature, and its replay as fakes, also with symbolic
sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt import _native
from smelt.graph.conj_neg_bits import CONJUGATE, NEGATIVE
from smelt.graph.ir import TensorSpec
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import Expr, Size
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap
from smelt.tracing.record.trace_inputs import Inputs

_META = torch.device("meta")


@dataclass(slots=True)
class ResultLeaf:
    """One tensor of a result: fresh memory, a view with `spec`, a conjugate or negative view (`CONJ_NEG_VIEWS`), or
    the argument named `arg` itself. Or a number: `size`."""

    kind: str  # fresh, view, conjugate, negative, same, number, none
    spec: TensorSpec | None = None
    arg: str = ""
    index: int = -1  # which element of a list argument
    size: Size = 0


@dataclass(slots=True)
class RecordedResult:
    """The results of one call. `container` is None for a single tensor, else tuple or list."""

    container: type | None
    leaves: list[Any]  # ResultLeaf | list[ResultLeaf]
    spec: Any  # of the node
    size_bounds: Sequence[tuple[Size, int, int]] = ()  # (size, least, most), required of later calls


def leaf_spec(leaf: ResultLeaf | list[ResultLeaf]) -> Any:
    """The spec of a result, or the specs of a list of results."""
    return tuple(item.spec for item in leaf) if isinstance(leaf, list) else leaf.spec


def fresh_fake(inputs: Inputs, spec: TensorSpec) -> FakeTensor:
    """A fake with memory of its own."""

    def create() -> torch.Tensor:
        shape, stride, _ = _layout(inputs, spec)
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=_META)

    if not syms_of(spec):
        return wrap(create(), spec.device, spec)
    like = _cached_meta(inputs, spec, (torch.is_inference_mode_enabled(),), create)
    return wrap(_native.fresh_like(like), spec.device, spec)


def number_of_size(inputs: Inputs, size: Size) -> Any:
    """A size as the program sees it: an int or a symbolic `Int`."""
    symbols = inputs.numbers.symbols
    return size if isinstance(size, int) or symbols is None else symbols.number(size)


def view_fake(inputs: Inputs, source: FakeTensor, spec: TensorSpec) -> FakeTensor:
    """A fake that is a view of `source`."""

    def create() -> torch.Tensor:
        return _reinterpreted(source.elem, spec.dtype).as_strided(*_layout(inputs, spec))

    if not syms_of(spec):
        return wrap(create(), spec.device, spec)
    elem = source.elem
    like = _cached_meta(inputs, spec, (elem.is_inference(), elem.is_conj(), elem.is_neg()), create)
    return wrap(_native.view_like(like, elem), spec.device, spec)


CONJ_NEG_VIEWS = {"conjugate": CONJUGATE, "negative": NEGATIVE}  # by `ResultLeaf.kind`


def conj_neg_fake(kind: str, source: FakeTensor) -> FakeTensor:
    """A fake that is a view of `source` with its conjugate or negative bit flipped."""
    return wrap(CONJ_NEG_VIEWS[kind](source.elem), source.device, source.spec)


def _reinterpreted(elem: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Complex memory viewed as real, or real memory viewed as complex."""
    if elem.dtype == dtype:
        return elem
    return torch.view_as_real(elem) if elem.is_complex() else torch.view_as_complex(elem)


def _cached_meta(
    inputs: Inputs, spec: TensorSpec, bits: tuple[bool, ...], create: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """A meta tensor with these symbolic sizes in any memory, cached by its spec and `bits` (inference mode, conjugate,
    negative)."""
    symbols = inputs.numbers.symbols
    assert symbols is not None
    entry = symbols.metas.get((id(spec), bits))
    if entry is None:
        entry = symbols.metas[id(spec), bits] = spec, create()
    return entry[1]


def _layout(inputs: Inputs, spec: TensorSpec) -> tuple[Any, Any, Any]:
    """Shape, stride and offset as numbers for C++. Requires each symbolic size to be at least 2: operators treat 0 and
    1 as special cases."""
    if not syms_of(spec):
        return spec.shape, spec.stride, spec.offset
    symbols = inputs.numbers.symbols
    assert symbols is not None
    for size in spec.shape:
        if isinstance(size, Expr) and size.lo != size.hi:
            symbols.at_least(size, 2)
    return symbols.layout(spec)


def require_bounds(inputs: Inputs, size_bounds: Sequence[tuple[Size, int, int]]) -> None:
    """Require each size to be in its range: [least, most]."""
    symbols = inputs.numbers.symbols
    assert symbols is not None or not size_bounds
    for size, least, most in size_bounds:
        symbols.at_least(size, least)  # type: ignore[union-attr]
        symbols.at_most(size, most)  # type: ignore[union-attr]
