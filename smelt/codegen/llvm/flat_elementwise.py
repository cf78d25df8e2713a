"""Elementwise kernels over one loop: machine code that is independent of the size.

An optimizer updates hundreds of parameters of different sizes with the same few operations. The kernels differ only in
the loop bound, which the caller passes as the item range anyway. They are compiled as one kernel over ANY points: an
item is a vector if the size is a multiple of the lanes, else a point, and the last vector is masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.loops.kernel_ir import Kernel, Loop, MapStage, Value, stage_values, walk
from smelt.shapes.expr import Size, Sym, affine, free_syms, subs

ANY = 1 << 40  # represents all multiples of a vector; ANY + 1 all other sizes


def is_flat(kernel: Kernel) -> bool:
    """Whether `kernel` depends on its size only through the loop bound."""
    if len(kernel.outer) != 1 or len(kernel.stages) != 1:
        return False
    (loop,), (stage,) = kernel.outer, kernel.stages
    if not isinstance(stage, MapStage) or stage.loops or (isinstance(loop.size, int) and loop.size >= ANY):
        return False
    indices = [s.index for s in stage.stores]
    for v in walk(stage_values(stage)):
        if v.op == "index":
            return False
        if v.op == "load":
            indices.append(v.args[1])
    return all(_is_linear(e, loop.sym) for e in indices)


def _is_linear(e: Size, sym: Sym) -> bool:
    split = affine(e, sym)
    return split is not None and all(isinstance(part, int) for part in split)


def over_one_point(kernel: Kernel) -> Kernel:
    """A kernel without loops, such as a step counter's update, as a kernel over a loop of one point."""
    if kernel.outer or len(kernel.stages) != 1 or not isinstance(kernel.stages[0], MapStage):
        return kernel
    sym = Sym("o0", 0, 0)
    return _moved(kernel, Loop(sym, 1), lambda e: e + sym)


def of_any_size(kernel: Kernel, lanes: int) -> Kernel:
    """The size-independent kernel to compile for a flat one."""
    (loop,) = kernel.outer
    size = ANY if loop.size % lanes == 0 else ANY + 1
    sym = Sym("o0", 0, size - 1)
    return _moved(
        kernel, Loop(sym, size), lambda e: subs(e, {loop.sym: sym}) if loop.sym in free_syms(e) else e
    )


def _moved(kernel: Kernel, loop: Loop, index: Callable[[Size], Size]) -> Kernel:
    """The same stores and loads over `loop`, with substituted indices."""
    (stage,) = kernel.stages
    assert isinstance(stage, MapStage)
    done: dict[Value, Value] = {}

    def moved(v: Value) -> Value:
        found = done.get(v)
        if found is None:
            args = tuple(moved(a) if isinstance(a, Value) else a for a in v.args)
            if v.op == "load":
                args = (args[0], index(v.args[1]), args[2])
            found = done[v] = Value(v.op, args, v.dtype)
        return found

    stores = tuple(s.moved(index, moved) for s in stage.stores)
    return replace(kernel, outer=(loop,), stages=(MapStage(stage.loops, stores),), sizes=())
