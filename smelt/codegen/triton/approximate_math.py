"""Values that need less than float32 accuracy because they are rounded to half precision at once, and cheaper
functions for them.

Kernels that read and write half precision at memory speed have some 30 instructions per element on an H200, and an
exponential that is exact to the last bit takes eight. This module finds float32 values that reach only a conversion to
float16 or bfloat16, through products, quotients and selections: a relative error is preserved on that way, and one of
2**-15 is a thirtieth of the last place of float16. It also finds exponentials below a maximum that are only summed:
addends are at most 1 and the sum is at least 1, so that their errors are small beside it.

A difference can amplify errors, except where one side is 0 for all but one element of a row (the gradient of a cross
entropy): an error of exp(y) for y < 0 is then at most 2**-24 of 1, as an exact one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from smelt.loops.kernel_ir import Kernel, ReduceStage, Value, stage_stores, stage_values, walk
from smelt.loops.row_sums import row_stage

NARROW = (torch.float16, torch.bfloat16)
_RELATIVE = frozenset(("mul", "div", "neg", "abs"))  # a relative error of an operand is one of the result
_PLUS_ONE = dict(erf="one_plus_erf", tanh="one_plus_tanh")
_ALONE = dict(exp="fast_exp", sigmoid="fast_sigmoid")


@dataclass(frozen=True)
class Cheap:
    """`functions`: value -> the name of its function (`ptx_functions.py`) and the operand. `quotients`: quotients
    whose divisor, at least 1, is constant along a row: a product with its reciprocal is as good."""

    functions: Mapping[Value, tuple[str, Value]]
    quotients: frozenset[Value]


def below_maximum(value: Value, maxima: Mapping[str, Value]) -> str | None:
    """The maximum m of values v where `value` is exp(v - m)."""
    if value.op != "exp" or value.args[0].op != "sub":
        return None
    v, m = value.args[0].args
    return m.args[0] if m.op == "result" and maxima.get(m.args[0]) is v else None


def cheap(kernel: Kernel) -> Cheap:
    """The cheap functions for a kernel's values."""
    uses = _Uses(kernel)
    functions: dict[Value, tuple[str, Value]] = {}
    quotients: set[Value] = set()
    for v in uses.values:
        if v.dtype is not torch.float32:
            continue
        if v.op in _ALONE and uses.is_rounded(v, sums=True):
            functions[v] = _ALONE[v.op], v.args[0]
        elif (
            v.op == "add" and v.args[0].op in _PLUS_ONE and _is_constant(v.args[1], 1) and uses.is_rounded(v)
        ):
            functions[v] = _PLUS_ONE[v.args[0].op], v.args[0].args[0]
        elif (
            v.op == "div"
            and v.args[1].op == "result"
            and v.args[1].args[0] in uses.sums
            and uses.is_rounded(v)
        ):
            quotients.add(v)
    return Cheap(functions, frozenset(quotients))


class _Uses:
    """The readers of each value. `sums`: names of sums of exponentials below a maximum."""

    def __init__(self, kernel: Kernel) -> None:
        stages = [*kernel.stages, *([row_stage(kernel)] if kernel.sums else [])]
        reductions = [r for s in stages if isinstance(s, ReduceStage) for r in s.reductions]
        maxima = {r.name: r.value for r in reductions if r.kind == "max" and r.value.dtype is torch.float32}
        below = [r for r in reductions if r.kind == "sum" and below_maximum(r.value, maxima) is not None]
        self.sums = {r.name for r in below}
        self.summed = {r.value for r in below}
        self.stored = {store.value for stage in stages for store in stage_stores(stage)}
        self.reduced = {r.value for r in reductions if r not in below}
        self.values = list(walk([v for stage in stages for v in stage_values(stage)]))
        self.users: defaultdict[Value, list[Value]] = defaultdict(list)
        for value in self.values:
            for operand in {a for a in value.args if isinstance(a, Value)}:
                self.users[operand].append(value)
        self.rounded: dict[Value, bool] = {}

    def is_rounded(self, v: Value, sums: bool = False) -> bool:
        """Whether all uses of `v` are rounded before a relative error can grow; `sums`: or are summed."""
        if v in self.stored or v in self.reduced or (v in self.summed and not sums):
            return False
        if v not in self.rounded:
            self.rounded[v] = all(self._passes(user, v) for user in self.users[v])
        return self.rounded[v]

    def _passes(self, user: Value, v: Value) -> bool:
        if user.op == "cast":
            return user.dtype in NARROW
        if user.op == "where" and v is user.args[0]:
            return False
        if user.op in ("add", "sub"):
            other = user.args[1] if user.args[0] is v else user.args[0]
            if other is v or not _is_one_of_a_row(other):
                return False
        elif user.op not in _RELATIVE and user.op != "where":
            return False
        return self.is_rounded(user)


def _is_one_of_a_row(v: Value) -> bool:
    """Whether it is 0 except at one index of the row."""
    if v.op != "where" or v.args[0].op != "eq" or not _is_constant(v.args[2], 0):
        return False
    return any(a.op == "index" for a in v.args[0].args)


def _is_constant(v: Value, number: float) -> bool:
    return v.op == "const" and v.args[0] == number
