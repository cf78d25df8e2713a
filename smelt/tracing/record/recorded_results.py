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
    parts: list[Any]  # Part | list[Part]
    spec: Any  # of the node
    required: Sequence[tuple[Size, int, int]] = ()  # sizes, and between which numbers each must be


def leaf_spec(part: ResultLeaf | list[ResultLeaf]) -> Any:
    """The spec of a result, or those of a list of them."""
    return tuple(p.spec for p in part) if isinstance(part, list) else part.spec


def fresh(inputs: Inputs, spec: TensorSpec) -> FakeTensor:
    """A fake of new memory."""

    def made() -> torch.Tensor:
        shape, stride, _ = _layout(inputs, spec)
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=_META)

    if not syms_of(spec):
        return wrap(made(), spec.device, spec)
    like = _like(inputs, spec, (torch.is_inference_mode_enabled(),), made)
    return wrap(_native.fresh_like(like), spec.device, spec)


def number(inputs: Inputs, size: Size) -> Any:
    """It, as the program sees it."""
    symbols = inputs.numbers.symbols
    return size if isinstance(size, int) or symbols is None else symbols.number(size)


def view(inputs: Inputs, source: FakeTensor, spec: TensorSpec) -> FakeTensor:
    """A fake that looks at the memory of `source`."""

    def made() -> torch.Tensor:
        return _seen_as(source.elem, spec.dtype).as_strided(*_layout(inputs, spec))

    if not syms_of(spec):
        return wrap(made(), spec.device, spec)
    elem = source.elem
    like = _like(inputs, spec, (elem.is_inference(), elem.is_conj(), elem.is_neg()), made)
    return wrap(_native.view_like(like, elem), spec.device, spec)


CONJ_NEG_VIEWS = {"conjugate": CONJUGATE, "negative": NEGATIVE}  # by the kind of a part


def signed(kind: str, source: FakeTensor) -> FakeTensor:
    """A fake that looks at the memory of `source` with other signs."""
    return wrap(CONJ_NEG_VIEWS[kind](source.elem), source.device, source.spec)


def _seen_as(elem: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of complex numbers as one of real numbers, or the other way round."""
    if elem.dtype == dtype:
        return elem
    return torch.view_as_real(elem) if elem.is_complex() else torch.view_as_complex(elem)


def _like(
    inputs: Inputs, spec: TensorSpec, bits: tuple[bool, ...], make: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """A meta tensor of these symbolic sizes, in whatever memory, which `make` makes the first time. `bits`: what else tells
    such tensors apart."""
    symbols = inputs.numbers.symbols
    assert symbols is not None
    found = symbols.metas.get((id(spec), bits))
    if found is None:
        found = symbols.metas[id(spec), bits] = spec, make()
    return found[1]


def _layout(inputs: Inputs, spec: TensorSpec) -> tuple[Any, Any, Any]:
    """Shape, stride and offset as numbers for C++. A symbolic size is required to be neither 0 nor 1: of those, operators
    make exceptions."""
    if not syms_of(spec):
        return spec.shape, spec.stride, spec.offset
    symbols = inputs.numbers.symbols
    assert symbols is not None
    for size in spec.shape:
        if isinstance(size, Expr) and size.lo != size.hi:
            symbols.at_least(size, 2)
    return symbols.layout(spec)


def require_sizes(inputs: Inputs, required: Sequence[tuple[Size, int, int]]) -> None:
    """Requires that each size is between these numbers."""
    symbols = inputs.numbers.symbols
    assert symbols is not None or not required
    for size, least, most in required:
        symbols.at_least(size, least)  # type: ignore[union-attr]
        symbols.at_most(size, most)  # type: ignore[union-attr]
