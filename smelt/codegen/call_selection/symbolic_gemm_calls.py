"""Matrix products of a symbolic schedule in which only the number of rows, the depth and A's strides depend on sizes:
layers of a model for any batch, and the gradients of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smelt.codegen.call_selection.call_requests import in_schema_order
from smelt.codegen.call_selection.gemm_calls import MatrixCall, position_of_a
from smelt.codegen.llvm.gemm.gemm_spec import Lengths
from smelt.graph.ir import TensorSpec
from smelt.schedule.schedule import BufRef, ExternItem, Schedule
from smelt.shapes.expr import Values, bounds
from smelt.shapes.substitute import substitute


@dataclass(frozen=True)
class SizedCall(MatrixCall):
    """A call whose shapes have symbols. `a`: the position of A."""

    a: int = 0

    def at(self, values: Values) -> MatrixCall:
        """The call for concrete sizes."""
        args = tuple(substitute(x, values) if isinstance(x, TensorSpec) else x for x in self.args)
        return MatrixCall(self.op, args, self.buffers, substitute(self.result, values))

    def lengths(self, out: TensorSpec) -> Lengths | None:
        """The lengths of the product that computes this into `out`; None if more of it depends on sizes. Symbolic sizes and
        strides are at least 2: no such dimension has one element, whose stride is arbitrary, or is contiguous."""
        tensors = {i: x for i, x in enumerate(self.args) if isinstance(x, TensorSpec)}
        specs = [*tensors.values(), out]
        if any(not isinstance(n, int) and bounds(n)[0] < 2 for x in specs for n in (*x.shape, *x.stride)):
            return None
        of_a, (rows, columns), (row, col) = self.a, out.shape, tensors[self.a].stride
        if not _is_row_major(out):  # its transpose is computed
            of_a, rows, columns = self.a + 1, columns, rows
            col, row = tensors[of_a].stride
        others = [out, *(x for i, x in tensors.items() if i != of_a)]
        if not all(isinstance(n, int) for n in (columns, *(s for x in others for s in x.stride))):
            return None
        return Lengths(rows, tensors[self.a].shape[1], row, col)


def _is_row_major(out: TensorSpec) -> bool:
    """Whether the product computes the result itself rather than its transpose."""
    return out.stride[1] == 1 or out.shape[1] == 1


def sized_call(schedule: Schedule, item: ExternItem) -> SizedCall | str:
    """The extern, whose shapes have symbols, as such a product, or the reason why it is not one."""
    position = position_of_a(item.op)
    if position is None:
        return "not a product of A and B as they are"
    arguments: list[Any] = in_schema_order(item)
    args = tuple(schedule.buffers[x.id].spec if isinstance(x, BufRef) else x for x in arguments)
    buffers = tuple(x.id if isinstance(x, BufRef) else None for x in arguments)
    result = schedule.buffers[item.outs[0]].spec  # type: ignore[index]
    if len(result.shape) != 2:
        return "a batch of products"
    return SizedCall(item.op, args, buffers, result, position)
