"""Values at one point (or one vector of points) of a loop nest: loads, stores, index arithmetic, operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from smelt.codegen.llvm import pointwise_codegen
from smelt.codegen.llvm.ir_builder import Builder, Ref, suffix, type_text
from smelt.codegen.llvm.llvm_types import TYPES, Type, convert, from_memory, to_memory
from smelt.codegen.llvm.vectorization import lane_stride
from smelt.loops.kernel_ir import Buffer, Store, Value
from smelt.shapes.expr import Expr, Quotient, Size, Sym, bounds, free_syms

INT32 = 1 << 31


@dataclass
class Point:
    """A position in the emitted code. `syms`: loop symbols as scalar registers; that of `lane_sym` is the first lane's.
    `mask`: the lanes that exist (None: all). `outer_lanes`: lanes are outer points, so local buffers have lanes too."""

    syms: dict[Sym, Ref]
    lane_sym: Sym | None = None
    mask: Ref | None = None
    outer_lanes: bool = False
    values: dict[int, Ref] = field(default_factory=dict)

    def at(self, sym: Sym, where: Ref, mask: Ref | None = None) -> Point:
        """The point with `sym` bound, and no values computed yet."""
        return Point({**self.syms, sym: where}, self.lane_sym, mask or self.mask, self.outer_lanes)


class Body:
    """Emits the values of one kernel. `pointers[i]`: buffer i's address; `results`: the finished reductions. Points
    include the kernel's sizes among their symbols."""

    def __init__(self, b: Builder, buffers: tuple[Buffer, ...], pointers: list[Ref]) -> None:
        self.b, self.buffers, self.pointers = b, buffers, pointers
        self.results: dict[str, Ref] = {}

    # ---- values

    def value(self, p: Point, v: Value) -> Ref:
        """The register of `v` at `p`, a scalar or a vector. Values computed at the point are reused."""
        ref = p.values.get(id(v))
        if ref is None:
            ref = p.values[id(v)] = self._compute(p, v)
        return ref

    def _compute(self, p: Point, v: Value) -> Ref:
        if v.op == "load":
            return self._load(p, *v.args)
        if v.op == "const":
            return self._const(v)
        if v.op == "index":
            return self.index_value(p, v.args[0], "i64")
        if v.op == "result":
            return self.results[v.args[0]]
        operands = [self.value(p, a) for a in v.args]
        # LLVM would turn a select of zero and a load into a masked load, which waits for the mask
        if v.op == "where":
            operands = [self.b.freeze(r) if a.op == "load" else r for a, r in zip(v.args, operands)]
        if v.op == "cast":
            return convert(self.b, operands[0], TYPES[v.args[0].dtype], TYPES[v.dtype])
        return pointwise_codegen.emit(self.b, v.op, TYPES[v.args[-1].dtype], *operands)

    def _const(self, v: Value) -> Ref:
        number = v.args[0]
        if v.dtype in (torch.float16, torch.bfloat16):
            number = torch.tensor(number, dtype=v.dtype).item()
        return self.b.const(TYPES[v.dtype].elem, number)

    # ---- memory

    def _stride(self, p: Point, buffer: int, index: Size) -> int | None:
        if p.outer_lanes and self.buffers[buffer].role == "local":
            return 1
        return lane_stride(index, p.lane_sym, self.b.lanes)

    def _address(self, p: Point, buffer: int, index: Size) -> Ref:
        """The address of the first lane's element."""
        b, t = self.b, TYPES[self.buffers[buffer].dtype]
        scale = b.lanes if p.outer_lanes and self.buffers[buffer].role == "local" else 1
        address = self.pointers[buffer]
        for offset in self._by_depth(p, index * scale):
            address = b.pure(
                f"getelementptr {t.memory}, {address}, {offset}", "ptr", 1, max(address.depth, offset.depth)
            )
        return address

    def _by_depth(self, p: Point, e: Size) -> list[Ref]:
        """`e` as summands, outermost first: those that inner loops do not change become a base address, and the rest
        fits the addressing mode of the access."""
        if isinstance(e, int) or len(e.terms) == 1:
            return [self.scalar_index(p, e)]
        by_depth: dict[int, list[Ref]] = {}
        for monomial, factor in e.terms:
            term = _term(self.b, monomial, factor, p.syms, "i64")
            by_depth.setdefault(term.depth, []).append(term)
        inner = max(by_depth)
        if e.const:
            by_depth[inner].append(self.b.const("i64", e.const))
        sums = []
        for depth in sorted(by_depth):
            total = by_depth[depth][0]
            for term in by_depth[depth][1:]:
                total = self.b.op("add nsw", total, term)
            sums.append(total)
        return sums

    def _addresses(self, p: Point, buffer: int, index: Size, stride: int | None) -> Ref:
        """The addresses of all lanes' elements, for lanes that are not adjacent in memory."""
        b, t = self.b, TYPES[self.buffers[buffer].dtype]
        if stride is not None:
            base, offsets = self._address(p, buffer, index), self._iota("i64", stride)
        else:
            base, offsets = self.pointers[buffer], self.vector_index(p, index)
        depth = max(base.depth, offsets.depth)
        return b.pure(f"getelementptr {t.memory}, {base}, {offsets}", "ptr", b.lanes, depth)

    def _read(self, buffer: int, text: str, elem: str, lanes: int, *operands: Ref) -> Ref:
        """A load: hoisted and shared if the kernel never writes the buffer."""
        if self.buffers[buffer].role == "in":
            return self.b.pure(text, elem, lanes, max(r.depth for r in operands))
        return self.b.ordered(text, elem, lanes)

    def _load(self, p: Point, buffer: int, index: Size, condition: Value | None) -> Ref:
        t = TYPES[self.buffers[buffer].dtype]
        mask = None if condition is None else self.value(p, condition)
        stride = self._stride(p, buffer, index)
        if stride == 0:
            return self._load_one(p, buffer, index, mask, t)
        if mask is not None:
            mask = self.b.widen(mask)
        if p.mask is not None:
            mask = p.mask if mask is None else self.b.op("and", mask, p.mask)
        if stride == 1:
            return from_memory(self.b, self._load_contiguous(p, buffer, index, mask, t), t)
        return from_memory(self.b, self._gather(p, buffer, index, stride, mask, t), t)

    def _load_one(self, p: Point, buffer: int, index: Size, mask: Ref | None, t: Type) -> Ref:
        """One element for all lanes. Under a mask it is loaded only if some lane is active."""
        b = self.b
        address = self._address(p, buffer, index)
        if mask is None:
            return from_memory(b, self._read(buffer, f"load {t.memory}, {address}", t.memory, 1, address), t)
        is_loaded = b.any_lane(mask if p.mask is None or mask.lanes == 1 else b.op("and", mask, p.mask))
        zero = Ref(self._zero(), "ptr")
        address = b.select(is_loaded, address, zero)
        x = from_memory(b, self._read(buffer, f"load {t.memory}, {address}", t.memory, 1, address), t)
        return x if mask.lanes == 1 else b.select(mask, x, b.like(x, 0))

    def _zero(self) -> str:
        self.b.module.declarations["@smelt.zero"] = "@smelt.zero = internal constant i64 0"
        return "@smelt.zero"

    def _load_contiguous(self, p: Point, buffer: int, index: Size, mask: Ref | None, t: Type) -> Ref:
        b = self.b
        address = self._address(p, buffer, index)
        kind = type_text(t.memory, b.lanes)
        align = 1 if t.memory == "i8" else t.bytes
        if mask is None:
            return self._read(buffer, f"load {kind}, {address}, align {align}", t.memory, b.lanes, address)
        name = f"@llvm.masked.load.{suffix(t.memory, b.lanes)}.p0"
        b.declare(name, f"{kind} {name}(ptr, i32, <{b.lanes} x i1>, {kind})")
        text = f"call {kind} {name}({address}, i32 {align}, {mask}, {kind} zeroinitializer)"
        return self._read(buffer, text, t.memory, b.lanes, address, mask)

    def _gather(
        self, p: Point, buffer: int, index: Size, stride: int | None, mask: Ref | None, t: Type
    ) -> Ref:
        b = self.b
        addresses = self._addresses(p, buffer, index, stride)
        mask = mask or b.widen(b.const("i1", True))
        kind = type_text(t.memory, b.lanes)
        name = f"@llvm.masked.gather.{suffix(t.memory, b.lanes)}.v{b.lanes}p0"
        b.declare(name, f"{kind} {name}(<{b.lanes} x ptr>, i32, <{b.lanes} x i1>, {kind})")
        text = f"call {kind} {name}({addresses}, i32 {t.bytes}, {mask}, {kind} zeroinitializer)"
        return self._read(buffer, text, t.memory, b.lanes, addresses, mask)

    def stores(self, p: Point, stores: Sequence[Store]) -> None:
        """Emit a stage's stores, after all its values."""
        values = [self.value(p, s.value) for s in stores]
        for store, value in zip(stores, values, strict=True):
            self.store(p, store, value)

    def store(self, p: Point, s: Store, x: Ref) -> None:
        """Store `x` (the store's value) in the point's active lanes."""
        b, t = self.b, TYPES[self.buffers[s.buffer].dtype]
        x = to_memory(b, x, t)
        if s.lookups:
            self._store_further(p, s, x, t)
            return
        stride = self._stride(p, s.buffer, s.index)
        if stride == 0:
            assert x.lanes == 1, "lanes that differ would be stored to one place"
            b.line(f"store {x}, {self._address(p, s.buffer, s.index)}")
            return
        x = b.widen(x)
        if stride != 1:
            self._scatter(p, s, x, stride, t)
        elif p.mask is None:
            b.line(f"store {x}, {self._address(p, s.buffer, s.index)}, align {t.bytes}")
        else:
            name = f"@llvm.masked.store.{suffix(t.memory, b.lanes)}.p0"
            b.declare(name, f"void {name}({type_text(t.memory, b.lanes)}, ptr, i32, <{b.lanes} x i1>)")
            b.line(f"call void {name}({x}, {self._address(p, s.buffer, s.index)}, i32 {t.bytes}, {p.mask})")

    def _scatter(self, p: Point, s: Store, x: Ref, stride: int | None, t: Type) -> None:
        mask = p.mask or self.b.widen(self.b.const("i1", True))
        self._scatter_to(x, self._addresses(p, s.buffer, s.index, stride), mask, t)

    def _scatter_to(self, x: Ref, addresses: Ref, mask: Ref, t: Type) -> None:
        b = self.b
        name = f"@llvm.masked.scatter.{suffix(t.memory, b.lanes)}.v{b.lanes}p0"
        b.declare(
            name, f"void {name}({type_text(t.memory, b.lanes)}, <{b.lanes} x ptr>, i32, <{b.lanes} x i1>)"
        )
        b.line(f"call void {name}({x}, {addresses}, i32 {t.bytes}, {mask})")

    def _store_further(self, p: Point, s: Store, x: Ref, t: Type) -> None:
        """Store at the offsets of the lookups, where they are in range."""
        b = self.b
        at, inside = self.index_value(p, s.index, "i64"), b.const("i1", True)
        for lookup in s.lookups:
            value = self.value(p, lookup.value)
            inside = b.op("and", inside, b.compare("icmp ult", value, b.like(value, lookup.size)))
            at = b.op("add", at, b.op("mul", value, b.like(value, lookup.stride)))
        base = self.pointers[s.buffer]
        depth = max(base.depth, at.depth)
        if p.lane_sym is not None:
            at, inside = b.widen(at), b.widen(inside)
            mask = inside if p.mask is None else b.op("and", inside, p.mask)
            addresses = b.pure(f"getelementptr {t.memory}, {base}, {at}", "ptr", b.lanes, depth)
            self._scatter_to(b.widen(x), addresses, mask, t)
            return
        b.module.declarations["@smelt.aside"] = "@smelt.aside = internal global i64 0"
        address = b.pure(f"getelementptr {t.memory}, {base}, {at}", "ptr", 1, depth)
        b.line(f"store {x}, {b.select(inside, address, Ref('@smelt.aside', 'ptr'))}")

    # ---- indices

    def scalar_index(self, p: Point, e: Size) -> Ref:
        """`e` for the first lane, i64. Terms are added outermost first, so that partial sums are hoisted."""
        return _evaluate(self.b, e, p.syms, "i64")

    def index_value(self, p: Point, e: Size, elem: str) -> Ref:
        """`e` for every lane, as integers of type `elem`; a scalar if the lanes agree."""
        b = self.b
        stride = lane_stride(e, p.lane_sym, b.lanes)
        if stride is None:
            return _resize(b, self.vector_index(p, e), elem)
        base = _resize(b, self.scalar_index(p, e), elem)
        return base if stride == 0 else b.op("add", base, self._iota(elem, stride))

    def vector_index(self, p: Point, e: Size) -> Ref:
        """`e` for every lane by vector arithmetic; in 32 bits if all of it fits."""
        assert p.lane_sym is not None
        b = self.b
        elem = "i32" if _fits(e, INT32) else "i64"
        syms = {s: _resize(b, r, elem) for s, r in p.syms.items() if s in free_syms(e)}
        syms[p.lane_sym] = b.op("add", syms[p.lane_sym], self._iota(elem, 1))
        return _evaluate(b, e, syms, elem)

    def _iota(self, elem: str, stride: int) -> Ref:
        return iota(self.b, elem, stride)


def iota(b: Builder, elem: str, stride: int = 1) -> Ref:
    """<0, stride, 2*stride, ...>"""
    lane_offsets = ", ".join(f"{elem} {i * stride}" for i in range(b.lanes))
    return Ref(f"<{lane_offsets}>", elem, b.lanes)


def scalar(b: Builder, e: Size, syms: Mapping[Sym, Ref]) -> Ref:
    """`e` as a scalar i64."""
    return _evaluate(b, e, syms, "i64")


def _resize(b: Builder, x: Ref, elem: str) -> Ref:
    if x.is_const and x.lanes == 1:
        return Ref(x.text, elem)
    return b.convert("trunc" if int(elem[1:]) < int(x.elem[1:]) else "sext", x, elem)


def _fits(e: Size, limit: int) -> bool:
    """Whether no intermediate result of `e` leaves (-limit, limit)."""
    lo, hi = bounds(e)
    if lo <= -limit or hi >= limit:
        return False
    if isinstance(e, int | Sym):
        return True
    if isinstance(e, Quotient):
        return _fits(e.left, limit) and _fits(e.right, limit)
    return (
        all(_fits(a, limit) for m, _ in e.terms for a in m)
        and sum(abs(c) * max(map(abs, bounds(_product(m)))) for m, c in e.terms) + abs(e.const) < limit
    )


def _product(atoms: tuple[Expr, ...]) -> Size:
    total: Size = 1
    for a in atoms:
        total = total * a
    return total


def _evaluate(b: Builder, e: Size, syms: Mapping[Sym, Ref], elem: str) -> Ref:
    if isinstance(e, int):
        return b.const(elem, e)
    if isinstance(e, Sym):
        return syms[e]
    if isinstance(e, Quotient):
        return _divide(b, e, _evaluate(b, e.left, syms, elem), _evaluate(b, e.right, syms, elem))
    terms = [_term(b, m, c, syms, elem) for m, c in e.terms]
    terms.sort(key=lambda r: (r.depth, r.lanes))
    total = terms[0]
    for term in terms[1:]:
        total = b.op("add nsw", total, term)
    return b.op("add nsw", total, b.const(elem, e.const)) if e.const else total


def _term(b: Builder, atoms: tuple[Expr, ...], factor: int, syms: Mapping[Sym, Ref], elem: str) -> Ref:
    total = _evaluate(b, atoms[0], syms, elem)
    for atom in atoms[1:]:
        total = b.op("mul nsw", total, _evaluate(b, atom, syms, elem))
    return total if factor == 1 else b.op("mul nsw", total, b.const(elem, factor))


def _divide(b: Builder, e: Quotient, x: Ref, y: Ref) -> Ref:
    """Floor division or modulo; the divisor is positive."""
    if bounds(e.left)[0] >= 0:
        return b.op("udiv" if e.op == "floordiv" else "urem", x, y)
    r = b.op("srem", x, y)
    r = b.select(b.compare("icmp slt", r, b.like(r, 0)), b.op("add", r, y), r)
    return r if e.op == "mod" else b.op("sdiv", b.op("sub", x, r), y)
