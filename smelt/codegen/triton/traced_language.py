"""The functions of `triton.language` that printed kernels call, for operands (`traced_operands.py`) of one kernel in
the making."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from smelt.codegen.triton import scalar_types
from smelt.codegen.triton.scalar_types import BF16, FP32, INT1, INT8, INT32, Kind, pointer
from smelt.codegen.triton.traced_operands import (
    Form,
    Operand,
    Shape,
    broadcast,
    cast,
    promote_operands,
    splat,
    widened,
)

Combine = Callable[..., Any]


class Language:
    """What a kernel's text calls `tl`. `ir` is Triton's module of its form; `asserts`: whether assertions are compiled."""

    int1, int8, int16, int32, int64 = INT1, INT8, scalar_types.INT16, INT32, scalar_types.INT64
    uint8, uint16 = scalar_types.UINT8, scalar_types.UINT16
    uint32, uint64 = scalar_types.UINT32, scalar_types.UINT64
    float16, bfloat16, float32, float64 = scalar_types.FP16, BF16, FP32, scalar_types.FP64
    PropagateNan = SimpleNamespace(ALL=True, NONE=False)
    static_range = range
    pointer_type = staticmethod(pointer)

    def __init__(self, form: Form, ir: Any, asserts: bool) -> None:
        self._form, self._ir, self._asserts = form, ir, asserts
        self._loads = ir.CACHE_MODIFIER.NONE, ir.EVICTION_POLICY.NORMAL

    @staticmethod
    def constexpr(value: object) -> object:
        """A constant of the module."""
        return value

    # ---- positions

    def program_id(self, axis: int) -> Operand:
        """The number of the program."""
        return Operand(self._form, self._form.builder.create_get_program_id(axis), INT32, ())

    def arange(self, start: int, end: int) -> Operand:
        """The block of the numbers from `start` on, before `end`; a power of two of them."""
        shape = (end - start,)
        handle = self._form.builder.create_make_range(self._form.type(INT32, shape), start, end)
        return Operand(self._form, handle, INT32, shape)

    def multiple_of(self, x: Operand, number: int) -> Operand:
        """`x`, which the compiler may take for a multiple of `number`."""
        x.handle.set_attr("tt.divisibility", self._ir.make_attr([number], x.handle.get_context()))
        return x

    def full(self, shape: Sequence[int], number: float, kind: Kind) -> Operand:
        """A block of one number; a scalar for no axes."""
        return splat(self._form.constant(number, kind), tuple(shape))

    # ---- memory

    def load(self, at: Operand, mask: Operand | None = None, other: Operand | float | None = None) -> Operand:
        """What stands at pointers; `other` where `mask` does not hold. Booleans are bytes."""
        builder = self._form.builder
        passed = None if other is None else self._form.operand(other)
        at, mask, passed = self._of_pointers(at, mask, passed)
        kind = stored = at.kind.to
        assert kind is not None and stored is not None
        if kind is INT1:
            kind, at = INT8, cast(at, pointer(INT8))
        if passed is not None:
            passed = cast(passed, kind)
        if mask is None:
            handle = builder.create_load(at.handle, *self._loads, False)
        else:
            filled = None if passed is None else passed.handle
            handle = builder.create_masked_load(at.handle, mask.handle, filled, *self._loads, False)
        found = Operand(self._form, handle, kind, at.shape)
        return cast(found, stored)

    def store(self, at: Operand, value: Operand | float, mask: Operand | None = None) -> None:
        """Writes where `mask` holds."""
        builder, shape = self._form.builder, at.shape
        at, passed, mask = self._of_pointers(at, self._form.operand(value), mask)
        kind = at.kind.to
        assert kind is not None and passed is not None
        if at.shape != shape:
            raise TypeError(f"a block of {at.shape} at pointers of {shape}")
        if kind is INT1:
            kind, at = INT8, cast(at, pointer(INT8))
        handle = cast(passed, kind).handle
        if mask is None:
            builder.create_store(at.handle, handle, *self._loads)
        elif mask.kind is INT1:
            builder.create_masked_store(at.handle, handle, mask.handle, *self._loads)
        else:
            raise TypeError(f"a mask of {mask.kind.name}")

    def _of_pointers(
        self, at: Operand, a: Operand | None, b: Operand | None
    ) -> tuple[Operand, Operand | None, Operand | None]:
        """All in one shape; scalars beside a pointer that is one."""
        if at.kind.to is None:
            raise TypeError(f"memory at {at.kind.name}")
        if not at.shape and any(x is not None and x.shape for x in (a, b)):
            raise TypeError("a block at one pointer")
        if a is not None:
            at, a = broadcast(at, a)
        if b is not None:
            at, b = broadcast(at, b)
        if a is not None:
            at, a = broadcast(at, a)
        return at, a, b

    def debug_barrier(self) -> None:
        """All threads of the program wait for each other."""
        self._form.builder.create_barrier()

    def device_assert(self, condition: Operand, message: str) -> None:
        """Stops the device where the condition does not hold."""
        if self._asserts:
            self._form.builder.create_assert(condition.handle, message)

    # ---- values

    def where(self, condition: Operand, a: Operand | float, b: Operand | float) -> Operand:
        """`a` where the condition holds, else `b`."""
        condition = cast(condition, INT1)
        if type(a) is Operand:
            a, b = promote_operands(a, b)
        elif type(b) is Operand:
            b, a = promote_operands(b, a)
        else:
            raise TypeError("a choice between two numbers")
        assert isinstance(a, Operand) and isinstance(b, Operand)
        if condition.shape:
            condition, a = broadcast(condition, a)
            a, b = broadcast(a, b)
        elif a.shape:
            condition, _ = broadcast(condition, a)
        handle = self._form.builder.create_select(condition.handle, a.handle, b.handle)
        return Operand(self._form, handle, a.kind, a.shape)

    def maximum(self, a: Operand | float, b: Operand | float, propagate_nan: bool = False) -> Operand:
        """The larger; NaN with either or with both."""
        return self._extreme("max", a, b, propagate_nan)

    def minimum(self, a: Operand | float, b: Operand | float, propagate_nan: bool = False) -> Operand:
        """The smaller; NaN with either or with both."""
        return self._extreme("min", a, b, propagate_nan)

    def _extreme(self, name: str, a: Operand | float, b: Operand | float, propagate_nan: bool) -> Operand:
        operands = (self._form.operand(v) for v in (a, b))
        x, y = (cast(v, FP32) if v.kind is BF16 else v for v in operands)
        x, y = promote_operands(x, y)
        of_floats = "imumf" if propagate_nan else "numf"
        ending = of_floats if x.kind.is_float else "si" if x.kind.signed else "ui"
        return self._created(f"create_{name}{ending}", x, y)

    def abs(self, x: Operand) -> Operand:
        """|x|."""
        if x.kind.rank == scalar_types.POINTER:
            raise TypeError("the size of a pointer")
        if not x.kind.signed:
            return x
        return self._created("create_fabs" if x.kind.is_float else "create_iabs", x)

    def fma(self, a: Operand | float, b: Operand | float, c: Operand | float) -> Operand:
        """a * b + c, rounded once."""
        x, y, z = (self._form.operand(v) for v in (a, b, c))
        x, y = promote_operands(x, y)
        z, x = promote_operands(z, x)
        z, y = promote_operands(z, y)
        return self._created("create_fma", x, y, z)

    def div_rn(self, a: Operand | float, b: Operand | float) -> Operand:
        """A quotient, rounded to the nearest."""
        return self._created("create_precise_divf", *promote_operands(self._float32(a), self._float32(b)))

    def sqrt_rn(self, x: Operand | float) -> Operand:
        """A root, rounded to the nearest."""
        return self._created("create_precise_sqrt", self._float32(x))

    def sqrt(self, x: Operand) -> Operand:
        """A root."""
        if x.kind not in (scalar_types.FP32, scalar_types.FP64):
            raise TypeError(f"a root of {x.kind.name}")
        return self._created("create_sqrt", x)

    def _float32(self, x: Operand | float) -> Operand:
        found = self._form.operand(x)
        if found.kind is not FP32:
            raise TypeError(found.kind.name)
        return found

    def _created(self, name: str, first: Operand, *others: Operand) -> Operand:
        """An operation with the type and shape of its first operand."""
        handle = getattr(self._form.builder, name)(first.handle, *(x.handle for x in others))
        return Operand(self._form, handle, first.kind, first.shape)

    def inline_asm_elementwise(
        self,
        text: str,
        constraints: str,
        args: Sequence[Operand | float],
        passed: Kind | tuple[Kind, ...],
        is_pure: bool,
        pack: int,
    ) -> Any:
        """What a block of assembly gives for each element: an operand, or one for each of a tuple of types."""
        form, operands = self._form, [self._form.operand(x) for x in args]
        shape = operands[0]
        for x in operands:
            shape, _ = broadcast(shape, x)
        types = passed if isinstance(passed, tuple) else (passed,)
        handles = [widened(x, shape.shape).handle for x in operands]
        operation = form.builder.create_inline_asm(
            text, constraints, handles, [form.type(kind, shape.shape) for kind in types], is_pure, pack
        )
        found = tuple(
            Operand(form, operation.get_result(i), kind, shape.shape) for i, kind in enumerate(types)
        )
        return found if isinstance(passed, tuple) else found[0]

    # ---- blocks

    def broadcast_to(self, x: Operand, shape: Sequence[int]) -> Operand:
        """`x` as a block of this shape."""
        return widened(x, tuple(shape))

    def reshape(self, x: Operand, shape: Sequence[int]) -> Operand:
        """The same elements in the same order, as a block of this shape."""
        handle = self._form.builder.create_reshape(x.handle, tuple(shape), False)
        return Operand(self._form, handle, x.kind, tuple(shape))

    def reduce(self, x: Operand | tuple[Operand, ...], axis: int, combine: Combine) -> Any:
        """A block, or several together, combined along an axis."""
        operands = x if isinstance(x, tuple) else (x,)
        shape = operands[0].shape
        rest = (*shape[:axis], *shape[axis + 1 :])
        builder = self._form.builder
        operation = builder.create_reduce([v.handle for v in operands], axis)
        return self._combined(operation, x, rest, combine, builder.create_reduce_ret)

    def associative_scan(self, x: Operand, axis: int, combine: Combine) -> Any:
        """What the elements up to each one of an axis combine to."""
        builder = self._form.builder
        operation = builder.create_scan([x.handle], axis, False)
        return self._combined(operation, x, x.shape, combine, builder.create_scan_ret)

    def _combined(
        self,
        operation: Any,
        x: Operand | tuple[Operand, ...],
        shape: Shape,
        combine: Combine,
        give: Callable[..., Any],
    ) -> Any:
        """The results of `made`, whose region combines two scalars of each operand."""
        form, builder = self._form, self._form.builder
        types = [v.kind for v in (x if isinstance(x, tuple) else (x,))]
        insertion_point = builder.get_insertion_point()
        block = builder.create_block_with_parent(operation.get_region(0), [form.type(k) for k in types * 2])
        passed = combine(*(Operand(form, block.arg(i), kind, ()) for i, kind in enumerate(types * 2)))
        results = passed if isinstance(passed, tuple) else (passed,)
        if [v.kind for v in results] != types:
            raise TypeError("elements combine to those of another type")
        give(*(v.handle for v in results))
        builder.restore_insertion_point(insertion_point)
        found = tuple(Operand(form, operation.get_result(i), kind, shape) for i, kind in enumerate(types))
        return found if isinstance(x, tuple) else found[0]
