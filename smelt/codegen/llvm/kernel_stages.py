"""The stages of a kernel at one outer point: maps, reductions, scans."""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.llvm import reduction_codegen
from smelt.codegen.llvm.llvm_types import TYPES
from smelt.codegen.llvm.loop_body import Body, Point, scalar
from smelt.codegen.llvm.loop_nests import Loops
from smelt.codegen.llvm.partial_reductions import truncated
from smelt.codegen.llvm.reduction_codegen import State
from smelt.codegen.llvm.reduction_loops import ReduceLoops
from smelt.codegen.llvm.scan_loops import Scan
from smelt.codegen.llvm.vectorization import Choice
from smelt.loops.kernel_ir import Kernel, Loop, MapStage, ReduceStage, ScanStage, Stage, stage_loops
from smelt.shapes.expr import Sym, bounds


class Stages:
    """Writes the stages of one kernel. Results of reductions are stored in `body.results` for later stages."""

    def __init__(self, kernel: Kernel, body: Body, loops: Loops, choice: Choice) -> None:
        self.kernel, self.body, self.loops, self.choice = kernel, body, loops, choice
        self.b = body.b

    def run(self, p: Point) -> None:
        """Emit all stages at one outer point (or at one vector of them), in order."""
        for i, stage in enumerate(self.kernel.stages):
            p.values.clear()  # a stage may have stored to memory that an earlier one loaded
            if any(l.size == 0 for l in stage_loops(stage)):
                if isinstance(stage, ReduceStage):
                    self._finish(stage, reduction_codegen.start(self.b, stage, 1), False)
            else:
                _STAGES[type(stage)](self, p, stage, self.choice.inner[i])

    def _map(self, p: Point, stage: MapStage, vector: Sym | None) -> None:
        def inside(q: Point) -> None:
            self.body.stores(q, stage.stores)

        loops, last = _vector_last(stage.loops, vector)
        if last is None:
            return self.loops.nest(p, loops, inside)
        size = last.size
        zero, stop = self.b.const("i64", 0), self.loops.count(size)
        point = Point(p.syms, last.sym, p.mask)
        self.loops.nest(point, loops, lambda q: self.loops.lanes(q, last.sym, size, zero, stop, inside))

    def _scan(self, p: Point, stage: ScanStage, vector: Sym | None) -> None:
        b, loop, size = self.b, stage.loop, stage.loop.size
        scan = Scan(self.body, stage, vector is not None)
        step = b.lanes if vector is not None else 1
        p = Point(p.syms, vector or p.lane_sym, p.mask, p.outer_lanes)
        carry, full = scan.start(b.lanes if p.outer_lanes else 1), size - size % step
        end = self.loops.count(full)
        if full != 0:
            with b.loop(b.const("i64", 0), end, step, carry, bounds(full)[0] < 1) as it:
                it.next = scan.at(p.at(loop.sym, it.index), it.carried)
            carry = it.next
        if isinstance(full, int) and isinstance(size, int):
            if full < size:
                scan.at(p.at(loop.sym, end, self.loops.mask_last(size, end)), carry)
        elif full != size:
            with b.when(b.compare("icmp slt", end, self.loops.count(size))):
                scan.at(p.at(loop.sym, end, self.loops.mask_last(size, end)), carry)

    def _reduce(self, p: Point, stage: ReduceStage, vector: Sym | None) -> None:
        if not p.outer_lanes and (found := truncated(stage)) is not None:
            stage, left = found.stage, scalar(self.b, found.left, p.syms)
            some = self.b.intrinsic("smax", left, self.b.const("i64", 0))
            self.loops.sizes[found.count] = self.b.intrinsic("smin", some, self.loops.count(found.most))
        loops, last = _vector_last(stage.loops, vector)
        wide = vector is not None or p.outer_lanes
        states = reduction_codegen.start(self.b, stage, self.b.lanes if wide else 1)
        if last is not None:
            p = Point(p.syms, last.sym, p.mask)
            loops = (*loops, last)
        if loops:
            states = ReduceLoops(self.body, self.loops, stage, last is not None).run(p, loops, states)
        else:
            states = ReduceLoops(self.body, self.loops, stage, False).accumulate(p, states, None)
        self._finish(stage, states, last is not None)

    def _finish(self, stage: ReduceStage, states: list[State], horizontal: bool) -> None:
        for r, state in zip(stage.reductions, states, strict=True):
            if horizontal:
                state = reduction_codegen.across_lanes(self.b, r.kind, TYPES[r.value.dtype], state)
            self.body.results[r.name] = reduction_codegen.finished(self.b, r, state)


_STAGES: dict[type[Stage], Callable[..., None]] = {
    MapStage: Stages._map,
    ReduceStage: Stages._reduce,
    ScanStage: Stages._scan,
}


def _vector_last(loops: tuple[Loop, ...], vector: Sym | None) -> tuple[tuple[Loop, ...], Loop | None]:
    """The scalar loops, and the loop that becomes lanes."""
    if vector is None:
        return loops, None
    return tuple(l for l in loops if l.sym is not vector), next(l for l in loops if l.sym is vector)
