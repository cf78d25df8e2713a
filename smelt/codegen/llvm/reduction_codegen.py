"""Reductions: identity, combination of two partial results, combination of lanes.

A partial result is a list of registers: the accumulator, and for argmax and argmin its position. Combining is
associative and commutative up to rounding, so accumulators, lanes and blocks may be combined in any order.
"""

from __future__ import annotations

from math import inf, nan

from smelt.codegen.llvm.ir_builder import Builder, Ref
from smelt.codegen.llvm.llvm_types import TYPES, Type, rounded, truth
from smelt.codegen.llvm.loop_body import Body, Point
from smelt.codegen.llvm.pointwise_codegen import emit
from smelt.loops.kernel_ir import ReduceStage, Reduction
from smelt.shapes.expr import Size, bounds, numel

State = list[Ref]
_BINARY = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def identity(b: Builder, kind: str, t: Type, lanes: int, position: str) -> State:
    """The neutral partial result. `position`: integer type of positions."""
    elem = "i1" if kind in ("any", "all") else t.elem
    first = b.widen(b.const(elem, neutral(kind, t)), lanes)
    if kind not in ("argmax", "argmin"):
        return [first]
    return [first, b.widen(b.const(position, (1 << (int(position[1:]) - 1)) - 1), lanes)]


def neutral(kind: str, t: Type) -> float | int | bool:
    """The reduction's neutral element."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind in ("max", "argmax")
    if t.kind == "f":
        return -inf if lowest else inf
    if t.kind == "b":
        return not lowest
    bits = 8 * t.bytes
    low, high = (0, (1 << bits) - 1) if t.kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return low if lowest else high


def rounds_off(r: Reduction) -> bool:
    """Whether the order in which partial results are combined affects the size of rounding errors."""
    return r.kind == "sum" and TYPES[r.value.dtype].kind == "f"


def wide(b: Builder, r: Reduction, state: State) -> State:
    """The partial result in the precision of a cascade's upper levels: sums of float32 in float64."""
    return [b.convert("fpext", x, "double") for x in state] if rounds_off(r) else state


def narrow(b: Builder, r: Reduction, state: State) -> State:
    """The inverse of `wide`, rounded."""
    return [b.convert("fptrunc", x, TYPES[r.value.dtype].elem) for x in state] if rounds_off(r) else state


def first_state(b: Builder, kind: str, t: Type, value: Ref, position: Ref | None) -> State:
    """The partial result of one element."""
    if kind in ("any", "all"):
        return [truth(b, value, t)]
    return [value] if position is None else [value, position]


def combine(b: Builder, kind: str, t: Type, x: State, y: State) -> State:
    """`x` and `y` combined. Narrow floats accumulate in float32 and round once, at the end."""
    if kind == "any":
        return [b.op("or", x[0], y[0])]
    if kind == "all":
        return [b.op("and", x[0], y[0])]
    wide = Type(t.elem, t.elem, t.kind, t.bytes)
    if kind in _BINARY:
        return [emit(b, _BINARY[kind], wide, x[0], y[0])]
    take = _better(b, kind, wide, x, y)
    return [b.select(take, y[0], x[0]), b.select(take, y[1], x[1])]


def _better(b: Builder, kind: str, t: Type, x: State, y: State) -> Ref:
    """Whether y wins over x: larger (smaller), or NaN, or equal and earlier."""
    wins = emit(b, "gt" if kind == "argmax" else "lt", t, y[0], x[0])
    ties = emit(b, "eq", t, y[0], x[0])
    if t.kind == "f":
        x_nan, y_nan = (b.compare("fcmp uno", v[0], v[0]) for v in (x, y))
        wins = b.op("or", wins, b.op("and", y_nan, b.op("xor", x_nan, b.const("i1", True))))
        ties = b.op("or", ties, b.op("and", x_nan, y_nan))
    earlier = b.compare("icmp slt", y[1], x[1])
    return b.op("or", wins, b.op("and", ties, earlier))


def across_lanes(b: Builder, kind: str, t: Type, x: State) -> State:
    """Combines the lanes of a vector state into a scalar one, in log2(lanes) steps."""
    if kind in ("any", "all"):
        return [b.reduce_lanes("or" if kind == "any" else "and", x[0])]
    lanes = x[0].lanes
    while lanes > 1:
        half = lanes // 2
        x = combine(b, kind, t, [_partial(b, r, 0, half) for r in x], [_partial(b, r, half, half) for r in x])
        lanes = half
    return x


def _partial(b: Builder, x: Ref, start: int, count: int) -> Ref:
    if count == 1:
        return b.pure(f"extractelement {x}, i64 {start}", x.elem, 1, x.depth)
    picks = ", ".join(f"i32 {i}" for i in range(start, start + count))
    return b.pure(
        f"shufflevector {x}, {x} , <{count} x i32> <{picks}>".replace(" ,", ","), x.elem, count, x.depth
    )


# ---- of a stage


def start(b: Builder, stage: ReduceStage, lanes: int) -> list[State]:
    """The partial results before any point."""
    where = position_type(stage)
    return [identity(b, r.kind, TYPES[r.value.dtype], lanes, where) for r in stage.reductions]


def at_point(body: Body, p: Point, stage: ReduceStage) -> list[State]:
    """The contribution of the point `p` to each reduction."""
    return [_at_point(body, p, stage, r) for r in stage.reductions]


def _at_point(body: Body, p: Point, stage: ReduceStage, r: Reduction) -> State:
    where = None
    if r.kind in ("argmax", "argmin"):
        where = body.index_value(p, position(stage), position_type(stage))
    return first_state(body.b, r.kind, TYPES[r.value.dtype], body.value(p, r.value), where)


def with_point(body: Body, p: Point, stage: ReduceStage, states: list[State]) -> list[State]:
    """`states` combined with the contribution of the point `p`; squares are summed with one rounding."""
    combined: list[State] = []
    for r, state in zip(stage.reductions, states, strict=True):
        if _sums_squares(r):
            root = body.value(p, r.value.args[0])
            combined.append([body.b.fma(root, root, state[0])])
        else:
            t = TYPES[r.value.dtype]
            combined.append(combine(body.b, r.kind, t, state, _at_point(body, p, stage, r)))
    return combined


def _sums_squares(r: Reduction) -> bool:
    v = r.value
    return rounds_off(r) and not TYPES[v.dtype].narrow and v.op == "mul" and v.args[0] is v.args[1]


def join(b: Builder, stage: ReduceStage, xs: list[State], ys: list[State]) -> list[State]:
    """Two partial results of each of the stage's reductions, combined."""
    return [
        combine(b, r.kind, TYPES[r.value.dtype], x, y)
        for r, x, y in zip(stage.reductions, xs, ys, strict=True)
    ]


def finished(b: Builder, r: Reduction, state: State) -> Ref:
    """The result of a reduction from its final partial result."""
    if r.kind in ("argmax", "argmin"):
        return b.convert("sext", state[1], "i64")
    state = narrow(b, r, state)
    return state[0] if r.kind in ("any", "all") else rounded(b, state[0], TYPES[r.value.dtype])


def position(stage: ReduceStage) -> Size:
    """The row-major position over the stage's loops."""
    total: Size = 0
    for loop in stage.loops:
        total = total * loop.size + loop.sym
    return total


def position_type(stage: ReduceStage) -> str:
    """The integer type that holds any position of the stage's points."""
    return "i32" if bounds(numel([l.size for l in stage.loops]))[1] < (1 << 31) - 1 else "i64"


__all__ = [
    "State", "across_lanes", "at_point", "combine", "finished", "first_state", "identity", "join", "nan", "narrow",
    "rounds_off", "start", "wide", "with_point",
]  # fmt: skip
