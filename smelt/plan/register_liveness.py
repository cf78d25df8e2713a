"""The last use of each register. No other module computes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.plan.steps import Free, Step, defines, reads


def with_frees(steps: Sequence[Step], constants: range, outputs: Iterable[int | None]) -> list[Step]:
    """Add a Free after the last use of every register, except constants and outputs."""
    kept = {*constants, *outputs}
    last: dict[int, int] = {}
    for i, step in enumerate(steps):
        last.update(dict.fromkeys((*defines(step), *reads(step)), i))
    ending: dict[int, list[int]] = {}
    for register, i in last.items():
        if register not in kept:
            ending.setdefault(i, []).append(register)
    freed: list[Step] = []
    for i, step in enumerate(steps):
        freed.append(step)
        if i in ending:
            freed.append(Free(tuple(sorted(ending[i]))))
    return freed
