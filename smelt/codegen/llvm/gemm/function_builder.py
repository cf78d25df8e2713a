"""LLVM IR text of functions that generated matrix products share: integers, pointers, loops, vectors of a tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from smelt.codegen.llvm.gemm.gemm_tiling import Tile


def _operation(name: str) -> Callable[[FunctionText, str | int, str | int], str]:
    return lambda text, a, b: text.let(f"{name} i64 {a}, {b}")


class FunctionText:
    """The body of one function under construction. Values are names such as `%7`; blocks are opened by `label`."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0
        self.block = ""
        self.label("entry")

    def name(self, stem: str = "v") -> str:
        """A name that is unused in the function."""
        self._count += 1
        return f"{stem}{self._count}"

    def let(self, expression: str) -> str:
        """Assign the value of `expression` to a new name."""
        value = f"%{self.name()}"
        self.lines.append(f"  {value} = {expression}")
        return value

    def do(self, statement: str) -> None:
        """Append an instruction without a result (or one that names it)."""
        self.lines.append(f"  {statement}")

    def label(self, name: str) -> None:
        """Open a block; the previous one must be terminated."""
        self.lines.append(f"{name}:")
        self.block = name

    # Integer and pointer arithmetic of 64 bits, which wraps; operands are names or Python integers. Divisions are of
    # non-negative numbers.
    add, sub, mul = _operation("add"), _operation("sub"), _operation("mul")
    div, rem = _operation("udiv"), _operation("urem")

    def test(self, predicate: str, a: str | int, b: str | int) -> str:
        """An i1, by one of LLVM's integer predicates (`slt`, `eq`, ...)."""
        return self.let(f"icmp {predicate} i64 {a}, {b}")

    def choose(self, condition: str, a: str | int, b: str | int, type: str = "i64") -> str:
        """`a` if `condition` (i1) holds, else `b`."""
        return self.let(f"select i1 {condition}, {type} {a}, {type} {b}")

    def least(self, a: str | int, b: str | int) -> str:
        """The smaller of two signed numbers."""
        return self.choose(self.test("slt", a, b), a, b)

    def at(self, pointer: str, *offsets: str | int) -> str:
        """`pointer` plus the sum of byte offsets."""
        for offset in offsets:
            pointer = self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        return pointer

    def load(self, type: str, pointer: str, align: int) -> str:
        """The value of `type` at `pointer`, aligned to `align` bytes."""
        return self.let(f"load {type}, ptr {pointer}, align {align}")

    def store(self, type: str, value: str, pointer: str, align: int) -> None:
        """Store `value` at `pointer`, aligned to `align` bytes."""
        self.do(f"store {type} {value}, ptr {pointer}, align {align}")

    @contextmanager
    def loop(self, begin: str | int, end: str | int, step: str | int = 1) -> Iterator[str]:
        """Open `for i in range(begin, end, step)`; yields i. The body may open blocks of its own."""
        head, body, latch, done = (self.name(stem) for stem in ("head", "body", "latch", "done"))
        index, following, before = f"%{self.name('i')}", f"%{self.name('i')}", self.block
        self.do(f"br label %{head}")
        self.label(head)
        self.do(f"{index} = phi i64 [{begin}, %{before}], [{following}, %{latch}]")
        self.do(f"br i1 {self.test('slt', index, end)}, label %{body}, label %{done}")
        self.label(body)
        yield index
        self.do(f"br label %{latch}")
        self.label(latch)
        self.do(f"{following} = add i64 {index}, {step}")
        self.do(f"br label %{head}")
        self.label(done)

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Execute the body if `condition` (i1) holds."""
        then, done = self.name("then"), self.name("done")
        self.do(f"br i1 {condition}, label %{then}, label %{done}")
        self.label(then)
        yield
        self.do(f"br label %{done}")
        self.label(done)

    def function(self, name: str, parameters: str, attributes: str = "") -> str:
        """The finished function definition, which returns void."""
        return (
            f"define void @{name}({parameters}) nounwind {attributes} {{\n"
            + "\n".join(self.lines)
            + "\n  ret void\n}\n"
        )


def splat(t: FunctionText, tile: Tile, scalar: str) -> str:
    """A vector whose lanes are all `scalar`."""
    one = t.let(f"insertelement {tile.vector} poison, {tile.scalar} {scalar}, i64 0")
    return t.let(
        f"shufflevector {tile.vector} {one}, {tile.vector} poison, <{tile.lanes} x i32> zeroinitializer"
    )


def first_lanes(t: FunctionText, tile: Tile, count: str) -> str:
    """The mask of lanes below `count` (any i64; negative: none)."""
    one = t.let(f"insertelement <{tile.lanes} x i64> poison, i64 {count}, i64 0")
    zeros = f"<{tile.lanes} x i32> zeroinitializer"
    all_ = t.let(f"shufflevector <{tile.lanes} x i64> {one}, <{tile.lanes} x i64> poison, {zeros}")
    lanes = ", ".join(f"i64 {i}" for i in range(tile.lanes))
    return t.let(f"icmp slt <{tile.lanes} x i64> <{lanes}>, {all_}")


def masked_load(t: FunctionText, tile: Tile, pointer: str, mask: str) -> str:
    """A vector from `pointer` in the lanes of `mask`; the other lanes are 0 and access no memory."""
    return t.let(
        f"call {tile.vector} @llvm.masked.load.{overload(tile)}.p0(ptr align {tile.size} {pointer}, {tile.mask} {mask}, "
        f"{tile.vector} zeroinitializer)"
    )


def prefetch(t: FunctionText, pointer: str) -> None:
    """Prefetch into L2 and beyond: the data is read once, some thousand cycles later. Never faults."""
    t.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def overload(tile: Tile) -> str:
    """The tile's vector type as suffix of LLVM intrinsics."""
    return f"v{tile.lanes}f{tile.size * 8}"


def declarations(tile: Tile) -> str:
    """The declarations of the intrinsics that the library's functions call."""
    v, name = tile.vector, overload(tile)
    return (
        f"declare {v} @llvm.fmuladd.{name}({v}, {v}, {v})\n"
        f"declare {v} @llvm.masked.load.{name}.p0(ptr, {tile.mask}, {v})\n"
        f"declare void @llvm.masked.store.{name}.p0({v}, ptr, {tile.mask})\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
    )
