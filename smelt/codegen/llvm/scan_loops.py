"""Scans: point by point, or by vectors of points, each of which is first scanned within itself."""

from __future__ import annotations

from smelt.codegen.llvm import reduction_codegen
from smelt.codegen.llvm.ir_builder import Ref
from smelt.codegen.llvm.llvm_types import TYPES, rounded
from smelt.codegen.llvm.loop_body import Body, Point
from smelt.codegen.llvm.reduction_codegen import State
from smelt.loops.kernel_ir import ScanStage


class Scan:
    """The points of one scan stage, in order. `vector`: lanes are neighbouring points of its loop."""

    def __init__(self, body: Body, stage: ScanStage, vector: bool) -> None:
        self.body, self.stage, self.vector = body, stage, vector
        self.b, self.type = body.b, TYPES[stage.store.value.dtype]
        precise = self.type.elem == "float" and not self.type.narrow and stage.kind in ("sum", "prod")
        self.elem = "double" if precise else self.type.elem

    def start(self, lanes: int) -> State:
        """The state before the first point."""
        return [
            self._wide(r)
            for r in reduction_codegen.identity(self.b, self.stage.kind, self.type, lanes, "i64")
        ]

    def at(self, p: Point, carry: State) -> State:
        """Store the scan at `p`; the state at the last of its points."""
        b, kind, t = self.b, self.stage.kind, self.type
        value = self._wide(self.body.value(p, self.stage.store.value))
        state = reduction_codegen.first_state(b, kind, t, b.widen(value) if self.vector else value, None)
        if not self.vector:
            carry = total = reduction_codegen.combine(b, kind, t, carry, state)
        else:
            state = self._within(state)
            last = [b.extract(r, b.lanes - 1) for r in state]
            total = reduction_codegen.combine(b, kind, t, carry, state)
            carry = reduction_codegen.combine(b, kind, t, carry, last)
        result = b.convert("fptrunc", total[0], t.elem) if self.elem == "double" else total[0]
        self.body.store(p, self.stage.store, rounded(b, result, t))
        return carry

    def _wide(self, x: Ref) -> Ref:
        return self.b.convert("fpext", x, "double") if self.elem == "double" else x

    def _within(self, state: State) -> State:
        """The scan of the lanes of a vector, in log2(lanes) steps."""
        b, kind, t = self.b, self.stage.kind, self.type
        before = self.start(b.lanes)
        shift = 1
        while shift < b.lanes:
            moved = [b.shifted(first, x, shift) for first, x in zip(before, state, strict=True)]
            state = reduction_codegen.combine(b, kind, t, moved, state)
            shift *= 2
        return state
