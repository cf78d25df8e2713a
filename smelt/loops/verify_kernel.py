"""Verification of the invariants in `smelt.loops.kernel_ir`: one function for each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from smelt.errors import VerificationError
from smelt.loops.kernel_ir import (
    POINTWISE,
    VALUE_OPS,
    Kernel,
    Loop,
    ReduceStage,
    Reduction,
    Stage,
    Value,
    stage_loops,
    stage_stores,
    stage_values,
    walk,
)
from smelt.loops.kernel_sizes import size_symbols
from smelt.loops.row_sums import obstacle, parts
from smelt.shapes.expr import Size, bounds, free_syms, loop_sym, proves_le

_BOOLEAN = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor", "logical_not"} | {
    "isnan", "isinf",
}  # fmt: skip
_WRITTEN = ("out", "inout", "local")

Problem = tuple[Stage | None, str]


def verify(kernel: Kernel) -> None:
    """Raises VerificationError naming the kernel, the stage and the violated invariant."""
    for statement, problems in STATEMENTS.items():
        for stage, problem in problems(kernel):
            where = "" if stage is None else f", stage {_stages(kernel).index(stage)}"
            raise VerificationError(f"kernel {kernel.name}{where}: {problem} ({statement})")


# ---- what a kernel is made of


def _stages(kernel: Kernel) -> list[Stage]:
    """All stages, those of the sums last."""
    return [stage for part in parts(kernel) for stage in part.stages]


def _values(stage: Stage) -> list[Value]:
    """Every value computed at a point of the stage, once; arguments that are not values are skipped."""
    return list(walk(stage_values(stage)))


def _loads(stage: Stage) -> list[Value]:
    return [v for v in _values(stage) if v.op == "load"]


def _reductions(stage: Stage) -> tuple[Reduction, ...]:
    return stage.reductions if isinstance(stage, ReduceStage) else ()


def _accesses(stage: Stage) -> Iterator[tuple[str, int, Size, bool]]:
    """(load or store, buffer, index, whether masked) of the stage's reads and writes."""
    for v in _loads(stage):
        yield "load", v.args[0], v.args[1], v.args[2] is not None
    for s in stage_stores(stage):
        yield "store", s.buffer, s.index, False


# ---- the statements


def _verify_loops(kernel: Kernel) -> Iterator[Problem]:
    for part in parts(kernel):
        yield from ((None, p) for p in _loop_problems(part.outer))
        outer = {loop.sym for loop in part.outer}
        for stage in part.stages:
            yield from ((stage, p) for p in _loop_problems(stage_loops(stage)))
            for loop in stage_loops(stage):
                if loop.sym in outer:
                    yield stage, f"{loop.sym} is an outer loop already"


def _loop_problems(loops: Sequence[Loop]) -> Iterator[str]:
    syms = [loop.sym for loop in loops]
    for loop in loops:
        if syms.count(loop.sym) > 1:
            yield f"two loops are called {loop.sym}"
        if isinstance(loop.size, int) and (loop.sym.lo, loop.sym.hi) != (0, loop.size - 1):
            yield f"{loop.sym} runs over [{loop.sym.lo}, {loop.sym.hi}], not over {loop.size} elements"
        if not isinstance(loop.size, int) and loop.sym is not loop_sym(loop.sym.name, loop.size):
            yield f"{loop.sym} runs to below {loop.sym.below}, not over {loop.size} elements"


def _verify_sizes(kernel: Kernel) -> Iterator[Problem]:
    for sym in kernel.sizes:
        if sym.lo < 1:
            yield None, f"{sym} may be {sym.lo}, which is no size"
    for part in parts(kernel):
        for sym in size_symbols(part.buffers, part.outer, part.stages):
            if sym not in kernel.sizes:
                yield None, f"{sym} is neither a loop nor a size"


def _verify_buffers(kernel: Kernel) -> Iterator[Problem]:
    used = set()
    for stage in _stages(kernel):
        for access, number, _, _ in _accesses(stage):
            used.add(number)
            if not 0 <= number < len(kernel.buffers):
                yield stage, f"a {access} of buffer {number}, which does not exist"
            elif access == "store" and kernel.buffers[number].role not in _WRITTEN:
                yield stage, f"a store to the `in` buffer {number}"
    for number, buffer in enumerate(kernel.buffers):
        if number not in used:
            yield None, f"buffer {number} is neither read nor written"
        if (buffer.role == "local") != (buffer.size != 0):
            yield None, f"buffer {number} has role {buffer.role} and {buffer.size} elements of its own"


def _verify_indices(kernel: Kernel) -> Iterator[Problem]:
    for part in parts(kernel):
        for stage in part.stages:
            yield from ((stage, p) for p in _index_problems(part, stage))


def _index_problems(kernel: Kernel, stage: Stage) -> Iterator[str]:
    known = {*kernel.sizes, *(loop.sym for loop in (*kernel.outer, *stage_loops(stage)))}
    indices = [v.args[0] for v in _values(stage) if v.op == "index"]
    for access, number, index, masked in _accesses(stage):
        indices.append(index)
        low, high = bounds(index)
        size = kernel.buffers[number].size
        if not masked and not proves_le(0, index):
            yield f"a {access} of buffer {number} at {index}, which may be {low}"
        if not masked and kernel.buffers[number].role == "local" and high >= bounds(size)[1]:
            yield f"a {access} of buffer {number} at {index}, beyond its {size} elements"
    for index in indices:
        for sym in free_syms(index) - known:
            yield f"an index {index} over {sym}, which is no loop here"


def _verify_dtypes(kernel: Kernel) -> Iterator[Problem]:
    results = {r.name: _result_dtype(r) for stage in _stages(kernel) for r in _reductions(stage)}
    for stage in _stages(kernel):
        for value in _values(stage):
            expected = _dtype(value, kernel, results)
            if expected is not value.dtype:
                yield stage, f"{value.op} of {value.dtype}, where {expected or 'no dtype'} is due"
        for s in stage_stores(stage):
            if s.value.dtype is not kernel.buffers[s.buffer].dtype:
                yield stage, f"{s.value.dtype} is stored to buffer {s.buffer} of other elements"
            if any(l.value.dtype is not torch.int64 for l in s.lookups):
                yield stage, f"a store to buffer {s.buffer} is further by something that is no int64"


def _result_dtype(reduction: Reduction) -> torch.dtype:
    return torch.int64 if reduction.kind in ("argmax", "argmin") else reduction.value.dtype


def _dtype(value: Value, kernel: Kernel, results: dict[str, torch.dtype]) -> torch.dtype | None:
    """The dtype of a value by its operator and operands; None if the operands are inconsistent."""
    if value.op == "load":
        buffer, _, mask = value.args
        return kernel.buffers[buffer].dtype if mask is None or mask.dtype is torch.bool else None
    if value.op == "const":
        return value.dtype if _holds(value.args[0], value.dtype) else None
    if value.op == "index":
        return torch.int64
    if value.op == "result":
        return results.get(value.args[0], value.dtype)  # an unknown one is a matter of the results
    if value.op == "cast":
        return value.dtype if len(value.args) == 1 else None
    if value.op not in VALUE_OPS or len(value.args) != POINTWISE[value.op]:
        return None
    return _pointwise_dtype(value)


def _holds(number: object, dtype: torch.dtype) -> bool:
    kinds: tuple[type, ...] = (float, int) if dtype.is_floating_point else (int,)
    return type(number) is bool if dtype is torch.bool else type(number) in kinds


def _pointwise_dtype(value: Value) -> torch.dtype | None:
    operands = value.args[1:] if value.op == "where" else value.args
    if value.op == "where" and value.args[0].dtype is not torch.bool:
        return None
    if any(a.dtype is not operands[0].dtype for a in operands):
        return None
    dtype: torch.dtype = operands[0].dtype
    return torch.bool if value.op in _BOOLEAN else dtype


def _verify_results(kernel: Kernel) -> Iterator[Problem]:
    known: set[str] = set()
    for stage in _stages(kernel):
        for value in _values(stage):
            if value.op == "result" and value.args[0] not in known:
                yield stage, f"{value.args[0]} is no reduction of an earlier stage"
        for reduction in _reductions(stage):
            if reduction.name in known:
                yield stage, f"two reductions are called {reduction.name}"
            known.add(reduction.name)


def _verify_order(kernel: Kernel) -> Iterator[Problem]:
    stored: set[int] = set()
    somewhere = {s.buffer for stage in kernel.stages for s in stage_stores(stage) if s.lookups}
    for stage in _stages(kernel):
        here: dict[int, set[Size]] = {}
        for s in stage_stores(stage):
            here.setdefault(s.buffer, set()).add(s.index)
        for value in _loads(stage):
            number, index, _ = value.args
            role = kernel.buffers[number].role
            if number in somewhere:
                yield stage, f"buffer {number} is loaded, which is stored to where lookups say"
            if role in ("out", "local") and number not in stored:
                yield stage, f"buffer {number} is loaded before an earlier stage has stored to it"
            if number in here and index not in here[number]:
                yield stage, f"buffer {number} is loaded at {index}, which another point of the stage stores"
        stored.update(here)


def _verify_points(kernel: Kernel) -> Iterator[Problem]:
    for outer, stage in ((part.outer, stage) for part in parts(kernel) for stage in part.stages):
        for s in stage_stores(stage):
            local = kernel.buffers[s.buffer].role == "local"
            loops = stage_loops(stage) if local else (*outer, *stage_loops(stage))
            looked_up = [v for v in walk([l.value for l in s.lookups]) if v.op in ("load", "index")]
            indices = [s.index, *(v.args[1] if v.op == "load" else v.args[0] for v in looked_up)]
            for loop in loops:
                if loop.size != 1 and not any(loop.sym in free_syms(e) for e in indices):
                    yield stage, f"all points of {loop.sym} store to buffer {s.buffer} at {s.index}"


def _verify_sums(kernel: Kernel) -> Iterator[Problem]:
    if kernel.sums is not None and (why_not := obstacle(kernel)) is not None:
        yield None, why_not


def _verify_work(kernel: Kernel) -> Iterator[Problem]:
    for stage in _stages(kernel):
        if isinstance(stage, ReduceStage) and not stage.reductions:
            yield stage, "a stage that reduces has no reductions"
        if not stage_values(stage):
            yield stage, "a stage does nothing"


# By the names that they have in the docstring of `smelt.loops.kernel_ir`. What later ones read, earlier ones have checked.
STATEMENTS: dict[str, Callable[[Kernel], Iterator[Problem]]] = {
    "loops": _verify_loops, "work": _verify_work, "buffers": _verify_buffers, "indices": _verify_indices,
    "sizes": _verify_sizes, "results": _verify_results, "dtypes": _verify_dtypes, "order": _verify_order,
    "points": _verify_points, "sums": _verify_sums,
}  # fmt: skip
