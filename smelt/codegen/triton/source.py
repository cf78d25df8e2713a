"""Kernels as Triton source.

A program computes a block of XBLOCK outer points; a stage runs over its own loops in blocks of RBLOCK points (one block
if they fit: a persistent reduction). Outer loops are flattened to one index `x`, the loops of a stage to one index
`r`; index expressions are rewritten over these and simplified, so that contiguous memory stays visibly contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import torch

from smelt.codegen.triton import values
from smelt.codegen.triton.values import NAMES
from smelt.graph.sizes import Size, Sym, affine, free_syms, static, subs
from smelt.loops.ir import (
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    ScanStage,
    Stage,
    Store,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)

PERSISTENT = 8192  # stage points that one block may hold
LOOPED = 2048  # block of a longer stage
POINTWISE = 1024
BLOCK = 4096  # elements of a two-dimensional block

# kind -> combining function, neutral element of floats and of integers (lowest, highest: of the dtype)
KINDS: dict[str, tuple[str, str]] = dict(
    sum=("_add", "zero"), prod=("_multiply", "one"), max=("_maximum", "lowest"), min=("_minimum", "highest"),
    any=("_or", "zero"), all=("_and", "one"), argmax=("_argmax", "lowest"), argmin=("_argmin", "highest"),
)  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """Block sizes (powers of two) and warps of a launch. `r` is 0 when no stage has loops."""

    x: int
    r: int
    warps: int


def triton_source(kernel: Kernel) -> str:
    """Source of a module with `kernel` (a `triton.jit` function) and `launch(*tensors)`, which takes the kernel's
    buffers that are not local, in order, and runs on their device and the current stream."""
    return _Module(kernel).module()


@dataclass
class _Block:
    """A place in the program: loop symbols rewritten over x and r, the mask of existing points, values already named."""

    rewrite: dict[Sym, Size]
    mask: str
    shape: str
    indent: int
    r: str = ""
    names: dict[int, str] = field(default_factory=dict)


class _Module:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.points = prod(static(l.size) for l in kernel.outer)
        self.x = Sym("x", 0, max(self.points - 1, 0))
        self.r = Sym("r", 0, max([_trips(s) for s in kernel.stages] + [1]) - 1)
        self.blocks = _blocks(kernel, self.points)
        self.lines: list[str] = []
        self.count = 0
        self.results: dict[str, str] = {}
        self.outer = _digits(kernel.outer, self.x)
        self.shared: dict[str, str] = {}  # text -> name of what the function's top level computed already

    # ---- the module

    def module(self) -> str:
        for stage in self.kernel.stages:
            self.stage(stage)
        arguments = ", ".join(f"p{i}" for i in range(len(self.kernel.buffers)))
        wide = self._index_type()
        head = [
            "",
            "",
            "@triton.jit",
            f"def kernel({arguments}, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):",
            f"    x = tl.program_id(0).to({wide}) * XBLOCK + tl.arange(0, XBLOCK).to({wide})[:, None]",
            f"    xmask = x < {self.points}",
        ]
        return "\n".join([values.PRELUDE, *head, *self.lines, *self._launcher(), ""])

    def _index_type(self) -> str:
        """int64 only where an offset may need it."""
        top = self.points * max([_trips(s) for s in self.kernel.stages] + [1])
        for stage in self.kernel.stages:
            for e in _stage_indices(stage):
                top = max(top, abs(e) if isinstance(e, int) else max(abs(e.lo), abs(e.hi)))
        return "tl.int32" if top < 1 << 31 else "tl.int64"

    def _launcher(self) -> list[str]:
        passed = [f"p{i}" for i, b in enumerate(self.kernel.buffers) if b.role != "local"]
        lines = ["", "", f"def launch({', '.join(passed)}):"]
        for i, b in enumerate(self.kernel.buffers):
            if b.role == "local":
                size = f"{self.points * static(b.size)}, dtype={b.dtype}, device={passed[0]}.device"
                lines.append(f"    p{i} = torch.empty({size})")
        arguments = ", ".join(f"p{i}" for i in range(len(self.kernel.buffers)))
        blocks = f"XBLOCK={self.blocks.x}, RBLOCK={max(self.blocks.r, 1)}, num_warps={self.blocks.warps}"
        grid = -(-self.points // self.blocks.x)
        if grid:
            lines.append(f"    kernel[({grid},)]({arguments}, {blocks})")
        else:
            lines.append("    pass")
        return lines

    # ---- stages

    def stage(self, stage: Stage) -> None:
        if self.lines and _reads_written(self.kernel, stage):
            self.lines.append("    tl.debug_barrier()")  # what other threads stored in an earlier stage
        if isinstance(stage, MapStage):
            self.map(stage)
        elif isinstance(stage, ReduceStage):
            self.reduce(stage)
        else:
            self.scan(stage)

    def map(self, stage: MapStage) -> None:
        if not stage.loops:
            return self._stores(self._top(), stage.stores)
        self._stores(self._open(stage), stage.stores)

    def _stores(self, at: _Block, stores: Sequence[Store]) -> None:
        computed = [self.value(at, s.value) for s in stores]
        for store, value in zip(stores, computed, strict=True):
            self.store(at, store, value)

    def store(self, at: _Block, store: Store, value: str) -> None:
        target = self.kernel.buffers[store.buffer].dtype
        value = f"tl.broadcast_to({value}, {at.shape})"
        if target is torch.bool:
            value += ".to(tl.int1)"
        self._line(
            at,
            f"tl.store(p{store.buffer} + {self._offset(at, store.buffer, store.index)}, {value}, {at.mask})",
        )

    def _top(self) -> _Block:
        """Once per outer point."""
        return _Block(self.outer, "xmask", "[XBLOCK, 1]", 1)

    def _open(self, stage: Stage) -> _Block:
        """The block of the stage's points; begins the loop over blocks if there are several."""
        trips, wide = _trips(stage), self._index_type()
        rewrite = {**self.outer, **_digits(stage_loops(stage), self.r)}
        looped = self._looped(stage)
        r = "r" if looped else f"r{trips}"
        if looped:
            self.lines.append(f"    for start in range(0, {trips}, RBLOCK):")
        at = _Block(rewrite, f"xmask & {r}mask", "[XBLOCK, RBLOCK]", 2 if looped else 1, r)
        lanes = f"tl.arange(0, RBLOCK).to({wide})[None, :]"
        for line in (f"{r} = start + {lanes}" if looped else f"{r} = {lanes}", f"{r}mask = {r} < {trips}"):
            if looped or line not in self.shared:
                self.shared[line] = r
                self._line(at, line)
        return at

    def _looped(self, stage: Stage) -> bool:
        return _trips(stage) > max(self.blocks.r, 1)

    def reduce(self, stage: ReduceStage) -> None:
        if self._looped(stage):
            return self._reduce_looped(stage)
        at = self._open(stage) if stage.loops else self._top()
        contributions = [self._contribution(at, r) for r in stage.reductions]
        self._stores(at, stage.stores)
        for r, value in zip(stage.reductions, contributions, strict=True):
            self.results[r.name] = self._across(r, value, at.r or "tl.zeros([1, 1], tl.int32)")

    def _reduce_looped(self, stage: ReduceStage) -> None:
        """Accumulators of whole blocks, combined across the block after the loop."""
        accumulators: dict[str, tuple[str, str]] = {}
        for r in stage.reductions:
            acc, where = self._fresh(), self._fresh()
            accumulators[r.name] = acc, where
            neutral = _neutral(r)
            self.lines.append(f"    {acc} = tl.full([XBLOCK, RBLOCK], {neutral}, {_accumulator(r)})")
            if r.kind.startswith("arg"):
                self.lines.append(
                    f"    {where} = tl.full([XBLOCK, RBLOCK], {(1 << 31) - 1}, {self._index_type()})"
                )
        at = self._open(stage)
        for r in stage.reductions:
            acc, where = accumulators[r.name]
            value = self._contribution(at, r)
            function = KINDS[r.kind][0]
            if r.kind.startswith("arg"):
                self._line(
                    at, f"{acc}, {where} = {function}({acc}, {where}, {value}, r + tl.zeros_like({where}))"
                )
            else:
                self._line(at, f"{acc} = {function}({acc}, {value})")
        self._stores(at, stage.stores)
        for r in stage.reductions:
            acc, where = accumulators[r.name]
            self.results[r.name] = self._across(r, acc, where)

    def _contribution(self, at: _Block, r: Reduction) -> str:
        """The value reduced, neutral where there is no point, as a whole block."""
        value = self.value(at, r.value)
        if r.kind in ("any", "all") and r.value.dtype is not torch.bool:
            value = f"({value} != 0)"
        kind = _accumulator(r)
        name = self._fresh()
        if not at.r:
            self._line(at, f"{name} = tl.broadcast_to({value}, [XBLOCK, 1]).to({kind})")
            return name
        block = f"tl.broadcast_to({value}, [XBLOCK, RBLOCK]).to({kind})"
        neutral = f"tl.full([1, 1], {_neutral(r)}, {kind})"
        self._line(at, f"{name} = tl.where({at.mask}, {block}, {neutral})")
        return name

    def _across(self, r: Reduction, block: str, position: str) -> str:
        """Combines a block along its second axis; [XBLOCK, 1], in the dtype of the result."""
        function = KINDS[r.kind][0]
        name = self._fresh()
        if r.kind.startswith("arg"):
            places = f"tl.broadcast_to({position}, {block}.shape)"
            self.lines.append(f"    {name}_value, {name} = tl.reduce(({block}, {places}), 1, {function})")
            self.lines.append(f"    {name} = {name}[:, None].to(tl.int64)")
            return name
        reduced = f"tl.sum({block}, 1)" if r.kind == "sum" else f"tl.reduce({block}, 1, {function})"
        target = "tl.int1" if r.kind in ("any", "all") else NAMES[r.value.dtype]
        self.lines.append(f"    {name} = {reduced}[:, None].to({target})")
        return name

    def scan(self, stage: ScanStage) -> None:
        r = Reduction("scan", stage.kind, stage.store.value)
        carry, function, looped = self._fresh(), KINDS[stage.kind][0], self._looped(stage)
        if looped:
            self.lines.append(f"    {carry} = tl.full([XBLOCK, 1], {_neutral(r)}, {_accumulator(r)})")
        at = self._open(stage)
        value = self._contribution(at, r)
        name = self._fresh()
        self._line(at, f"{name} = tl.associative_scan({value}, 1, {function})")
        if looped:
            self._line(at, f"{name} = {function}({carry}, {name})")
            self._line(at, f"{carry} = {function}({carry}, tl.reduce({value}, 1, {function})[:, None])")
        self.store(at, stage.store, f"{name}.to({NAMES[stage.store.value.dtype]})")

    # ---- values

    def value(self, at: _Block, v: Value) -> str:
        name = at.names.get(id(v))
        if name is None:
            text = self._text(at, v)
            fixed = v.op != "load" or self.kernel.buffers[v.args[0]].role == "in"
            known = self.shared.get(text) if fixed else None
            name = known or self._fresh()
            if known is None:
                self._line(at, f"{name} = {text}")
                if fixed and at.indent == 1:
                    self.shared[text] = name
            at.names[id(v)] = name
        return name

    def _text(self, at: _Block, v: Value) -> str:
        if v.op == "load":
            return self._load(at, *v.args)
        if v.op == "const":
            return values.constant(v.args[0], v.dtype)
        if v.op == "index":
            return f"({self._index(at, v.args[0])} + tl.zeros_like(x)).to(tl.int64)"
        if v.op == "result":
            return self.results[v.args[0]]
        operands = [self.value(at, a) for a in v.args]
        if v.op == "cast":
            return values.cast(operands[0], v.args[0].dtype, v.dtype)
        return values.operation(v.op, v.args[-1].dtype, operands)

    def _load(self, at: _Block, buffer: int, e: Size, condition: Value | None) -> str:
        offset = self._offset(at, buffer, e)
        mask = self._mask_for(at, buffer, e)
        if condition is not None:
            mask = f"{at.mask} & {self.value(at, condition)}"
            offset = f"tl.broadcast_to({offset}, {at.shape})"
        text = f"tl.load(p{buffer} + {offset}, {mask}, other=0)"
        return f"({text} != 0)" if self.kernel.buffers[buffer].dtype is torch.bool else text

    def _mask_for(self, at: _Block, buffer: int, e: Size) -> str:
        """Only the axes that the address varies along, so that the loaded block is no larger than needed."""
        syms = free_syms(self._rewritten(at, e))
        if self.kernel.buffers[buffer].role == "local":
            syms |= {self.x}
        parts = [f"{n}mask" for s, n in ((self.x, "x"), (self.r, at.r)) if s in syms]
        return " & ".join(parts) if parts else "tl.full([1, 1], 1, tl.int1)"

    def _rewritten(self, at: _Block, e: Size) -> Size:
        return subs(e, at.rewrite)

    def _index(self, at: _Block, e: Size) -> str:
        return values.index(self._rewritten(at, e), {self.x: "x", self.r: at.r})

    def _offset(self, at: _Block, buffer: int, e: Size) -> str:
        """A block of offsets (never a scalar, so that the load is a block)."""
        spec = self.kernel.buffers[buffer]
        rewritten = self._rewritten(at, e)
        text = values.index(rewritten, {self.x: "x", self.r: at.r})
        if spec.role == "local":
            text = f"(x * {static(spec.size)} + {text})"
            return text
        return text if free_syms(rewritten) else f"({text} + tl.zeros([1, 1], tl.int32))"

    def _fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def _line(self, at: _Block, text: str) -> None:
        self.lines.append("    " * at.indent + text)


def _trips(stage: Stage) -> int:
    return prod(static(l.size) for l in stage_loops(stage))


def _digits(loops: Sequence[Loop], number: Sym) -> dict[Sym, Size]:
    """Each loop's symbol as an expression of the flattened index."""
    digits: dict[Sym, Size] = {}
    rest: Size = number
    total = prod(static(l.size) for l in loops)
    number_is_exact = number.hi == total - 1
    for position, loop in reversed(list(enumerate(loops))):
        first = position == 0 and number_is_exact
        digits[loop.sym] = rest if first else rest % loop.size
        rest = rest // loop.size
    return digits


def _neutral(r: Reduction) -> str:
    kind = KINDS[r.kind][1]
    dtype = r.value.dtype
    if kind == "zero":
        return "0"
    if kind == "one":
        return "1"
    if dtype.is_floating_point:
        return "float('-inf')" if kind == "lowest" else "float('inf')"
    if dtype is torch.bool:
        return "0" if kind == "lowest" else "1"
    info = torch.iinfo(dtype)
    return str(info.min if kind == "lowest" else info.max)


def _accumulator(r: Reduction) -> str:
    """Narrow floats accumulate in float32 and round once, at the end."""
    if r.kind in ("any", "all"):
        return "tl.int1"
    return "tl.float32" if r.value.dtype in values.NARROW else NAMES[r.value.dtype]


def _stage_indices(stage: Stage) -> list[Size]:
    """Where the stage loads and stores."""
    loads = [v.args[1] for v in walk(stage_values(stage)) if v.op == "load"]
    return [store.index for store in stage_stores(stage)] + loads


def _reads_written(kernel: Kernel, stage: Stage) -> bool:
    """The stage loads a buffer that the kernel writes, so another thread of the program may have written it."""
    loads = (v for v in walk(stage_values(stage)) if v.op == "load")
    return any(kernel.buffers[v.args[0]].role != "in" for v in loads)


def _blocks(kernel: Kernel, points: int) -> Blocks:
    """Heuristic: whole rows in a block while they fit; several short rows together; where neighbouring outer points
    are neighbours in memory and those of a stage are not, wide in x."""
    trips = max([_trips(s) for s in kernel.stages] + [0])
    if all(not stage_loops(s) for s in kernel.stages):
        return Blocks(min(POINTWISE, _power(points)), 0, 4)
    if _outer_is_contiguous(kernel):
        return Blocks(min(64, _power(points)), min(32, _power(trips)), 8)
    r = _power(trips) if trips <= PERSISTENT else LOOPED
    x = max(1, min(BLOCK // 4 // r, 32, _power(points)))
    return Blocks(x, r, 16 if r * x > 4096 else 8 if r * x > 2048 else 4)


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _outer_is_contiguous(kernel: Kernel) -> bool:
    """More accesses are contiguous along an outer loop than along a loop of their stage."""
    score = 0
    for stage in kernel.stages:
        if not stage_loops(stage):
            continue
        for e in _stage_indices(stage):
            score += any(_stride(e, l) == 1 for l in kernel.outer)
            score -= any(_stride(e, l) == 1 for l in stage_loops(stage))
    return score > 0


def _stride(e: Size, loop: Loop) -> Size | None:
    parts = affine(e, loop.sym)
    return parts[0] if parts else None
