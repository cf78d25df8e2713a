"""Kernels as Triton source.

A program computes a block of XBLOCK outer points; a stage runs over its own loops in blocks of RBLOCK points (one block if
they fit: a persistent reduction). Outer loops are flattened to one index `x`, the loops of a stage to one index `r`; index
expressions are rewritten over these and simplified, so that contiguous memory stays visibly contiguous.

Blocks have as few axes as possible: [XBLOCK] for kernels whose stages have no loops, [RBLOCK] for programs of one
outer point (`x` and all values of the outer point are then scalars), otherwise [XBLOCK, RBLOCK]. A condition that is
known to hold for each point of a block is not tested: there is no mask if the blocks divide the range.

A *batched* kernel performs several launches of an elementwise kernel in one (`batched_source`). Its one argument is a table
of 64-bit numbers: the first block of each member, then for each member its number of points and its arguments. A program
looks up the member of its block; the body is the single kernel's. The table is the kernel's parameter itself, 4 KB that the
driver copies at the launch: nothing is copied to the device before, and nothing can be overwritten too early.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import torch

from smelt.codegen.llvm.flat_elementwise import ANY, is_flat
from smelt.codegen.triton import online_softmax, row_loops, value_expressions
from smelt.codegen.triton.approximate_math import cheap
from smelt.codegen.triton.block_sizes import (
    Blocks,
    choose,
    elements,
    of_any_size,
    power,
    stage_indices,
    stage_points,
)
from smelt.codegen.triton.one_hot_sums import Selected, selected
from smelt.codegen.triton.value_expressions import NAMES, TYPES, Dialect, Values
from smelt.loops.kernel_ir import (
    Kernel,
    Lookup,
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
from smelt.loops.row_sums import chunk_rows, digits, parts, row_stage
from smelt.shapes.expr import Quotient, Size, Sym, bounds, ceil_div, free_syms, loop_sym, numel, static, subs

KERNEL = "@triton.jit\ndef kernel("  # begins the kernel, after the helpers of its module
ALIGNED = 16  # the alignment of addresses and sizes for vector loads
TABLE = 500  # slots of 8 bytes: what all drivers take as parameters, 4 KiB, less Triton's own
# At most, of a thread whose kernel loads ahead: with 140, as the driver's linker chose, a multiprocessor had one program of
# 256 threads at a time. Gradients of a layer norm, 65536x4096, on an H200: 3,767 GB/s, else 2,862.
REGISTERS = 128
# Where a thread would add up more numbers one after the other, it adds up sums of some: errors grow with a chain's length.
CHAIN = 16
BEYOND = (1 << 31) - 1  # the first block of an absent member
BATCH_INDEX = 1 << 30  # indices of batched kernels are smaller: none needs 64 bits

_NAME = re.compile(r"\bv\d+\b")

Axes = frozenset[str]  # of a block: those of "x" and "r" along which it varies
X, R, NONE = frozenset("x"), frozenset("r"), frozenset[str]()

# kind -> combining function, neutral element of floats and of integers (lowest, highest: of the dtype)
KINDS: dict[str, tuple[str, str]] = dict(
    sum=("_add", "zero"), prod=("_multiply", "one"), max=("_maximum", "lowest"), min=("_minimum", "highest"),
    any=("_or", "zero"), all=("_and", "one"), argmax=("_argmax", "lowest"), argmin=("_argmin", "highest"),
)  # fmt: skip
OF_BOOLS = dict(sum="_or", prod="_and", max="_or", min="_and")


@dataclass(frozen=True)
class Source:
    """A module with the `triton.jit` function `kernel`, and its launch parameters.

    `kernel`'s arguments are the kernel's buffers that are not local (pointers, or numbers for those passed by value),
    then `points`: the number of outer points, an i64. Program k computes `block` of them from k * block on.
    `signature`: Triton's type of each argument; `aligned`: arguments that are multiples of 16. `constants`: further
    constexpr arguments. `table`: if present, its slots are the only argument (`batched_source`). `stages`: the
    software pipeline depth of a product; 0 for other kernels. `registers`: the limit per thread; 0: none. `sizes`:
    symbols in `points`, whose values are arguments (i64) before `points` (`symbolic_kernels.py`).
    """

    text: str
    points: Size
    block: int
    warps: int
    signature: Mapping[str, str]
    aligned: frozenset[str]
    constants: Mapping[str, int]
    table: Table | None = None
    stages: int = 0
    registers: int = 0
    sizes: tuple[Sym, ...] = ()


@dataclass(frozen=True)
class Table:
    """The argument of a batched kernel, in slots of 8 bytes: `steps` (a power of two) starts, the first block of each
    member, with absent members beyond all blocks; then `parts` times the number of points and the `arguments`."""

    parts: int
    arguments: int

    @property
    def steps(self) -> int:
        """The number of starts that are searched: the maximum number of members, rounded up."""
        return power(self.parts)

    @property
    def slots(self) -> int:
        """The number of slots of the table."""
        return self.steps + self.parts * (1 + self.arguments)


def table_of(kernel: Kernel) -> Table:
    """The table for as many launches of `kernel` as fit."""
    arguments = len(kernel.buffers)
    tables = [Table(min(n, (TABLE - n) // (1 + arguments)), arguments) for n in (32, 64, 128)]
    return max(tables, key=lambda table: table.parts)


def joins(kernel: Kernel) -> bool:
    """Whether launches of the kernel may be members of a batched launch: its code is independent of size."""
    return (
        is_flat(kernel)
        and all(b.role != "local" for b in kernel.buffers)
        and table_of(kernel).parts > 1
        and top_index(kernel) < BATCH_INDEX
    )


def batched_source(
    kernel: Kernel,
    host: frozenset[int] = frozenset(),
    unaligned: frozenset[int] = frozenset(),
    dialect: Dialect = "ptx",
) -> Source:
    """Like `triton_source`, for kernels that `joins` accepts: several launches in one. `unaligned`: buffers that may
    begin at any address. Sizes are multiples of 16 if this kernel's is."""
    return _BatchedKernel(kernel, host, dialect, unaligned).source()


def triton_source(
    kernel: Kernel, host: frozenset[int] = frozenset(), dialect: Dialect = "ptx", blocks: Blocks | None = None
) -> Source:
    """`kernel` as Triton. `host`: its buffers that are passed by value, `in` buffers of one element. `blocks`:
    overrides `block_sizes.choose`.

    Kernels that are elementwise over one loop (`is_flat`) take their size from `points`: the text serves all sizes. A
    `local` buffer must stay in registers: a later stage loads it in the same persistent block and at the index at
    which it was stored. Raises NotImplementedError otherwise.
    """
    printer = Printer if kernel.sums is None else _SiblingSums
    return printer(kernel, host, dialect, blocks).source()


@dataclass
class Position:
    """A position: loop symbols rewritten over x and r, the block's axes there, values that have names."""

    rewrite: dict[Sym, Size]
    axes: Axes
    indent: int
    r: str = ""
    masks: dict[str, str] = field(default_factory=dict)  # axis -> mask of its points; absent if all exist
    names: dict[Value, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # as `Printer.shared`, for this block alone
    x: str = "x"


class Printer:
    """Prints one kernel: expressions over blocks, stage by stage."""

    loads_lines = True  # values that vary along one axis are loaded as a block of that axis

    def __init__(
        self, kernel: Kernel, host: frozenset[int], dialect: Dialect, blocks: Blocks | None = None
    ) -> None:
        self.blocks = blocks or choose(kernel, host)
        self.flat = is_flat(kernel)
        if self.blocks.across is not None:
            kernel = _with_rows(kernel, self.blocks)
        self.kernel, self.host = kernel, host
        self.values = Values(dialect)
        self.points = numel(l.size for l in kernel.outer)
        self.x = Sym("x", 0, ANY) if self.flat else _counted("x", self.points)
        # the axes of outer points: none if a program has a single one
        self.x_axes = NONE if self.blocks.r and self.blocks.x == 1 else X
        self.wide = "tl.int64" if self._is_wide() else "tl.int32"
        self.lines: list[str] = []
        self.count = 0
        self.results: dict[str, str] = {}
        self.outer = digits(kernel.outer, self.x)
        self.strip = 0  # points of the last outer loop if a block lies within it: the others are then scalars
        if self.blocks.r and self.x_axes and len(kernel.outer) > 1 and kernel.sums is None:
            last, size = kernel.outer[-1], kernel.outer[-1].size
            if isinstance(size, int) and size % self.blocks.x == 0:
                self.strip, self.x = size, Sym("x", 0, size - 1)
                row = loop_sym("row", self.points // size)
                self.outer = {**digits(kernel.outer[:-1], row), last.sym: self.x}
        self.shared: dict[str, str] = {}  # text -> name of a value computed at the function's top level
        self.inner: set[str] = set()  # names assigned by a loop over blocks
        self.loop: int | None = None  # the line that opens the loop over blocks, if there is one
        self.in_registers: dict[tuple[int, Size], str] = {}  # (buffer, index) -> the stored value's name
        self.axes_of: dict[str, Axes] = {}  # of named values
        self.cheap = cheap(kernel)
        self.others = _others(kernel.stages)
        self.other_values: dict[Value, str] = {}  # masked loads -> the value at absent points
        self.mutated: set[int] = set()  # buffers whose elements other threads of the program may have written

    # ---- the module

    def source(self) -> Source:
        """The module."""
        stages = list(self.kernel.stages)
        while stages:
            found = online_softmax.first(stages) if self._looped(stages[0]) else None
            if found is None:
                self.stage(stages.pop(0))
            else:
                stage, sums, stages = found
                self._reduce_looped(stage, sums)
        points, block = self.points, self.blocks.x
        if self.blocks.across is not None:  # programs are counted
            points, block = ceil_div(points, block) * self._programs_per_row(), 1
        return self._module(points, block)

    def _module(self, points: Size, block: int) -> Source:
        """The module of the printed kernel."""
        passed = self._passed()
        constants = {"XBLOCK": self.blocks.x, "RBLOCK": max(self.blocks.r, 1)}
        arguments = [*passed, *(f"{name}: tl.constexpr" for name in constants)]
        body = "\n".join([f"{KERNEL}{', '.join(arguments)}):", *self._head(), *self.lines, ""])
        aligned = {name for name, kind in passed.items() if kind.startswith("*")}
        if self.points % ALIGNED == 0:
            aligned.add("points")
        return Source(
            text=f"{self.values.prelude(body)}\n\n{body}",
            points=points,
            block=block,
            warps=self.blocks.warps,
            signature=passed | dict.fromkeys(constants, "constexpr"),
            aligned=frozenset(aligned),
            constants=constants,
            registers=REGISTERS if self.blocks.ahead else 0,
            sizes=self.kernel.sizes,
        )

    def _is_wide(self) -> bool:
        """Whether some index exceeds 32 bits."""
        return top_index(self.kernel) + self.blocks.x >= 1 << 31

    def _size(self, e: Size) -> str:
        """A size, as an expression."""
        return value_expressions.index(e, {s: s.name for s in free_syms(e)}, lambda _, text: f"({text})")

    def _passed(self) -> dict[str, str]:
        """The arguments, with their types."""
        passed = {f"p{i}": self._type(i) for i, b in enumerate(self.kernel.buffers) if b.role != "local"}
        return passed | {"points": "i64"}

    def _type(self, buffer: int) -> str:
        kind = TYPES[self.kernel.buffers[buffer].dtype]
        return kind if buffer in self.host else f"*{kind}"

    def _head(self) -> list[str]:
        program = "tl.program_id(0)" + (".to(tl.int64)" if self.wide == "tl.int64" else "")
        head = []
        if self.blocks.across is not None:
            parts = self._size(self._programs_per_row())
            head = [f"    program = {program}", f"    first = program % {parts} * RBLOCK"]
            program = f"(program // {parts})"
        if not self.x_axes:
            return [*head, f"    x = {program}"]
        if self.strip:
            blocks = self.strip // self.blocks.x
            head.append(f"    row = {program} // {blocks}")
            program = f"({program} % {blocks})"
        bound = f"points.to({self.wide})" if self.flat else self._size(self.points)
        lanes = f"{program} * XBLOCK + tl.arange(0, XBLOCK)"
        lines = self._lanes(
            "x", lanes, bound if "x" in self._masks() else "", bool(self.blocks.r), "[:, None]"
        )
        return head + [f"    {line}" for line in lines]

    def _lanes(self, name: str, lanes: str, bound: str, is_axis: bool, broadcast: str) -> list[str]:
        """Statements for the points of a block and their mask by `bound`: alone (`xs`) and, of two axes, broadcast (`x`)."""
        alone = f"{name}s" if is_axis else name
        masks = [f"{alone}mask = {alone} < {bound}"] if bound else []
        if not is_axis:
            return [f"{alone} = {lanes}", *masks]
        broadcasts = [f"{name}mask = {alone}mask{broadcast}"] if bound else []
        return [f"{alone} = {lanes}", f"{name} = {alone}{broadcast}", *masks, *broadcasts]

    def _programs_per_row(self) -> Size:
        """Programs that share the rows of a block, if the second axis is an outer loop."""
        return ceil_div(trips(self.kernel.stages[0]), self.blocks.r)

    def _masks(self) -> dict[str, str]:
        exact = not self.flat and self.points % self.blocks.x == 0
        return {} if exact or not self.x_axes else {"x": "xmask"}

    # ---- stages

    def stage(self, stage: Stage) -> None:
        """One of the kernel's stages."""
        if isinstance(stage, MapStage):
            at = self._open(stage) if stage.loops else self._top()
            self._ahead(at, stage)
            self._stores(at, stage.stores)
        elif isinstance(stage, ReduceStage):
            self.reduce(stage)
        else:
            self.scan(stage)

    def _ahead(self, at: Position, stage: Stage) -> None:
        """The statements across which a quotient of rows must not be placed: a division has a slow path, across which
        the driver's compiler moves nothing. Loads would wait for it, and conditions would occupy registers meanwhile.
        """
        found = list(walk(stage_values(stage)))
        quotients = [v for v in found if v.op == "div" and v.dtype is torch.float32]
        of_rows = [v for v in quotients if not self._is_along(at, v)] if at.r else []
        if of_rows:
            for v in reversed(found):
                if v.op == "load" and v.args[2] is None:
                    self.value(at, v)
            for v in of_rows:
                self.value(at, v)

    def _is_along(self, at: Position, value: Value) -> bool:
        """Whether it varies along the last axis."""
        found = [v for v in walk([value]) if v.op in ("load", "index")]
        indices = (subs(v.args[1] if v.op == "load" else v.args[0], at.rewrite) for v in found)
        return any("r" in self._axes(e) for e in indices)

    def _stores(self, at: Position, stores: Sequence[Store]) -> None:
        computed = [self.value(at, s.value) for s in stores]
        for store, value in zip(stores, computed, strict=True):
            self.store(at, store, value)

    def store(self, at: Position, store: Store, value: str) -> None:
        """Store the value named `value`."""
        self.in_registers = {key: name for key, name in self.in_registers.items() if key[0] != store.buffer}
        if at.indent == 1 and not store.lookups:
            self.in_registers[store.buffer, subs(store.index, at.rewrite)] = value
        if self.kernel.buffers[store.buffer].role == "local":
            if at.indent > 1:
                raise NotImplementedError("a loop over blocks keeps values, which do not fit into registers")
            return
        self.mutated.add(store.buffer)
        offset = self._offset(at, store.index, at.axes)
        masks = [at.masks[a] for a in sorted(at.masks, reverse=True)]
        conditions = [self._both(at, masks)] if masks else []
        for lookup in store.lookups:
            further, inside = self._looked_up(at, lookup)
            offset = f"{offset} + {further}"
            conditions.append(inside)
        mask = f", {' & '.join(conditions)}" if conditions else ""
        self._line(at, f"tl.store(p{store.buffer} + {offset}, {value}{mask})")

    def _looked_up(self, at: Position, lookup: Lookup) -> tuple[str, str]:
        """A lookup's offset, and the name of the condition that it is in range, which is asserted."""
        value = self.value(at, lookup.value)
        axes = self.axes_of.get(value, NONE)
        inside = self._named(at, f"({value} >= 0) & ({value} < {self._size(lookup.size)})", axes, False)
        masks = [at.masks[a] for a in sorted(axes, reverse=True) if a in at.masks]
        holds = f"{inside} | ({self._both(at, masks)} == 0)" if masks else inside
        self._line(at, f"tl.device_assert({holds}, 'index out of bounds')")
        return f"{value}.to({self.wide}) * {lookup.stride}", inside

    def _top(self) -> Position:
        """Once per outer point."""
        self.loop = None
        return Position(self.outer, self.x_axes, 1, masks=self._masks())

    def _open(self, stage: Stage, turns: int = 1, first: Sequence[str] = ()) -> Position:
        """Open the block of the stage's points; begins the loop over blocks if there are several: over `turns` of them
        in a loop over such segments, each of which begins with the statements `first`."""
        points, looped = trips(stage), self._looped(stage)
        rewrite = {**self.outer, **digits(stage_loops(stage), _counted("r", points))}
        r = "r" if looped else self._axis(points)
        end = self._size(points)
        last = end if isinstance(points, int) else self.values.number(end)
        self.loop = None
        at = Position(rewrite, self.x_axes | R, 1, r, self._masks())
        if looped:
            self.loop = len(self.lines)
            at.indent = 2
            if turns == 1:
                self.lines.append(f"    for start in range(0, {last}, RBLOCK):")
            else:
                at.indent = 3
                self.lines.append(f"    for part in range(0, {last}, RBLOCK * {turns}):")
                self.lines += [f"        {line}" for line in first]
                self.lines.append(
                    f"        for turn in range(0, {self._end_of_segment(points, turns)}, RBLOCK):"
                )
                self._line(at, "start = part + turn")
        wide = ".to(tl.int64)" if self.wide == "tl.int64" else ""
        begin = "start + " if looped else "first + " if self.blocks.across is not None else ""
        bound = ""
        if points % max(turns * self.blocks.r, 1) or not points:
            at.masks["r"], bound = f"{r}mask", end
        lines = self._lanes(r, f"{begin}tl.arange(0, RBLOCK){wide}", bound, bool(self.x_axes), "[None, :]")
        for line in lines:
            if looped or line not in self.shared:
                self._line(at, line)
            if not looped:
                self.shared[line] = r
        return at

    def _axis(self, points: Size) -> str:
        """The name of the points of a stage with so many."""
        return f"r{points}"

    def _end_of_segment(self, points: Size, turns: int) -> str:
        """The end of a row's segment, relative to its beginning."""
        return f"RBLOCK * {turns}"

    def _turns(self, stage: Stage) -> int:
        return _turns(stage_points(stage), self.blocks.r)

    def _looped(self, stage: Stage) -> bool:
        return self.blocks.across is None and stage_points(stage) > max(self.blocks.r, 1)

    def reduce(self, stage: ReduceStage) -> None:
        """Reductions, and the stores of their stage."""
        if self._looped(stage):
            return self._reduce_looped(stage)
        stage = self._select(stage)
        if not stage.reductions and not stage.stores:
            return
        at = self._open(stage) if stage.loops else self._top()
        contributions = [self._contribution(at, r) for r in stage.reductions]
        self._stores(at, stage.stores)
        if at.r:
            self._across_all(
                [(r, value, at.r) for r, value in zip(stage.reductions, contributions, strict=True)]
            )
        else:
            for r, value in zip(stage.reductions, contributions, strict=True):
                self.results[r.name] = self._alone(r, value)

    def _reduce_looped(self, stage: ReduceStage, online_sums: Mapping[str, str] | None = None) -> None:
        """Accumulators of whole blocks, combined across the block after the loop. `online_sums`: sums of exponentials,
        and the maximum below which each is (`online_softmax.py`)."""
        sums = online_sums or {}
        stage = self._select(stage)
        if not stage.reductions and not stage.stores:
            return
        accumulators: dict[str, tuple[str, str]] = {}
        shape = self._shape(self.x_axes | R)
        vector = self._vector()
        for r in stage.reductions:
            acc, where = self._fresh(self.x_axes | R), self._fresh(self.x_axes | R)
            accumulators[r.name] = acc, where
            is_maximum = r.name in sums.values()
            first = online_softmax.LOWEST if is_maximum else _neutral(r)
            lanes = f"[RBLOCK // {vector}]" if vector > 1 and (is_maximum or r.name in sums) else shape
            self.lines.append(f"    {acc} = tl.full({lanes}, {first}, {_accumulator(r)})")
            if r.kind.startswith("arg"):
                self.lines.append(f"    {where} = tl.full({shape}, {(1 << 31) - 1}, {self.wide})")
        partial_sums = {
            r.name: self._fresh(self.x_axes | R)
            for r in stage.reductions
            if _is_sum(r) and r.name not in sums
        }
        turns = self._turns(stage) if partial_sums else 1
        if turns == 1:
            partial_sums = {}
        at = self._open(
            stage, turns, [f"{part} = tl.full({shape}, 0, tl.float32)" for part in partial_sums.values()]
        )
        of_maximum = {maximum: accumulators[total][0] for total, maximum in sums.items()}
        for r in stage.reductions:
            if r.name in sums:  # with its maximum
                continue
            acc, where = accumulators[r.name]
            value = self._contribution(at, r)
            function = _combining(r)
            if r.name in of_maximum and vector > 1:
                self._add_vectors(at, of_maximum[r.name], acc, value, vector)
                continue
            if r.name in of_maximum:
                self._add_below(at, of_maximum[r.name], acc, value)
            if r.kind.startswith("arg"):
                position = f"tl.broadcast_to(r, {shape})" if self.x_axes else "r"
                self._line(at, f"{acc}, {where} = {function}({acc}, {where}, {value}, {position})")
            else:
                acc = partial_sums.get(r.name, acc)
                self._line(at, f"{acc} = {_combined(r, acc, value)}")
        self._stores(at, stage.stores)
        for name, part in partial_sums.items():
            self.lines.append(f"        {accumulators[name][0]} = {accumulators[name][0]} + {part}")
        for total, maximum in sums.items():
            s, m = accumulators[total][0], accumulators[maximum][0]
            self.lines.append(f"    {m} = tl.where({s} == 0.0, float('-inf'), {m})")
        self._across_all([(r, *accumulators[r.name]) for r in stage.reductions if r.name not in sums])
        for r in stage.reductions:
            if r.name in sums:
                acc, where = accumulators[r.name]
                below = f"{accumulators[sums[r.name]][0]} - {self.results[sums[r.name]]}"
                self.lines.append(f"    {acc} = {acc} * {self._exp(below)}")
                self.results[r.name] = self._across(r, acc, where)

    def _vector(self) -> int:
        """Adjacent elements of a row that a thread loads at once, if the block is a segment of one row: sums of
        exponentials (`online_softmax.py`) take them together."""
        return 1 if self.x_axes else elements([b for b in self.kernel.buffers if b.role != "local"])

    def _add_vectors(self, at: Position, total: str, maximum: str, value: str, vector: int) -> None:
        """Add vectors of a block to the sums of exponentials below a maximum each, updating both."""
        text = f"tl.reshape({value}, [RBLOCK // {vector}, {vector}])"
        parts = self._named(at, text, at.axes, fixed=False)
        top = self._named(at, f"_maximum({maximum}, tl.reduce({parts}, 1, _maximum))", at.axes, fixed=False)
        below = self._exp(f"{parts} - {top}[:, None]")
        self._line(at, f"{total} = {total} * {self._exp(f'{maximum} - {top}')} + tl.reduce({below}, 1, _add)")
        self._line(at, f"{maximum} = {top}")

    def _add_below(self, at: Position, total: str, maximum: str, value: str) -> None:
        """Add `value` to a sum of exponentials below a maximum, which is updated afterwards."""
        factor = self._named(at, self._exp(f"-tl.abs({value} - {maximum})"), at.axes, fixed=False)
        above = f"tl.fma({total}, {factor}, 1.0)"
        self._line(at, f"{total} = tl.where({value} > {maximum}, {above}, {total} + {factor})")

    def _exp(self, text: str) -> str:
        """The exponential of addends beside a 1 (`approximate_math.py`)."""
        return self.values.function("fast_exp", torch.float32, [text])

    def _select(self, stage: ReduceStage) -> ReduceStage:
        """The stage without its one-hot sums (`one_hot_sums.py`), whose results are computed."""
        found = {r.name: s for r in stage.reductions if (s := selected(r, stage)) is not None}
        for name, one in found.items():
            self.results[name] = self._one(one)
        return replace(stage, reductions=tuple(r for r in stage.reductions if r.name not in found))

    def _one(self, one: Selected) -> str:
        """The name of the selected value: once per outer point."""
        top = self._top()
        target = self.value(top, one.target)
        axes = self.axes_of.get(target, NONE)
        inside = self._named(top, f"({target} >= 0) & ({target} < {self._size(one.size)})", axes)
        position = self._named(top, f"tl.where({inside}, {target}, 0).to({self.wide})", axes)
        top.rewrite = {**self.outer, one.sym: loop_sym(position, one.size)}
        value = self.value(top, one.value)
        dtype = one.value.dtype
        zero = (
            value_expressions.literal(0, dtype)
            if dtype is torch.float32
            else value_expressions.constant(0, dtype)
        )
        return self._named(top, f"tl.where({inside}, {value}, {zero})", axes | self.axes_of.get(value, NONE))

    def _reduced(self, at: Position, r: Reduction) -> str:
        """The reduced value, in the accumulator's dtype, as a whole block."""
        text = self.value(at, r.value)
        axes = self.axes_of.get(text, NONE)
        if r.kind in ("any", "all") and r.value.dtype is not torch.bool:
            text = f"({text} != 0)"
        elif _accumulator(r) != NAMES[r.value.dtype]:
            text = f"{text}.to({_accumulator(r)})"
        if axes != at.axes:
            text = f"tl.broadcast_to({text}, {self._shape(at.axes)})"
        return text

    def _contribution(self, at: Position, r: Reduction) -> str:
        """The reduced value, neutral at absent points, as a whole block."""
        text = self._reduced(at, r)
        other_value = self.other_values.get(_loaded(r.value))
        # outer points that do not exist are not stored
        if at.r and "r" in at.masks and other_value != _neutral(r):
            text = f"tl.where({at.masks['r']}, {text}, {_typed_neutral(r)})"
        return text if text in self.axes_of else self._named(at, text, at.axes)

    def _across_all(self, blocks: Sequence[tuple[Reduction, str, str]]) -> None:
        """Combine blocks along their last axis, sums in pairs: the threads of a program synchronize once."""
        blocks = [(r, self._of_threads(r, block), position) for r, block, position in blocks]
        sums = [(r, block) for r, block, _ in blocks if _combining(r) == "_add"]
        pairs = list(zip(sums[::2], sums[1::2]))
        for (first, a), (second, b) in pairs:
            axis, column = ("1", "[:, None]") if self.x_axes else ("0", "")
            names = [self._fresh(self.x_axes) for _ in range(2)]
            self.lines.append(f"    {', '.join(names)} = tl.reduce(({a}, {b}), {axis}, _add_both)")
            for r, name in zip((first, second), names):
                if column or _rounding(r):
                    self.lines.append(f"    {name} = {name}{column}{_rounding(r)}")
                self.results[r.name] = name
        for r, block, position in blocks:
            if r.name not in self.results:
                self.results[r.name] = self._across(r, block, position)

    def _of_threads(self, r: Reduction, block: str) -> str:
        """The block or, if each thread has a long chain of it, sums of a thread's elements, down to eight."""
        threads = 32 * self.blocks.warps
        if not _is_sum(r) or self.x_axes or self.blocks.r < 2 * CHAIN * threads:
            return block
        name, width = self._fresh(R), 8 * threads  # a thread has up to eight neighbours, whatever the layout
        shape = f"[RBLOCK // {width}, {width}]"
        self.lines.append(f"    {name} = tl.reduce(tl.reshape({block}, {shape}), 0, _add)")
        return name

    def _across(self, r: Reduction, block: str, position: str) -> str:
        """Combine a block along its last axis; the result varies with x, and has the dtype of the reduction's."""
        function, axis = _combining(r), "1" if self.x_axes else "0"
        column = "[:, None]" if self.x_axes else ""
        name = self._fresh(self.x_axes)
        if r.kind.startswith("arg"):
            if self.axes_of.get(position) != self.axes_of[block]:
                position = f"tl.broadcast_to({position}, {self._shape(self.x_axes | R)})"
            self.lines.append(
                f"    {name}_value, {name} = tl.reduce(({block}, {position}), {axis}, {function})"
            )
            self.lines.append(f"    {name} = {name}{column}.to(tl.int64)")
            return name
        self.lines.append(f"    {name} = tl.reduce({block}, {axis}, {function}){column}{_rounding(r)}")
        return name

    def _alone(self, r: Reduction, value: str) -> str:
        """The reduction of one point."""
        if r.kind.startswith("arg"):
            return self._named(self._top(), "tl.full([], 0, tl.int64)", NONE)
        if not _rounding(r):
            return value
        return self._named(self._top(), f"{value}{_rounding(r)}", self.axes_of[value])

    def scan(self, stage: ScanStage) -> None:
        """A scan with a carry from block to block."""
        r = Reduction("scan", stage.kind, stage.store.value)
        carry, function, looped = self._fresh(self.x_axes), _combining(r), self._looped(stage)
        axis, column = ("1", "[:, None]") if self.x_axes else ("0", "")
        if looped:
            shape = self._shape(self.x_axes) if self.x_axes else "[]"
            self.lines.append(f"    {carry} = tl.full({shape}, {_neutral(r)}, {_accumulator(r)})")
        at = self._open(stage)
        value = self._contribution(at, r)
        name = self._named(at, f"tl.associative_scan({value}, {axis}, {function})", at.axes)
        if looped:
            self._line(at, f"{name} = {_combined(r, carry, name)}")
            whole = f"tl.reduce({value}, {axis}, {function}){column}"
            self._line(at, f"{carry} = {_combined(r, carry, whole)}")
        target = NAMES[stage.store.value.dtype]
        if target != _accumulator(r):
            name = self._named(at, f"{name}.to({target})", at.axes)
        self.store(at, stage.store, name)

    # ---- values

    def value(self, at: Position, v: Value) -> str:
        """The name of `v` at this position."""
        name = at.names.get(v)
        if name is None:
            text, axes = self._text(at, v)
            if text in self.axes_of:  # already a name
                name = text
            else:
                fixed = v.op != "load" or self.kernel.buffers[v.args[0]].role == "in"
                name = self._named(at, text, axes, fixed)
            at.names[v] = name
        return name

    def _named(self, at: Position, text: str, axes: Axes, fixed: bool = True) -> str:
        """A name for `text`; its existing one if it is `fixed`, that is, has the same value wherever it is computed.
        Loop-invariant values of a loop over blocks are hoisted before it (Triton walks its body twice)."""
        hoisted = at.indent == 1 or (fixed and axes <= X and self.inner.isdisjoint(_NAME.findall(text)))
        texts = self.shared if hoisted else at.texts
        known = texts.get(text) if fixed else None
        if known is not None:
            return known
        name = self._fresh(axes)
        if hoisted and self.loop is not None:
            self.lines.insert(self.loop, f"    {name} = {text}")
            self.loop += 1
        else:
            self._line(at, f"{name} = {text}")
        if not hoisted:
            self.inner.add(name)
        if fixed:
            texts[text] = name
        return name

    def _text(self, at: Position, v: Value) -> tuple[str, Axes]:
        if v.op == "load":
            return self._load(at, v)
        if v.op == "const":
            return value_expressions.constant(v.args[0], v.dtype), NONE
        if v.op == "index":
            rewritten = subs(v.args[0], at.rewrite)
            text = self._index(at, rewritten)
            if isinstance(rewritten, int):
                return value_expressions.constant(rewritten, v.dtype), NONE
            return f"{text}.to(tl.int64)", self._axes(rewritten)
        if v.op == "result":
            name = self.results[v.args[0]]
            return name, self.axes_of[name]
        if v.op == "philox":
            return self._philox(at, v)
        if v.op == "eq" and (found := self._is_at(at, v)) is not None:
            return found
        if v.op == "where" and self._is_zero_elsewhere(v):
            return self.value(at, v.args[1]), NONE
        if v in self.cheap.functions:
            name, operand = self.cheap.functions[v]
            argument = self.value(at, operand)
            return self.values.function(name, torch.float32, [argument]), self.axes_of.get(argument, NONE)
        if v in self.cheap.quotients:
            dividend, divisor = (self.value(at, a) for a in v.args)
            inverse = self.values.function("reciprocal", torch.float32, [divisor])
            inverse = self._named(at, inverse, self.axes_of[divisor])
            return f"({dividend} * {inverse})", self.axes_of.get(dividend, NONE) | self.axes_of[divisor]
        dtype = v.args[-1].dtype
        literals = value_expressions.takes_literal(v.op, dtype) and any(a.op != "const" for a in v.args[-2:])
        operands = [
            value_expressions.literal(a.args[0], a.dtype)
            if literals and a.op == "const" and a.dtype == dtype
            else self.value(at, a)
            for a in v.args
        ]
        axes = NONE.union(*(self.axes_of.get(o, NONE) for o in operands))
        if v.op == "cast":
            return value_expressions.cast(operands[0], v.args[0].dtype, v.dtype), axes
        return self.values.operation(v.op, dtype, operands), axes

    def _is_zero_elsewhere(self, v: Value) -> bool:
        """Whether a selection between a masked element and 0 equals the masked load itself."""
        condition, chosen, otherwise = v.args
        while chosen.op == "cast":
            chosen = chosen.args[0]
        reads = chosen.op == "load" and chosen.args[2] is condition and chosen.args[0] not in self.host
        number = otherwise.args[0] if otherwise.op == "const" else None
        return reads and number == 0 and math.copysign(1, number) > 0

    def _is_at(self, at: Position, v: Value) -> tuple[str, Axes] | None:
        """Whether an index of the block equals one that does not vary along it, a 64-bit number: compared in 32 bits,
        half as many instructions per element. None if the comparison has another form."""
        for position, target in (v.args, v.args[::-1]):
            if position.op != "index" or target.op in ("index", "const") or self.wide != "tl.int32":
                continue
            rewritten = subs(position.args[0], at.rewrite)
            (low, high), axes = bounds(rewritten), self._axes(rewritten)
            name = self.value(at, target)
            own = self.axes_of.get(name, NONE)
            if low >= 0 and high < 1 << 31 and own < axes:
                inside = f"({name} >= 0) & ({name} <= {high})"
                narrow = self._named(at, f"tl.where({inside}, {name}, -1).to(tl.int32)", own)
                return f"({self._index(at, rewritten)} == {narrow})", axes
        return None

    def _philox(self, at: Position, v: Value) -> tuple[str, Axes]:
        """A word of a step, which yields four at once: for adjacent elements of one thread it is computed once."""
        operands = [self.value(at, a) for a in v.args[:3]]
        axes = NONE.union(*(self.axes_of.get(o, NONE) for o in operands))
        words, lane = self._named(at, self.values.philox(operands), axes), v.args[3]
        if lane.op == "const":
            return f"{words}[{lane.args[0]}].to(tl.int64)", axes
        chosen, text = self.value(at, lane), f"{words}[3]"
        for k in (2, 1, 0):
            text = f"tl.where({chosen} == {k}, {words}[{k}], {text})"
        return f"{text}.to(tl.int64)", axes | self.axes_of[chosen]

    def _load(self, at: Position, v: Value) -> tuple[str, Axes]:
        buffer, e, condition = v.args
        spec, rewritten = self.kernel.buffers[buffer], subs(e, at.rewrite)
        stored = self.in_registers.get((buffer, rewritten))
        self.other_values.pop(v, None)
        if stored is not None and condition is None:
            return stored, self.axes_of.get(stored, NONE)
        if spec.role == "local":
            raise NotImplementedError(f"the values kept in {spec.name} are not in registers at {e}")
        if buffer in self.mutated:
            self._line(at, "tl.debug_barrier()")
            self.mutated.clear()
        masked = self.value(at, condition) if condition is not None else ""
        if buffer in self.host:
            text = f"tl.where({masked}, p{buffer}, 0).to({NAMES[v.dtype]})" if masked else f"p{buffer}"
            return text, self.axes_of.get(masked, NONE)
        axes = self._axes(rewritten) | self.axes_of.get(masked, NONE)
        computed = not {s.name for s in free_syms(rewritten)}.isdisjoint(self.axes_of)
        other = self.others.get(v) if not masked and "r" in axes else None
        if other is not None:
            self.other_values[v] = other
        other = other or value_expressions.literal(0, v.dtype)
        if (
            len(axes) == 1 and not masked and not computed
            and self.loads_lines and self.blocks.r and self.x_axes
        ):  # fmt: skip
            return self._load_line(at, buffer, rewritten, next(iter(axes)), other), axes
        masks = [at.masks[a] for a in sorted(axes, reverse=True) if a in at.masks]
        mask = self._both(at, masks) if masks else ""
        if masked:
            mask = f"{masked} & {mask}" if mask else masked
        mask = f", {mask}, other={other}" if mask else ""
        return f"tl.load(p{buffer} + {self._offset(at, e, axes)}{mask})", axes

    def _load_line(self, at: Position, buffer: int, rewritten: Size, axis: str, other: str) -> str:
        """A value that varies along one of two axes is loaded as a one-dimensional block and broadcast: threads that
        hold the same elements of a two-dimensional block would each load all of them."""
        names = {
            s: f"{at.r if s.name == 'r' else s.name}s" if s.name == axis else s.name
            for s in free_syms(rewritten)
        }
        offset = value_expressions.index(
            rewritten, names, lambda e, text: self._named(at, text, self._axes(e))
        )
        mask = f", {at.masks[axis][:-4]}smask, other={other}" if axis in at.masks else ""
        return f"tl.load(p{buffer} + {offset}{mask}){'[:, None]' if axis == 'x' else '[None, :]'}"

    def _axes(self, e: Size) -> Axes:
        """The axes along which a rewritten index varies; fewer than its symbols if the program has one outer point."""
        # A computed position varies along the axes of its value.
        of_names = [self.axes_of.get(s.name, NONE) for s in free_syms(e)]
        return NONE.union(*of_names, frozenset(s.name for s in free_syms(e)) & (self.x_axes | R))

    def _shape(self, axes: Axes) -> str:
        if not self.blocks.r:
            return "[XBLOCK]"
        if not self.x_axes:
            return "[RBLOCK]"
        return f"[{'XBLOCK' if 'x' in axes else '1'}, {'RBLOCK' if 'r' in axes else '1'}]"

    def _both(self, at: Position, masks: Sequence[str]) -> str:
        """The conjunction of the masks (one or two, of an axis each)."""
        return masks[0] if len(masks) == 1 else self._named(at, " & ".join(masks), self.x_axes | R)

    def _index(self, at: Position, rewritten: Size) -> str:
        """An index; quotients get names, since many are equal."""

        def named(e: Quotient, text: str) -> str:
            return self._named(at, text, self._axes(e))

        of_axes = {"x": at.x, "r": at.r}
        names = {s: of_axes.get(s.name, s.name) for s in free_syms(rewritten)}
        return value_expressions.index(rewritten, names, named)

    def _offset(self, at: Position, e: Size, axes: Axes) -> str:
        """A block of offsets with these axes."""
        rewritten = subs(e, at.rewrite)
        text = self._index(at, rewritten)
        if self._axes(rewritten) == axes:
            return text if text.isalnum() else self._named(at, text, axes)
        if isinstance(rewritten, int):
            return f"tl.full({self._shape(axes)}, {text}, {self.wide})"
        return f"tl.broadcast_to({text}, {self._shape(axes)})"

    def _fresh(self, axes: Axes) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.axes_of[name] = axes
        return name

    def _line(self, at: Position, text: str) -> None:
        self.lines.append("    " * at.indent + text)


class _BatchedKernel(Printer):
    """The same body with a prologue that reads arguments from the table."""

    def __init__(
        self, kernel: Kernel, host: frozenset[int], dialect: Dialect, unaligned: frozenset[int]
    ) -> None:
        super().__init__(kernel, host, dialect, of_any_size(kernel, host))
        self.unaligned = unaligned
        self.table = table_of(kernel)

    def source(self) -> Source:
        return replace(super().source(), aligned=frozenset(), table=self.table)

    def _passed(self) -> dict[str, str]:
        return {"table": "i64" if self.values.dialect == "ptx" else "*i64"}

    def _head(self) -> list[str]:
        points = f"points = {self._slot('fields')}"
        if self.points % ALIGNED == 0:
            points = f"points = tl.multiple_of({self._slot('fields')}, {ALIGNED})"
        return [
            "    block = tl.program_id(0)",
            *(f"    {line}" for line in self.values.search("table", self.table.steps, "part", "block")),
            f"    fields = part * {1 + self.table.arguments} + {self.table.steps}",
            f"    {points}",
            *(f"    p{i} = {self._argument(i)}" for i in range(self.table.arguments)),
            f"    block -= {self._slot('part')}.to(tl.int32)",
            "    x = block * XBLOCK + tl.arange(0, XBLOCK)",
            f"    xmask = x < points.to({self.wide})",
        ]

    def _argument(self, buffer: int) -> str:
        slot, dtype = self._slot(f"fields + {buffer + 1}"), self.kernel.buffers[buffer].dtype
        if buffer in self.host:
            return value_expressions.from_bits(slot, dtype)
        pointer = f"{slot}.to(tl.pointer_type({NAMES[dtype]}))"
        return pointer if buffer in self.unaligned else f"tl.multiple_of({pointer}, {ALIGNED})"

    def _slot(self, position: str) -> str:
        return self.values.slot("table", position)


class _SiblingSums(Printer):
    """Rows with sibling sums (`loops.row_sums`). A program has a chunk of rows and walks XBLOCK of them at a time:
    their contributions accumulate in a block, which is stored at the end."""

    def source(self) -> Source:
        for stage in self.kernel.stages:
            self.stage(stage)
        moved = row_stage(self.kernel)
        at = self._open(moved)
        blocks = {r.name: self._fresh(at.axes) for r in moved.reductions}
        for r in moved.reductions:
            self._line(at, f"{blocks[r.name]} = {_combined(r, blocks[r.name], self._addend(at, r))}")
        self._stores(at, moved.stores)
        first = [
            f"    {blocks[r.name]} = tl.full({self._shape(at.axes)}, {_neutral(r)}, {_accumulator(r)})"
            for r in moved.reductions
        ]
        self.lines = self._loop(first, frozenset(blocks.values()))
        for r in moved.reductions:
            self.results[r.name] = self._down(r, blocks[r.name])
        return self._stored(at, stage_points(moved))

    def _stored(self, at: Position, width: int) -> Source:
        """Store the sums of the chunk, once."""
        sums = self.kernel.sums
        assert sums is not None
        (chunk, *columns), (_, stage) = sums.outer, sums.stages
        number = Sym("chunk", 0, static(chunk.size) - 1)
        masks = {axis: mask for axis, mask in at.masks.items() if axis == "r"}
        rewrite = {chunk.sym: number, **digits(columns, _counted("r", width))}
        self._stores(Position(rewrite, R, 1, at.r, masks), stage_stores(stage))
        return self._module(static(chunk.size), 1)

    def _addend(self, at: Position, r: Reduction) -> str:
        """The contribution of a block's rows; absent rows contribute nothing. Absent columns are not stored."""
        text = self._reduced(at, r)
        if "x" in at.masks:
            text = f"tl.where({at.masks['x']}, {text}, {_typed_neutral(r)})"
        return text

    def _down(self, r: Reduction, block: str) -> str:
        """Combine a block along its rows; the result has the dtype of the reduction's."""
        target = "tl.int1" if r.kind in ("any", "all") else NAMES[r.value.dtype]
        rounded = "" if target == _accumulator(r) else f".to({target})"
        name = self._fresh(R)
        text = f"tl.reduce({block}, 0, {_combining(r)})[None, :]" if self.x_axes else block
        self.lines.append(f"    {name} = {text}{rounded}")
        return name

    def _loop(self, first: Sequence[str], blocks: frozenset[str]) -> list[str]:
        """One block of rows, as a loop over those of a chunk. `first`: the statements that begin the blocks."""
        of_rows = frozenset(("x", "xs", "xmask", "xsmask"))
        before, inside = row_loops.hoist(row_loops.statements(self.lines), of_rows | blocks)
        read = frozenset(i for i, b in enumerate(self.kernel.buffers) if b.role == "in")
        early = row_loops.ahead(inside, of_rows, read) if self.blocks.ahead else []
        loads = [s for s in early if row_loops.is_load(s)]
        lines = [*(s.text for s in before), *first]
        body = self._rows("k")
        if loads:
            loaded = frozenset(s.names[0] for s in loads)
            where = of_rows | frozenset(s.names[0] for s in early) - loaded
            lines += self._next_rows("0", early, loaded, where, "_first")
            last = "count" if "x" in self._masks() else "count - XBLOCK"
            body += [f"    {s.names[0]} = {s.names[0]}_next" for s in loads]
            body += [f"    k_next = tl.minimum(k + XBLOCK, {last})"]
            body += self._next_rows("k_next", early, loaded, where, "_next")
        body += [s.text for s in inside if s not in loads]
        return [*lines, f"    for k in range(0, {self._count()}, XBLOCK):", *(f"    {line}" for line in body)]

    def _next_rows(
        self,
        k: str,
        early: Sequence[row_loops.Statement],
        loaded: frozenset[str],
        where: frozenset[str],
        suffix: str,
    ) -> list[str]:
        """Statements that load the rows from the k-th on under other names: a `loaded` name gets the suffix `_next`."""
        lines = [*self._rows(k), *(s.text for s in early)]
        return [
            row_loops.suffixed(row_loops.suffixed(line, where, suffix), loaded, "_next") for line in lines
        ]

    def _rows(self, k: str) -> list[str]:
        """Statements for the block of rows from the k-th of the chunk on."""
        if not self.x_axes:
            return [f"    x = begin + {k}"]
        bound = "begin + count" if "x" in self._masks() else ""
        lines = self._lanes("x", f"begin + {k} + tl.arange(0, XBLOCK)", bound, True, "[:, None]")
        return [f"    {line}" for line in lines]

    def _head(self) -> list[str]:
        wide = ".to(tl.int64)" if self.wide == "tl.int64" else ""
        size, exact = self._chunk()
        count = str(size) if exact else f"tl.minimum({self.points} - begin, {size})"
        return [f"    chunk = tl.program_id(0){wide}", f"    begin = chunk * {size}", f"    count = {count}"]

    def _count(self) -> str:
        """The number of rows of the chunk, as the bound of a loop."""
        size, exact = self._chunk()
        return str(size) if exact else self.values.number("count")

    def _chunk(self) -> tuple[int, bool]:
        """The number of rows per chunk, and whether all chunks are full."""
        sums = self.kernel.sums
        assert sums is not None
        size = chunk_rows(sums)
        return size, size * static(sums.outer[0].size) == self.points

    def _masks(self) -> dict[str, str]:
        size, exact = self._chunk()
        return {} if (exact and size % self.blocks.x == 0) or not self.x_axes else {"x": "xmask"}


def top_index(kernel: Kernel) -> int:
    """The largest number that an index computes with, except for the remainder of a block."""
    points = prod(static(l.size) for l in kernel.outer)
    top = points * max([stage_points(s) for s in kernel.stages] + [1])
    for stage in (stage for part in parts(kernel) for stage in part.stages):
        for e in stage_indices(stage):
            top = max(top, abs(e) if isinstance(e, int) else max(abs(e.lo), abs(e.hi)))
        for store in stage_stores(stage):
            top = max(top, bounds(store.index)[1] + sum(l.stride * (l.size - 1) for l in store.lookups))
    return top


def _with_rows(kernel: Kernel, blocks: Blocks) -> Kernel:
    """An elementwise kernel whose stage loops over the second axis of `blocks`."""
    assert blocks.across is not None
    (stage,) = kernel.stages
    assert isinstance(stage, MapStage) and not stage.loops
    return replace(kernel, outer=blocks.outer, stages=(MapStage((blocks.across,), stage.stores),))


def _counted(name: str, points: Size) -> Sym:
    """The symbol that counts so many points; zero points count as one."""
    return Sym(name, 0, max(points - 1, 0)) if isinstance(points, int) else loop_sym(name, points)


def trips(stage: Stage) -> Size:
    """The number of points of the stage's own loops."""
    return numel(l.size for l in stage_loops(stage))


def _others(stages: Sequence[Stage]) -> dict[Value, str]:
    """The values of loads at absent points, for maxima and minima of loaded values, which then need no selection. All
    other values at such points are not stored, and are selected away where they are reduced."""
    found: dict[Value, str] = {}
    for r in (r for stage in stages if isinstance(stage, ReduceStage) for r in stage.reductions):
        loaded = _loaded(r.value)
        if r.kind in ("max", "min") and loaded.op == "load" and loaded.args[2] is None:
            if loaded.dtype.is_floating_point:
                found.setdefault(loaded, _neutral(r))
    return found


def _loaded(value: Value) -> Value:
    """The load behind a conversion that preserves infinities."""
    wider = value.op == "cast" and value.dtype.is_floating_point and value.args[0].dtype.is_floating_point
    return value.args[0] if wider else value


def _combining(r: Reduction) -> str:
    return OF_BOOLS.get(r.kind, KINDS[r.kind][0]) if r.value.dtype is torch.bool else KINDS[r.kind][0]


def _is_sum(r: Reduction) -> bool:
    """Whether it sums float32 numbers."""
    return _combining(r) == "_add" and _accumulator(r) == "tl.float32"


def _turns(points: int, block: int) -> int:
    """The number of blocks of a row that are summed separately, so that neither they nor such segments are many; 1 if
    there are few. Of the numbers near the square root, the one that fills the last segment best."""
    blocks = -(-points // block)
    if blocks <= CHAIN or points > BATCH_INDEX:  # so that no index in the last segment exceeds 32 bits
        return 1
    root = math.isqrt(blocks)
    return min(range(root, 2 * root), key=lambda turns: -blocks % turns)


def _combined(r: Reduction, a: str, b: str) -> str:
    """The result of the combining function as an expression."""
    infix = {"_add": "+", "_multiply": "*", "_or": "|", "_and": "&"}.get(_combining(r))
    return f"({a} {infix} {b})" if infix else f"{_combining(r)}({a}, {b})"


def _neutral(r: Reduction) -> str:
    kind = KINDS[r.kind][1]
    dtype = r.value.dtype
    if kind in ("zero", "one"):
        return "0" if kind == "zero" else "1"
    if dtype.is_floating_point:
        return "float('-inf')" if kind == "lowest" else "float('inf')"
    if dtype is torch.bool:
        return "0" if kind == "lowest" else "1"
    info = torch.iinfo(dtype)
    return str(info.min if kind == "lowest" else info.max)


def _typed_neutral(r: Reduction) -> str:
    """The neutral element; a number if that has the accumulator's dtype."""
    if _accumulator(r) == "tl.float32":
        return {"0": "0.0", "1": "1.0"}.get(_neutral(r), _neutral(r))
    return f"tl.full([], {_neutral(r)}, {_accumulator(r)})"


def _accumulator(r: Reduction) -> str:
    """The accumulator's dtype: narrow floats accumulate in float32 and round once, at the end."""
    if r.kind in ("any", "all"):
        return "tl.int1"
    return "tl.float32" if r.value.dtype in value_expressions.NARROW else NAMES[r.value.dtype]


def _rounding(r: Reduction) -> str:
    """The conversion of an accumulator to the reduction's dtype; empty if it has it."""
    target = "tl.int1" if r.kind in ("any", "all") else NAMES[r.value.dtype]
    return "" if target == _accumulator(r) else f".to({target})"
