"""Generated attention for the tests of GPU code: as `TiledAttention`s, as loops that mean the same, with tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from smelt.codegen.llvm.gemm.epilogue import BATCH, COL, ROW
from smelt.codegen.triton.attention_kernel import ATTENTION, SCORE, TiledAttention
from smelt.codegen.triton.block_gemm import Operand, counted
from smelt.loops.kernel_ir import (
    Buffer,
    Kernel,
    Loop,
    MapStage,
    ReduceStage,
    Reduction,
    Store,
    Value,
    stage_stores,
    stage_values,
    walk,
)
from smelt.loops.loop_values import Moved
from smelt.shapes.expr import Size, Sym, subs
from tests.harness import kernel_interpreter
from tests.harness.kernels import const, op
from tests.harness.products import cast

f16, f32 = torch.float16, torch.float32
QUERIES, KEYS, WIDTH = 21, 27, 11  # no multiples of blocks
Score = Callable[[Value, Callable[[torch.dtype, Size], Value]], Value]


@dataclass(frozen=True)
class Case:
    """Sizes, dtypes, how the operands lie in memory, and the score function: of the product and a function that loads a
    further input of a dtype at an index."""

    batch: int = 2
    queries: int = QUERIES
    keys: int = KEYS
    head: int = 10
    width: int = WIDTH
    dtype: torch.dtype = f16
    given: torch.dtype | None = None  # operands that are converted as they are read
    groups: int = 1  # heads that share keys and values
    packed: bool = False  # heads lie beside each other
    score: Score = lambda s, load: s
    empty: float = float("nan")
    key_bound: int | None = None
    out: torch.dtype | None = None

    def attention(self) -> TiledAttention:
        """As code generation takes it."""
        given = self.given or self.dtype
        inputs: list[Buffer] = []

        def load(dtype: torch.dtype, index: Size) -> Value:
            inputs.append(Buffer(f"in{len(inputs)}", dtype, "in"))
            return Value("load", (len(inputs) - 1, index, None), dtype)

        def operand(name: str, batch: Size, row: Size, column: Size, rows: int, columns: int) -> Operand:
            if self.packed:  # [row, batch, column]
                index = row * (self.batch * columns) + batch * columns + column
            else:
                index = batch * (rows * columns) + row * columns + column
            return Operand(
                (Buffer(name, given, "in"),), cast(Value("load", (0, index, None), given), self.dtype)
            )

        shared = BATCH // self.groups if self.groups > 1 else BATCH
        score = self.score(Value("result", (SCORE,), f32), load)
        return TiledAttention(
            "attention", self.batch, self.queries, self.keys, self.head, self.width,
            operand("q", BATCH, ROW, COL, self.queries, self.head),
            operand("k", shared, COL, ROW, self.keys, self.head),
            operand("v", shared, ROW, COL, self.keys, self.width),
            tuple(inputs), score, (), cast(Value("result", (ATTENTION,), f32), self.out or self.dtype),
            BATCH * (self.queries * self.width) + ROW * self.width + COL, self.empty, self.key_bound,
        )  # fmt: skip

    def tensors(self, device: str = "cpu") -> list[torch.Tensor]:
        """Flat memory for all buffers, the result's filled with 7 and as many elements longer as a tile may go too far."""
        a = self.attention()
        sizes = {"q": a.queries * a.head, "k": a.keys * a.head, "v": a.keys * a.width}
        made = []
        for buffer in a.buffers[:-1]:
            x = torch.randn(a.batch * sizes.get(buffer.name, a.queries * a.keys), device=device)
            made.append((x > 0) if buffer.dtype is torch.bool else x.to(buffer.dtype))
        out = torch.full((a.batch * a.queries * a.width + 512,), 7.0, device=device)
        return [*made, out.to(a.value.dtype)]


def as_loops(a: TiledAttention) -> list[tuple[Kernel, tuple[int, ...]]]:
    """What `a` means: scores, their softmax and its product with the values, one kernel behind the other, with the buffers
    of each: those of `a`, then the scores and the probabilities, of float32."""
    sizes = {"batch": a.batch, "query": a.queries, "key": a.keys, "step": a.head, "place": a.width}
    syms = {name: Sym(name, 0, max(size - 1, 0)) for name, size in sizes.items()}
    loops = {name: Loop(sym, sizes[name]) for name, sym in syms.items()}
    batch, query, key, step, place = syms.values()

    def at(value: Value, first: int, row: Sym, column: Sym) -> Value:
        return counted(value, first, {BATCH: batch, ROW: row, COL: column})

    def product(x: Value, y: Value) -> Value:
        return Value("mul", (cast(x, f32), cast(y, f32)), f32)

    q, k, v, scores, inputs = a.firsts
    flat: Size = batch * (a.queries * a.keys) + query * a.keys + key
    held = (*a.buffers[:-1], Buffer("scores", f32, "out"))
    term = product(at(a.q.value, q, query, step), at(a.k.value, k, step, key))
    first = Kernel(
        "scores", held, (loops["batch"], loops["query"], loops["key"]),
        (
            ReduceStage((loops["step"],), (Reduction(SCORE, "sum", term),)),
            MapStage((), (Store(len(held) - 1, flat, at(a.score, scores, query, key)),)),
        ),
    )  # fmt: skip
    s = Value("load", (0, flat, None), f32)
    most, total = Value("result", ("most",), f32), Value("result", ("total",), f32)
    e = op("exp", s - most)
    p = op("div", e, total)
    if a.empty == 0:
        nothing = op("eq", most, const(float("-inf")), dtype=torch.bool)
        p = op("where", nothing, const(0.0), p)
    second = Kernel(
        "softmax", (Buffer("scores", f32, "in"), Buffer("p", f32, "out")), (loops["batch"], loops["query"]),
        (
            ReduceStage((loops["key"],), (Reduction("most", "max", s),)),
            ReduceStage((loops["key"],), (Reduction("total", "sum", e),)),
            MapStage((loops["key"],), (Store(1, flat, p),)),
        ),
    )  # fmt: skip
    n = len(a.buffers)
    term = product(Value("load", (n, flat, None), f32), at(a.v.value, v, key, place))
    index = subs(a.index, {BATCH: batch, ROW: query, COL: place})
    third = Kernel(
        "values", (*a.buffers, Buffer("p", f32, "in")), (loops["batch"], loops["query"], loops["place"]),
        (
            ReduceStage((loops["key"],), (Reduction(ATTENTION, "sum", term),)),
            MapStage((), (Store(n - 1, index, at(a.value, inputs, query, place)),)),
        ),
    )  # fmt: skip
    made = [(first, (*range(n - 1), n)), (second, (n, n + 1)), (third, (*range(n), n + 1))]
    return [_of_what_it_uses(kernel, numbers) for kernel, numbers in made]


def _of_what_it_uses(kernel: Kernel, numbers: tuple[int, ...]) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel without buffers that it does not use, and what numbers the others have."""
    values = [v for stage in kernel.stages for v in stage_values(stage)]
    loaded = {v.args[0] for v in walk(values) if v.op == "load"}
    used = sorted(loaded | {store.buffer for stage in kernel.stages for store in stage_stores(stage)})
    moved = Moved({}, used.index)
    stages = []
    for stage in kernel.stages:
        stores = tuple(
            replace(s.moved(moved.index, moved.value), buffer=used.index(s.buffer)) for s in stage.stores
        )
        if isinstance(stage, ReduceStage):
            reductions = tuple(replace(r, value=moved.value(r.value)) for r in stage.reductions)
            stages.append(ReduceStage(stage.loops, reductions, stores))
        else:
            stages.append(MapStage(stage.loops, stores))
    buffers = tuple(kernel.buffers[n] for n in used)
    return replace(kernel, buffers=buffers, stages=tuple(stages)), tuple(numbers[n] for n in used)


def interpret_loops(a: TiledAttention, tensors: list[torch.Tensor]) -> None:
    """Writes what `a` gives into the last one."""
    between = [torch.zeros(a.batch * a.queries * a.keys) for _ in range(2)]
    memory = [*tensors, *between]
    for kernel, used in as_loops(a):
        kernel_interpreter.run(kernel, [memory[i] for i in used])
