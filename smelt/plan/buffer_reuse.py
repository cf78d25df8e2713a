"""Reuse of a dying operand's memory: an elementwise kernel may write where it read.

Only tensors of at least LARGE bytes: smaller ones do not change the memory of a call noticeably.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

from smelt.loops.kernel_ir import Kernel, MapStage, stage_values, walk
from smelt.plan.buffer_roots import Roots

LARGE = 1 << 20


def reusable_operands(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Pairs of buffer positions (out, in) where `out` may use the memory of `in`: each point of the kernel loads an
    element before it stores to the same one, and no other point loads it. Only elementwise kernels qualify: threads of
    one program may read a shared element after another thread has written it."""
    if len(kernel.stages) != 1 or not isinstance(kernel.stages[0], MapStage) or kernel.stages[0].loops:
        return ()
    stores = kernel.stages[0].stores
    loaded: dict[int, set[object]] = {}
    for value in walk(stage_values(kernel.stages[0])):
        if value.op == "load":
            loaded.setdefault(value.args[0], set()).add(value.args[1])
    times = Counter(s.buffer for s in stores)
    return tuple(
        (s.buffer, operand)
        for s in stores
        for operand, indices in sorted(loaded.items())
        if indices == {s.index} and times[s.buffer] == 1 and not s.lookups
        if kernel.buffers[s.buffer].role == "out" and kernel.buffers[operand].role == "in"
        if kernel.buffers[s.buffer].dtype.itemsize == kernel.buffers[operand].dtype.itemsize
    )


# Of one launch: its buffers, and which pairs of positions may be one (none of them None).
Use = tuple[Sequence[int | None], Iterable[tuple[int, int]]]


def replaced(uses: Sequence[Use], dying: Collection[int], roots: Roots) -> Iterator[tuple[int, int]]:
    """Pairs (result, operand whose memory it reuses) of parallel launches. `dying`: roots without a later reader."""
    touched = Counter(roots.root(b) for buffers, _ in uses for b in buffers if b is not None)
    taken: set[int] = set()
    for out, operand in ((buffers[o], buffers[i]) for buffers, pairs in uses for o, i in pairs):
        assert out is not None and operand is not None
        root = roots.root(operand)
        if (
            root in dying
            and roots.ends(root)
            and not roots.is_retained(root)
            and roots.root(out) == out
            and touched[root] == touched[out] == 1
            and taken.isdisjoint((out, root))
            and roots.buffers[out].spec.device == roots.buffers[root].spec.device
            and _fits(roots, out, operand, root)
        ):
            taken |= {out, root}
            yield out, operand


def _fits(roots: Roots, out: int, operand: int, root: int) -> bool:
    """Whether both have the same size, of at least LARGE bytes."""
    nbytes, decisions = roots.nbytes(out), roots.decisions
    return decisions.at_least(nbytes, LARGE) and all(
        decisions.equal(nbytes, roots.nbytes(other)) for other in (operand, root)
    )
