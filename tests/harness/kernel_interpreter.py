"""The reference interpreter: runs a `Kernel` on torch tensors, all loop points at once on index grids.

It is slow and literal. Code generators are tested against it, and it is tested against eager.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch

from smelt.loops.kernel_ir import Kernel, Loop, MapStage, ReduceStage, Reduction, ScanStage, Store, Value
from smelt.loops.kernel_sizes import at_sizes
from smelt.loops.philox import philox
from smelt.loops.row_sums import parts
from smelt.shapes.expr import Size, Sym, evaluate, static

Grid = dict[Sym, torch.Tensor]

_RENAMED: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg, "div": torch.true_divide, "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"), "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift, "fma": lambda a, b, c: a * b + c,
    "philox": philox, "device_log": torch.log, "fast_log": torch.log, "fast_sin": torch.sin, "fast_cos": torch.cos,
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda v: v.sum(-1, dtype=v.dtype), "prod": lambda v: v.prod(-1, dtype=v.dtype),
    "max": lambda v: v.amax(-1), "min": lambda v: v.amin(-1),
    "argmax": lambda v: v.argmax(-1), "argmin": lambda v: v.argmin(-1),
    "any": lambda v: v.any(-1), "all": lambda v: v.all(-1),
}  # fmt: skip
_SCANS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.cumsum, "prod": torch.cumprod, "max": lambda v, d, dtype: torch.cummax(v, d).values,
}  # fmt: skip


def run(
    kernel: Kernel, buffers: Sequence[torch.Tensor | None], sizes: Mapping[Sym, int] | None = None
) -> None:
    """Execute `kernel`. `buffers[i]`: the i-th argument (None for a local buffer); `sizes`: values of the symbols.
    Outputs are written in place."""
    for part in parts(at_sizes(kernel, sizes or {})):
        _Run(part, buffers).stages()


class _Run:
    """Arrays have shape (outer points, stage points); `results` and locals have one row for each outer point."""

    def __init__(self, kernel: Kernel, buffers: Sequence[torch.Tensor | None]) -> None:
        self.kernel = kernel
        self.outer = _points(kernel.outer)
        self.results: dict[str, torch.Tensor] = {}
        self.memory: list[torch.Tensor] = []
        for spec, tensor in zip(kernel.buffers, buffers, strict=True):
            self.memory.append(self.local(spec.size, spec.dtype) if spec.role == "local" else _flat(tensor))
            assert tensor is None or tensor.dtype is spec.dtype, (
                f"{spec.name}: {tensor.dtype} for {spec.dtype}"
            )

    def local(self, size: Size, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(self.outer, static(size), dtype=dtype)

    def stages(self) -> None:
        for stage in self.kernel.stages:
            if isinstance(stage, MapStage):
                self.map(stage)
            elif isinstance(stage, ReduceStage):
                grid = self.grid(stage.loops)
                done = {r.name: self.reduce(r, grid, _points(stage.loops)) for r in stage.reductions}
                self.results.update(done)
                self.store_all(stage.stores, grid, _points(stage.loops))
            else:
                self.scan(stage)

    def grid(self, loops: Sequence[Loop]) -> Grid:
        """The value of every loop symbol at every point: outer symbols vary along dim 0, the stage's along dim 1."""
        outer = torch.arange(self.outer).unsqueeze(1)
        inner = torch.arange(_points(loops)).unsqueeze(0)
        return _digits(self.kernel.outer, outer) | _digits(loops, inner)

    def map(self, stage: MapStage) -> None:
        self.store_all(stage.stores, self.grid(stage.loops), _points(stage.loops))

    def store_all(self, stores: Sequence[Store], grid: Grid, points: int) -> None:
        values = [self.full(self.value(s.value, grid, {}), points) for s in stores]
        further = [self.looked_up(s, grid, points) for s in stores]
        for store, value, more in zip(stores, values, further):
            self.store(store.buffer, self.index(store.index, grid, points) + more, value)

    def looked_up(self, store: Store, grid: Grid, points: int) -> torch.Tensor:
        total = torch.zeros(self.outer, points, dtype=torch.int64)
        for lookup in store.lookups:
            value = self.full(self.value(lookup.value, grid, {}), points)
            assert int(value.min()) >= 0 and int(value.max()) < lookup.size, "a lookup outside of its range"
            total = total + value * lookup.stride
        return total

    def scan(self, stage: ScanStage) -> None:
        points = _points([stage.loop])
        grid = self.grid([stage.loop])
        value = self.full(self.value(stage.store.value, grid, {}), points)
        scanned = _SCANS[stage.kind](value, 1, dtype=value.dtype)
        self.store(stage.store.buffer, self.index(stage.store.index, grid, points), scanned)

    def reduce(self, reduction: Reduction, grid: Grid, points: int) -> torch.Tensor:
        value = self.full(self.value(reduction.value, grid, {}), points)
        return _REDUCTIONS[reduction.kind](value).unsqueeze(1)

    def full(self, value: torch.Tensor, points: int) -> torch.Tensor:
        return value.expand(self.outer, points)

    def index(self, e: Size, grid: Grid, points: int) -> torch.Tensor:
        at = evaluate(e, grid)
        return (at if isinstance(at, torch.Tensor) else torch.tensor([[at]])).expand(self.outer, points)

    def store(self, buffer: int, index: torch.Tensor, value: torch.Tensor) -> None:
        memory = self.memory[buffer]
        assert value.dtype is memory.dtype, f"{value.dtype} stored to {memory.dtype}"
        if self.kernel.buffers[buffer].role == "local":
            memory.scatter_(1, index, value)
        else:
            memory[index.reshape(-1)] = value.reshape(-1)

    def value(self, v: Value, grid: Grid, done: dict[Value, torch.Tensor]) -> torch.Tensor:
        if v not in done:
            done[v] = self.compute(v, grid, done)
        return done[v]

    def compute(self, v: Value, grid: Grid, done: dict[Value, torch.Tensor]) -> torch.Tensor:
        if v.op == "load":
            return self.load(v, grid, done)
        if v.op == "const":
            return torch.full((1, 1), v.args[0], dtype=v.dtype)
        if v.op == "index":
            at = evaluate(v.args[0], grid)
            return at if isinstance(at, torch.Tensor) else torch.tensor([[at]])
        if v.op == "result":
            return self.results[v.args[0]]
        operands = [self.value(a, grid, done) for a in v.args]
        if v.op == "cast":
            return operands[0].to(v.dtype)
        result = _RENAMED.get(v.op) or getattr(torch, v.op)
        out = result(*operands)
        assert out.dtype is v.dtype, f"{v.op} gave {out.dtype}, not {v.dtype}"
        return out

    def load(self, v: Value, grid: Grid, done: dict[Value, torch.Tensor]) -> torch.Tensor:
        buffer, e, mask = v.args
        memory = self.memory[buffer]
        at = evaluate(e, grid)
        at = at if isinstance(at, torch.Tensor) else torch.tensor([[at]])
        keep = None if mask is None else self.value(mask, grid, done)
        if keep is not None:
            at = torch.where(keep, at, 0)
        if self.kernel.buffers[buffer].role == "local":
            out = memory.gather(1, at.expand(self.outer, at.shape[1]))
        else:
            assert int(at.min()) >= 0 and int(at.max()) < len(memory), f"load outside buffer {buffer}: {e}"
            out = memory[at]
        return out if keep is None else torch.where(keep, out, torch.zeros((), dtype=out.dtype))


def _points(loops: Sequence[Loop]) -> int:
    return prod([static(loop.size) for loop in loops])


def _digits(loops: Sequence[Loop], position: torch.Tensor) -> Grid:
    grid: Grid = {}
    for loop in reversed(loops):
        grid[loop.sym] = position % static(loop.size)
        position = position // static(loop.size)
    return grid


def _flat(tensor: torch.Tensor | None) -> torch.Tensor:
    """The memory from the tensor's first element to its last, as one dimension."""
    assert tensor is not None
    if tensor.numel() == 0:
        return tensor.reshape(-1)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return tensor.as_strided((span,), (1,), tensor.storage_offset())
