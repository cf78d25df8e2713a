"""Operands of a traced kernel: scalars and blocks whose operators create operations of Triton's IR.

Type conversions follow Triton's `language.semantic`; operations that no printed kernel needs raise TypeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smelt.codegen.triton.scalar_types import (
    BF16,
    FP16,
    FP32,
    INT1,
    INTEGER,
    POINTER,
    Kind,
    check,
    common,
    of_number,
)

Shape = tuple[int, ...]
Types = dict[tuple[Kind, Shape], Any]

# Operators whose name in Triton's builder differs from their own.
_SCALAR_TYPES = dict(fp16="half", fp32="float", fp64="double")


class Form:
    """One kernel under construction: Triton's builder, and the types of its context, created once."""

    def __init__(self, builder: Any, types: Types) -> None:
        self.builder, self.types = builder, types

    def type(self, kind: Kind, shape: Shape = ()) -> Any:
        """Triton's type of blocks of this shape; of scalars for ()."""
        result = self.types.get((kind, shape))
        if result is None:
            result = self.types[kind, shape] = self._type(kind, shape)
        return result

    def _type(self, kind: Kind, shape: Shape) -> Any:
        if shape:
            return self.builder.get_block_ty(self.type(kind), shape)
        if kind.to is not None:
            return self.builder.get_ptr_ty(self.type(kind.to), 1)
        name = kind.name.removeprefix("u")
        return getattr(self.builder, f"get_{_SCALAR_TYPES.get(name, name)}_ty")()

    def constant(self, number: float, kind: Kind) -> Operand:
        """A scalar."""
        builder = self.builder
        if number == 0:
            return Operand(self, builder.get_null_value(self.type(kind)), kind, ())
        return Operand(self, getattr(builder, f"get_{kind.name}")(number), kind, ())

    def operand(self, x: Operand | float) -> Operand:
        """The operand of a value; a number has its natural type."""
        return x if type(x) is Operand else self.constant(x, of_number(x))  # type: ignore[arg-type]


def _operator(
    float_op: str | None, signed_op: str | None, unsigned_op: str | None = None, **how: bool
) -> Any:
    """A method of operands, and its reflected form, that create these operations."""

    def created(form: Form, a: Operand, b: Operand) -> Operand:
        kind = a.kind
        name = float_op if kind.is_float else signed_op if kind.signed else unsigned_op or signed_op
        if name is None:
            raise TypeError(f"an operation of {kind.name}")
        return Operand(form, getattr(form.builder, name)(a.handle, b.handle), kind, a.shape)

    def method(self: Operand, other: Operand | float) -> Operand:
        return created(self.form, *promote_operands(self, other, **how))

    def reflected(self: Operand, other: Operand | float) -> Operand:
        b, a = promote_operands(self, other, **how)
        return created(self.form, a, b)

    return method, reflected


def _comparison(name: str) -> Callable[[Operand, Operand | float], Operand]:
    """A comparison. A number becomes a scalar first. Only for NaN does ordered or unordered differ."""
    equality = name in ("EQ", "NE")
    of_floats = f"create_fcmp{'UNE' if name == 'NE' else 'O' + name}"
    signed, unsigned = (f"create_icmp{'' if equality else sign}{name}" for sign in "SU")

    def method(self: Operand, other: Operand | float) -> Operand:
        a, b = promote_operands(self, self.form.operand(other))
        created = of_floats if a.kind.is_float else signed if a.kind.signed else unsigned
        return Operand(self.form, getattr(self.form.builder, created)(a.handle, b.handle), INT1, a.shape)

    return method


class Operand:
    """A block, or a scalar for the shape (). `handle` is Triton's value."""

    __slots__ = ("form", "handle", "kind", "shape")

    def __init__(self, form: Form, handle: Any, kind: Kind, shape: Shape) -> None:
        self.form, self.handle, self.kind, self.shape = form, handle, kind, shape

    __mul__, __rmul__ = _operator("create_fmul", "create_mul")
    __and__, __rand__ = _operator(None, "create_and")
    __or__, __ror__ = _operator(None, "create_or")
    __xor__, __rxor__ = _operator(None, "create_xor")
    __truediv__, __rtruediv__ = _operator("create_fdiv", None, divides=True)
    __floordiv__, __rfloordiv__ = _operator(None, "create_sdiv", "create_udiv", divides=True)
    __mod__, __rmod__ = _operator("create_frem", "create_srem", "create_urem", divides=True)
    _add, _radd = _operator("create_fadd", "create_add")
    __sub__, __rsub__ = _operator("create_fsub", "create_sub")
    __lshift__ = _operator(None, "create_shl")[0]
    _ashr, _lshr = (_operator(None, f"create_{name}")[0] for name in ("ashr", "lshr"))

    __lt__, __le__, __gt__, __ge__ = (_comparison(name) for name in ("LT", "LE", "GT", "GE"))
    __eq__, __ne__ = _comparison("EQ"), _comparison("NE")  # type: ignore[assignment]

    def __add__(self, other: Operand | float) -> Operand:
        return self._moved(other) if self.kind.to is not None else self._add(other)

    def __radd__(self, other: float) -> Operand:
        if self.kind.to is not None:
            raise TypeError("a number and a pointer")
        return self._radd(other)

    def _moved(self, other: Operand | float) -> Operand:
        """An advanced pointer."""
        form = self.form
        pointer, offset = broadcast(self, form.operand(other))
        if not offset.kind.is_integer or (not offset.kind.signed and offset.kind.bits < 64):
            raise TypeError(f"a pointer and {offset.kind.name}")
        handle = form.builder.create_addptr(pointer.handle, offset.handle)
        return Operand(form, handle, self.kind, pointer.shape)

    def __rshift__(self, other: Operand | float) -> Operand:
        return self._ashr(other) if self.kind.signed else self._lshr(other)

    def __neg__(self) -> Operand:
        zero = self.form.builder.get_null_value(self.form.type(self.kind))
        return Operand(self.form, zero, self.kind, ()) - self

    def __invert__(self) -> Operand:
        if not self.kind.is_integer:
            raise TypeError(f"~ of {self.kind.name}")
        ones = self.form.builder.get_all_ones_value(self.form.type(self.kind))
        return self ^ Operand(self.form, ones, self.kind, ())

    def __getitem__(self, items: tuple[slice | None, ...]) -> Operand:
        """With axes of one point where `positions` has None; all of the others."""
        result = self
        for axis, axis_index in enumerate(items):
            if axis_index is None:
                shape = (*result.shape[:axis], 1, *result.shape[axis:])
                if not result.shape:
                    result = splat(result, shape)
                else:
                    handle = self.form.builder.create_expand_dims(result.handle, axis)
                    result = Operand(self.form, handle, self.kind, shape)
            elif axis_index != slice(None):
                raise TypeError(f"a part of a block: {axis_index}")
        return result

    def __bool__(self) -> bool:
        raise TypeError("the code depends on a value")

    def to(self, kind: Kind, bitcast: bool = False) -> Operand:
        """The operand converted, or with `bitcast` its bits reinterpreted."""
        if not bitcast:
            return cast(self, kind)
        if kind is self.kind:
            return self
        if kind.bits != self.kind.bits or POINTER in (kind.rank, self.kind.rank):
            raise TypeError(f"bits of {self.kind.name} as {kind.name}")
        return _converted(self, kind, "create_bitcast")


# ---- conversions


def promote_operands(a: Operand, b: Operand | float, divides: bool = False) -> tuple[Operand, Operand]:
    """Both operands with a common type and shape, for an operation."""
    form = a.form
    if type(b) is Operand:
        if a.kind is not b.kind or divides or a.kind.to is not None:
            kind = common(a.kind, b.kind, False, divides)
            a, b = cast(a, kind), cast(b, kind)
        return (a, b) if a.shape == b.shape else broadcast(a, b)
    assert not isinstance(b, Operand)
    kind = common(a.kind, of_number(b), True, divides)
    check(b, kind)
    return broadcast(cast(a, kind), form.constant(b, kind))


def broadcast(a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Both operands with a common shape."""
    if a.shape == b.shape:
        return a, b
    if not b.shape:
        return a, splat(b, a.shape)
    if not a.shape:
        return splat(a, b.shape), b
    shape = tuple(max(m, n) for m, n in zip(a.shape, b.shape, strict=True))
    return widened(a, shape), widened(b, shape)


def splat(x: Operand, shape: Shape) -> Operand:
    """A block of a scalar; the scalar itself for the shape ()."""
    if not shape:
        return x
    form = x.form
    return Operand(form, form.builder.create_splat(form.type(x.kind, shape), x.handle), x.kind, shape)


def widened(x: Operand, shape: Shape) -> Operand:
    """The operand with axes of one point extended to `shape`."""
    if x.shape == shape:
        return x
    if not x.shape:
        return splat(x, shape)
    if any(m not in (1, n) for m, n in zip(x.shape, shape, strict=True)):
        raise TypeError(f"a block of {x.shape} as one of {shape}")
    return Operand(x.form, x.form.builder.create_broadcast(x.handle, shape), x.kind, shape)


def cast(x: Operand, kind: Kind) -> Operand:
    """The operand converted as Triton converts: floats to nearest, ties to even."""
    source_kind = x.kind
    if source_kind is kind:
        return x
    if source_kind in (FP16, BF16) and kind is not FP32:
        return cast(cast(x, FP32), kind)
    if kind is INT1 and source_kind.rank != POINTER:
        return x != Operand(x.form, x.form.builder.get_null_value(x.form.type(source_kind)), source_kind, ())
    name = _conversion(source_kind, kind)
    if name == "create_int_cast":
        handle = x.form.builder.create_int_cast(x.handle, x.form.type(kind, x.shape), source_kind.signed)
        return Operand(x.form, handle, kind, x.shape)
    return _converted(x, kind, name)


def _converted(x: Operand, kind: Kind, name: str) -> Operand:
    handle = getattr(x.form.builder, name)(x.handle, x.form.type(kind, x.shape))
    return Operand(x.form, handle, kind, x.shape)


def _conversion(source_kind: Kind, kind: Kind) -> str:
    if source_kind.is_float and kind.is_float:
        return "create_fp_trunc" if source_kind.bits > kind.bits else "create_fp_ext"
    if source_kind.is_integer and kind.is_integer:
        return "create_int_cast"
    if source_kind.is_float and kind.rank == INTEGER:
        return "create_fp_to_si" if kind.signed else "create_fp_to_ui"
    if source_kind.is_integer and kind.is_float:
        return "create_si_to_fp" if source_kind.signed else "create_ui_to_fp"
    if source_kind.is_integer and kind.rank == POINTER:
        return "create_int_to_ptr"
    if source_kind.rank == kind.rank == POINTER:
        return "create_bitcast"
    raise TypeError(f"{source_kind.name} as {kind.name}")
