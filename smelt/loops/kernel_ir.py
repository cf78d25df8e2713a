"""Fused loop nests, independent of any target.

A `Kernel` is what one launch does: for every point of its `outer` loops (parallel, any order), run its
`stages` one after the other. A stage maps (stores values), reduces, or scans, over loops of its own. What always holds
(`loops.verify_kernel` checks each statement, by its name):

* *loops*: the symbols of the outer loops and of a stage's are distinct; each has the range [0, size - 1].
* *sizes*: whoever runs a kernel says what its `sizes` are: symbols of at least 1, of which sizes and indices are made.
* *work*: every stage stores something or reduces; one that reduces has a reduction.
* *buffers*: loads and stores name buffers of the kernel, each of which is used; no `in` buffer is stored to. Only `local`
  ones, which are private to one outer point, have a size.
* *indices*: an index is a linear element offset into a buffer: a `Size` over the symbols of the outer loops, of the stage,
  and of `sizes`. It is never negative (where a mask is false, nothing is read), and inside the buffer if that is `local`.
  Stores to `inout` buffers may go further, by integers that are computed (`Lookup`).
* *results*: names of reductions are unique; a `result` value names one of an earlier stage of the same kernel, and has what
  that gave at the same outer point.
* *dtypes*: arithmetic happens in the dtype written on each value; operands share it, loads and stores have that of their
  buffer. Conversions are explicit `cast`s, so float16 and bfloat16 round exactly where eager rounds.
* *order*: a stage loads from an `out` or `local` buffer only what an earlier stage stored at the same outer point. Within
  one stage, at one point, all loads come before all stores; no point of a stage loads what another one stores. A buffer
  that is stored to by lookups is not loaded from.
* *points*: points of the outer loops never communicate, points of a stage only through its reductions: each stores to
  elements of its own (by lookups too, unless what is looked up is the same twice: then either is stored).
* *sums*: a kernel with `sums` means the same as one without them and, behind it, a kernel of theirs. Only that is visible of
  them: they can be computed while the rows are, as `loops.row_sums` says.

Kernels that differ only in names are equal (and hash alike); `schedule.kernel_assembly` numbers buffers in order of
first use and names symbols by position, so that equal layers of a model are equal kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakValueDictionary

import torch

from smelt.shapes.expr import Size, Sym


def _binary(op: str) -> Callable[[Value, Value | float], Value]:
    return lambda a, b: Value(op, (a, b if isinstance(b, Value) else Value("const", (b,), a.dtype)), a.dtype)


def _reflected(op: str) -> Callable[[Value, float], Value]:
    return lambda a, b: Value(op, (Value("const", (b,), a.dtype), a), a.dtype)


class Value:
    """A scalar expression, immutable and interned: equal values are the same object, so a shared subexpression is
    shared in memory. `op` is one of VALUE_OPS; `args` depend on it:

    load   (buffer: int, index: Size, mask: Value | None)   0 where the mask is false (nothing is read there)
    const  (number,)                 int, float (inf and nan allowed) or bool, of this value's dtype
    index  (expression: Size,)       the integer value of an index expression (dtype int64)
    result (reduction: str,)         what the reduction of that name gave
    cast   (Value,)                  to this value's dtype, with C/ATen conversion rules
    others (Value, ...)              see POINTWISE

    `a + b`, `a * 2`, `-a` build values of the dtype of `a`; the rest is in `loops.loop_values`.
    """

    __slots__ = ("__weakref__", "args", "dtype", "op")
    op: str
    args: tuple
    dtype: torch.dtype

    def __new__(cls, op: str, args: tuple, dtype: torch.dtype) -> Value:
        # 0.0 and -0.0, 1 and True are equal but not the same
        key = (op, repr(args) if op == "const" else args, dtype)
        value = _VALUES.get(key)
        if value is None:
            value = object.__new__(cls)
            value.op, value.args, value.dtype = op, args, dtype
            value = _VALUES.setdefault(key, value)
        return value

    __add__ = __radd__ = _binary("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__ = __rmul__ = _binary("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")

    def __neg__(self) -> Value:
        return Value("neg", (self,), self.dtype)

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"

    def __reduce__(self) -> tuple[type, tuple]:
        return Value, (self.op, self.args, self.dtype)


_VALUES: WeakValueDictionary[tuple, Value] = WeakValueDictionary()


# name -> number of operands. Operands share one dtype (conditions of `where` are bool; shifts, pow too).
# Comparisons and logical_* give bool. Semantics are ATen's (NaN propagates through maximum/minimum; fmax/fmin
# ignore it; div is true division on floats; floordiv and remainder take the sign of the divisor, truncdiv and
# fmod that of the dividend; integer overflow wraps). philox(seed, counter, subsequence, lane), of int64: the 32 random bits,
# as a number from 0 on, that lane 0 to 3 of one step of Philox4x32-10 gives (loops/philox.py). device_log is CUDA's
# logf, fast_log, fast_sin and fast_cos are its __logf, __sinf and __cosf: ATen's numbers are made of them. On a CPU they are
# log, sin and cos.
POINTWISE: dict[str, int] = dict(
    neg=1, abs=1, sqrt=1, rsqrt=1, reciprocal=1, exp=1, exp2=1, expm1=1, log=1, log2=1, log10=1, log1p=1,
    sin=1, cos=1, tan=1, asin=1, acos=1, atan=1, sinh=1, cosh=1, tanh=1, asinh=1, acosh=1, atanh=1,
    erf=1, erfc=1, sigmoid=1, floor=1, ceil=1, trunc=1, round=1, sign=1, isnan=1, isinf=1,
    logical_not=1, bitwise_not=1,
    add=2, sub=2, mul=2, div=2, floordiv=2, truncdiv=2, remainder=2, fmod=2, pow=2, atan2=2, copysign=2,
    maximum=2, minimum=2, fmax=2, fmin=2,
    eq=2, ne=2, lt=2, le=2, gt=2, ge=2, logical_and=2, logical_or=2, logical_xor=2,
    bitwise_and=2, bitwise_or=2, bitwise_xor=2, shift_left=2, shift_right=2,
    where=3, fma=3, philox=4, device_log=1, fast_log=1, fast_sin=1, fast_cos=1,
)  # fmt: skip
VALUE_OPS = {"load", "const", "index", "result", "cast", *POINTWISE}

ReductionKind = Literal["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"]


@dataclass(frozen=True)
class Loop:
    """`for sym in range(size)`; `sym` has range [0, size - 1]."""

    sym: Sym
    size: Size


@dataclass(frozen=True)
class Lookup:
    """A runtime offset of a store: `stride` times `value`, an int64. `value` must be in [0, size). Otherwise nothing
    is stored, and a GPU kernel fails by an assertion, as ATen's do."""

    value: Value
    stride: int
    size: int


@dataclass(frozen=True)
class Store:
    """`buffer[index] = value`, `index` in elements; with `lookups`, `buffer[index + their offsets] = value`."""

    buffer: int
    index: Size
    value: Value
    lookups: tuple[Lookup, ...] = ()

    def moved(self, index: Callable[[Size], Size], value: Callable[[Value], Value]) -> Store:
        """The store over other loops; the functions map indices and values."""
        lookups = tuple(Lookup(value(l.value), l.stride, l.size) for l in self.lookups)
        return Store(self.buffer, index(self.index), value(self.value), lookups)


@dataclass(frozen=True)
class Reduction:
    """A named reduction; `name` is unique in the kernel. argmax and argmin give the row-major position over the stage's
    loops (int64), first occurrence, NaN wins. max and min propagate NaN. The accumulator has `dtype` (= value.dtype)."""

    name: str
    kind: ReductionKind
    value: Value


@dataclass(frozen=True)
class MapStage:
    """Stores at every point of its own loops (without loops: once per outer point)."""

    loops: tuple[Loop, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True)
class ReduceStage:
    """Reduces over its loops. `stores` happen at every point, so that stored values need not be loaded to be summed."""

    loops: tuple[Loop, ...]
    reductions: tuple[Reduction, ...]
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class ScanStage:
    """Inclusive scan (cumsum: kind sum; cumprod: prod; cummax values: max) of `value` along one loop, in order:
    out[index] = scan. `store.value` is the scanned value; sums and products of floats accumulate in ATen's `acc_type`
    and round where they are stored."""

    loop: Loop
    kind: ReductionKind
    store: Store


Stage = MapStage | ReduceStage | ScanStage


@dataclass(frozen=True)
class Buffer:
    """A kernel argument. Role: `in`, `out`, `inout`, or `local` (scratch of `size` elements of an outer point)."""

    name: str = field(compare=False)
    dtype: torch.dtype
    role: Literal["in", "out", "inout", "local"]
    size: Size = 0


@dataclass(frozen=True)
class Sums:
    """Reductions of a row kernel over its outer points (`loops.row_sums`). `outer`: the loop over chunks of rows, then the
    loops over a row's columns. `stages`: a ReduceStage over the rows of a chunk, and a MapStage that stores its results."""

    outer: tuple[Loop, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Kernel:
    """`Value.args[0]` of a load and `Store.buffer` index into `buffers`. `name` is readable (fused operator names) and
    excluded from equality. Elementwise kernels have all loops in `outer` and one MapStage without loops. `sums`:
    reductions over the outer points, computed along with them. `sizes`: symbols whose values the launch passes."""

    name: str = field(compare=False)
    buffers: tuple[Buffer, ...]
    outer: tuple[Loop, ...]
    stages: tuple[Stage, ...]
    sums: Sums | None = None
    sizes: tuple[Sym, ...] = ()


def stage_loops(stage: Stage) -> tuple[Loop, ...]:
    """The stage's own loops, outermost first."""
    return (stage.loop,) if isinstance(stage, ScanStage) else stage.loops


def stage_stores(stage: Stage) -> tuple[Store, ...]:
    """The stores at each point of the stage."""
    return (stage.store,) if isinstance(stage, ScanStage) else stage.stores


def stage_values(stage: Stage) -> list[Value]:
    """The values computed at a point of the stage: stored, looked up, reduced or scanned."""
    reduced = stage.reductions if isinstance(stage, ReduceStage) else ()
    stores = stage_stores(stage)
    looked_up = [l.value for s in stores for l in s.lookups]
    return [*(r.value for r in reduced), *(s.value for s in stores), *looked_up]


def walk(values: list[Value], into: Callable[[Value], bool] | None = None) -> Iterator[Value]:
    """Every subexpression once, operands after their users. With `into`, descend only into values for which it holds."""
    seen: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if into is None or into(value):
            stack += [a for a in value.args if isinstance(a, Value)]


def indices(values: list[Value]) -> Iterator[Size]:
    """The index expressions of the loads and indices among the values' subexpressions."""
    return (v.args[v.op == "load"] for v in walk(values) if v.op in ("load", "index"))
