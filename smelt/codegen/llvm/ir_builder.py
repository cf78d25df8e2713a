"""LLVM IR as text, emitted already hoisted and without common subexpressions.

A `Builder` writes one function. It has a stack of scopes, one per loop nest level; a pure instruction is emitted once,
in the outermost scope in which all its operands exist. So no optimizer pass has to hoist loop invariants.

Invariants: a scope's lines dominate those of deeper open scopes; identical text of a pure instruction in an open scope
names the same value.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.codegen.llvm.host_cpu import Host


class Ref:
    """An SSA value or a constant: its text, scalar type (`float`, `i1`, ...), lanes (1: a scalar) and scope depth."""

    __slots__ = ("depth", "elem", "lanes", "text")

    def __init__(self, text: str, elem: str, lanes: int = 1, depth: int = 0) -> None:
        self.text, self.elem, self.lanes, self.depth = text, elem, lanes, depth

    @property
    def is_const(self) -> bool:
        """Whether it is a literal rather than a register."""
        return self.text[0] != "%"

    def __str__(self) -> str:
        return f"{type_text(self.elem, self.lanes)} {self.text}"


@functools.cache
def type_text(elem: str, lanes: int) -> str:
    """The type of a register of `lanes` elements of LLVM type `elem`."""
    return elem if lanes == 1 else f"<{lanes} x {elem}>"


@functools.cache
def suffix(elem: str, lanes: int) -> str:
    """The type's suffix in intrinsic names: v16f32."""
    short = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(elem, elem)
    return short if lanes == 1 else f"v{lanes}{short}"


def literal(elem: str, value: float | int | bool) -> str:
    """The literal of `value` in type `elem`; integers wrap."""
    if elem == "float":
        return _hex(_round_to_float(float(value)))
    if elem == "double":
        return _hex(float(value))
    if elem == "i1":
        return "true" if value else "false"
    bits = int(elem[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def _hex(value: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _round_to_float(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


class Scope:
    """The lines of one nest level, and the pure instructions emitted in it."""

    __slots__ = ("lines", "memo")

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.memo: dict[str, Ref] = {}


class Loop:
    """What `Builder.loop` yields: the induction variable, and the carried values; the body sets `next`."""

    __slots__ = ("carried", "index", "next")

    def __init__(self, index: Ref, carried: list[Ref]) -> None:
        self.index, self.carried = index, carried
        self.next: list[Ref] = []


class Module:
    """The declarations and shared helper functions that the functions of one module request, each once."""

    def __init__(self, target: Host) -> None:
        self.target = target
        self.declarations: dict[str, str] = {}
        self.helpers: dict[str, str] = {}

    def text(self, functions: Sequence[str]) -> str:
        """The module's text: declarations, helpers, then `functions`."""
        return "\n".join((*self.declarations.values(), *self.helpers.values(), *functions))


class Builder:
    """Writes one function. `lanes`: the width of its vectors."""

    def __init__(self, module: Module, lanes: int) -> None:
        self.module, self.lanes = module, lanes
        self.target = module.target
        self.scopes = [Scope()]
        self._names = 0
        self._labels = 0

    @property
    def depth(self) -> int:
        """How many loops are open."""
        return len(self.scopes) - 1

    # ---- instructions

    def fresh(self) -> str:
        """An unused register name."""
        self._names += 1
        return f"%v{self._names}"

    def pure(self, text: str, elem: str, lanes: int, depth: int) -> Ref:
        """A value that depends on its operands alone; emitted at `depth`, where they all exist."""
        scope = self.scopes[depth]
        ref = scope.memo.get(text)
        if ref is None:
            ref = scope.memo[text] = Ref(self.fresh(), elem, lanes, depth)
            scope.lines.append(f"  {ref.text} = {text}")
        return ref

    def ordered(self, text: str, elem: str, lanes: int) -> Ref:
        """A value that depends on memory being written: emitted at the current position."""
        ref = Ref(self.fresh(), elem, lanes, self.depth)
        self.scopes[-1].lines.append(f"  {ref.text} = {text}")
        return ref

    def line(self, text: str) -> None:
        """Append an instruction at the current position."""
        self.scopes[-1].lines.append("  " + text)

    # ---- operands

    def const(self, elem: str, value: float | int | bool) -> Ref:
        """A literal of LLVM type `elem`."""
        return Ref(literal(elem, value), elem)

    def like(self, ref: Ref, value: float | int | bool) -> Ref:
        """A literal of the element type of `ref`."""
        return Ref(literal(ref.elem, value), ref.elem)

    def widen(self, ref: Ref, lanes: int | None = None) -> Ref:
        """The scalar broadcast to all lanes."""
        lanes = lanes or self.lanes
        if ref.lanes == lanes:
            return ref
        assert ref.lanes == 1
        if ref.is_const:
            return Ref(f"splat ({ref.elem} {ref.text})", ref.elem, lanes)
        vector = type_text(ref.elem, lanes)
        first = self.pure(f"insertelement {vector} poison, {ref}, i64 0", ref.elem, lanes, ref.depth)
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.pure(
            f"shufflevector {vector} {first.text}, {vector} poison, {zeros}", ref.elem, lanes, ref.depth
        )

    def broadcast(self, refs: Sequence[Ref]) -> tuple[list[Ref], int, int]:
        """The operands with equal lanes, that number of lanes, and the depth at which all exist."""
        lanes = max(r.lanes for r in refs)
        wide = [r if r.lanes == lanes else self.widen(r, lanes) for r in refs]
        return wide, lanes, max(r.depth for r in refs)

    # ---- operations

    def op(self, opcode: str, a: Ref, b: Ref) -> Ref:
        """A binary instruction; a scalar operand is broadcast to a vector one."""
        (a, b), lanes, depth = self.broadcast((a, b))
        return self.pure(f"{opcode} {a}, {b.text}", a.elem, lanes, depth)

    def compare(self, predicate: str, a: Ref, b: Ref) -> Ref:
        """A comparison. `predicate` is an opcode with its condition: `fcmp olt`, `icmp eq`."""
        (a, b), lanes, depth = self.broadcast((a, b))
        return self.pure(f"{predicate} {a}, {b.text}", "i1", lanes, depth)

    def select(self, condition: Ref, a: Ref, b: Ref) -> Ref:
        """`a` in the lanes where `condition` (i1) holds, else `b`."""
        (condition, a, b), lanes, depth = self.broadcast((condition, a, b))
        return self.pure(f"select {condition}, {a}, {b}", a.elem, lanes, depth)

    def insert(self, vector: Ref, x: Ref, lane: int) -> Ref:
        """`vector` with the scalar `x` in one lane."""
        depth = max(vector.depth, x.depth)
        return self.pure(f"insertelement {vector}, {x}, i64 {lane}", vector.elem, vector.lanes, depth)

    def extract(self, vector: Ref, lane: int) -> Ref:
        """One lane of a vector."""
        return self.pure(f"extractelement {vector}, i64 {lane}", vector.elem, 1, vector.depth)

    def shifted(self, before: Ref, x: Ref, count: int) -> Ref:
        """The lanes of `x` moved up by `count`, after the last ones of `before`."""
        lanes, depth = x.lanes, max(before.depth, x.depth)
        picks = ", ".join(f"i32 {lanes - count + i}" for i in range(lanes))
        return self.pure(f"shufflevector {before}, {x}, <{lanes} x i32> <{picks}>", x.elem, lanes, depth)

    def convert(self, opcode: str, a: Ref, elem: str) -> Ref:
        """A conversion (zext, fptrunc, bitcast, ...) to elements of type `elem`; `a` itself if it has that type."""
        if a.elem == elem:
            return a
        return self.pure(f"{opcode} {a} to {type_text(elem, a.lanes)}", elem, a.lanes, a.depth)

    def fneg(self, a: Ref) -> Ref:
        """-a, with the sign of zero and NaN flipped as well."""
        return self.pure(f"fneg {a}", a.elem, a.lanes, a.depth)

    def freeze(self, a: Ref) -> Ref:
        """`a`, frozen: LLVM must not treat it as undefined."""
        return self.pure(f"freeze {a}", a.elem, a.lanes, a.depth)

    def intrinsic(self, name: str, *args: Ref, tail: str = "") -> Ref:
        """An LLVM intrinsic on, and with the result of, the type of its operands. `tail`: immediate operands."""
        wide, lanes, depth = self.broadcast(args)
        elem = wide[0].elem
        full = f"@llvm.{name}.{suffix(elem, lanes)}"
        kind = type_text(elem, lanes)
        operands = ", ".join(map(str, wide))
        extra = f", {tail}" if tail else ""
        self.declare(full, f"{kind} {full}({', '.join([kind] * len(wide))}{', i1' if tail else ''})")
        return self.pure(f"call {kind} {full}({operands}{extra})", elem, lanes, depth)

    def fma(self, a: Ref, b: Ref, c: Ref) -> Ref:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def polynomial(self, x: Ref, coefficients: Sequence[float]) -> Ref:
        """A polynomial by Horner's rule; coefficients from the constant term up."""
        y = self.like(x, coefficients[-1])
        for c in reversed(coefficients[:-1]):
            y = self.fma(y, x, self.like(x, c))
        return y

    def any_lane(self, condition: Ref) -> Ref:
        """Whether `condition` (i1) holds in any lane."""
        if condition.lanes == 1:
            return condition
        return self.reduce_lanes("or", condition)

    def reduce_lanes(self, kind: str, a: Ref) -> Ref:
        """The lanes of `a` combined by LLVM's vector reduction `kind`."""
        name = f"@llvm.vector.reduce.{kind}.{suffix(a.elem, a.lanes)}"
        self.declare(name, f"{a.elem} {name}({type_text(a.elem, a.lanes)})")
        return self.pure(f"call {a.elem} {name}({a})", a.elem, 1, a.depth)

    def declare(self, name: str, signature: str) -> None:
        """Declare a function in the module, once; `signature` as after `declare`."""
        if name not in self.module.declarations:
            self.module.declarations[name] = "declare " + signature

    def call(self, name: str, elem: str, *args: Ref) -> Ref:
        """A call of a pure helper function; operands and result have equal lanes."""
        wide, lanes, depth = self.broadcast(args)
        return self.pure(
            f"call {type_text(elem, lanes)} {name}({', '.join(map(str, wide))})", elem, lanes, depth
        )

    # ---- control

    @contextmanager
    def loop(
        self, start: Ref, stop: Ref, step: int, carried: Sequence[Ref] = (), may_skip: bool = False
    ) -> Iterator[Loop]:
        """Open `for index in range(start, stop, step)`, executed at least once (the test comes after the body) unless
        it `may_skip`. After the block `Loop.next` holds the carried values of the last iteration."""
        self._labels += 1
        n = self._labels
        depth = len(self.scopes)
        index = Ref(f"%i{n}", "i64", 1, depth)
        phis = [Ref(self.fresh(), c.elem, c.lanes, depth) for c in carried]
        loop = Loop(index, phis)
        self.scopes.append(Scope())
        yield loop
        body = self.scopes.pop().lines
        out = self.scopes[-1].lines
        # The counter is a vector of one element, which LLVM's loop strength reduction ignores: that pass takes half
        # of the compile time, and indices are in their final form already.
        out.append(f"  %s{n} = insertelement <1 x i64> poison, i64 {start.text}, i64 0")
        out += (f"  br label %p{n}", f"p{n}:")
        if may_skip:
            out.append(f"  %z{n} = icmp slt i64 {start.text}, {stop.text}")
            out.append(f"  br i1 %z{n}, label %h{n}, label %e{n}")
        else:
            out.append(f"  br label %h{n}")
        out.append(f"h{n}:")
        out.append(f"  %w{n} = phi <1 x i64> [%s{n}, %p{n}], [%m{n}, %l{n}]")
        for phi, first, last in zip(phis, carried, loop.next, strict=True):
            kind = type_text(phi.elem, phi.lanes)
            out.append(f"  {phi.text} = phi {kind} [{first.text}, %p{n}], [{last.text}, %l{n}]")
        out.append(f"  {index.text} = extractelement <1 x i64> %w{n}, i64 0")
        out += body
        out += (f"  br label %l{n}", f"l{n}:", f"  %n{n} = add nuw nsw i64 {index.text}, {step}")
        out.append(f"  %m{n} = insertelement <1 x i64> poison, i64 %n{n}, i64 0")
        out.append(f"  %c{n} = icmp slt i64 %n{n}, {stop.text}")
        out += (f"  br i1 %c{n}, label %h{n}, label %e{n}", f"e{n}:")
        if may_skip:
            next_values = loop.next
            loop.next = [Ref(self.fresh(), r.elem, r.lanes, depth - 1) for r in carried]
            for phi, first, last in zip(loop.next, carried, next_values, strict=True):
                kind = type_text(phi.elem, phi.lanes)
                out.append(f"  {phi.text} = phi {kind} [{first.text}, %p{n}], [{last.text}, %l{n}]")
        loop.next = [Ref(r.text, r.elem, r.lanes, min(r.depth, depth - 1)) for r in loop.next]

    @contextmanager
    def when(self, condition: Ref) -> Iterator[None]:
        """Execute the block only if the scalar `condition` holds; it yields no values."""
        self._labels += 1
        n = self._labels
        self.scopes.append(Scope())
        yield
        body = self.scopes.pop().lines
        out = self.scopes[-1].lines
        out += (f"  br i1 {condition.text}, label %t{n}, label %f{n}", f"t{n}:")
        out += body
        out += (f"  br label %f{n}", f"f{n}:")

    def lines(self) -> str:
        """The text of all instructions, once every loop is closed."""
        assert len(self.scopes) == 1
        return "\n".join(self.scopes[0].lines)


def helper(b: Builder, name: str, elem: str, arity: int, write: Callable[[Builder, list[Ref]], Ref]) -> str:
    """The name of a module function over `b.lanes` lanes of `elem`, written by `write` on first use. Calls compile
    faster than long bodies inlined at every use."""
    full = f"@smelt.{name}.{suffix(elem, b.lanes)}"
    if full not in b.module.helpers:
        kind = type_text(elem, b.lanes)
        inner = Builder(b.module, b.lanes)
        parameters = [Ref(f"%a{i}", elem, b.lanes) for i in range(arity)]
        b.module.helpers[full] = ""  # reserves its position before the helpers that it calls
        result = write(inner, parameters)
        b.module.helpers[full] = (
            f"define internal {kind} {full}({', '.join(map(str, parameters))}) noinline nounwind {{\n"
            f"{inner.lines()}\n  ret {result}\n}}"
        )
    return full
