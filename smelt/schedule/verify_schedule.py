"""Verification of the invariants in `smelt.schedule.schedule`, and of the schedule's kernels."""

from __future__ import annotations

from collections.abc import Iterator

from smelt.errors import VerificationError
from smelt.loops.verify_kernel import verify as verify_kernel
from smelt.schedule.schedule import KernelItem, Schedule, accesses


def verify(schedule: Schedule) -> None:
    """Raises VerificationError naming the item that breaks an invariant, or the kernel (see `loops.verify_kernel`)."""
    for problem in problems(schedule):
        raise VerificationError(f"schedule: {problem}")
    for item in schedule.items:
        if isinstance(item, KernelItem):
            verify_kernel(item.kernel)


def problems(schedule: Schedule) -> Iterator[str]:
    """The violated invariants, a sentence each."""
    yield from _buffer_problems(schedule)
    held = {b.id for b in schedule.buffers if b.kind in ("input", "constant")}
    defined = set(held)
    for number, item in enumerate(schedule.items):
        if isinstance(item, KernelItem):
            yield from (f"item {number}: {p}" for p in _argument_problems(item))
        reads, defines = accesses(item)
        for buffer in reads:
            if buffer not in defined:
                yield f"item {number} reads buffer {buffer}, which no item before it writes"
        for buffer in defines:
            if buffer in defined:
                kind = "is held" if buffer in held else "an item before it writes"
                yield f"item {number} defines buffer {buffer}, which {kind}"
            defined.add(buffer)
    for out in schedule.outputs:
        if out is not None and out not in defined:
            yield f"the output {out} is never written"


def _buffer_problems(schedule: Schedule) -> Iterator[str]:
    kinds = [b.kind for b in schedule.buffers]
    inputs, constants = kinds.count("input"), kinds.count("constant")
    if [b.id for b in schedule.buffers] != list(range(len(kinds))):
        yield "buffers are not numbered by position"
    if kinds[: inputs + constants] != ["input"] * inputs + ["constant"] * constants:
        yield "inputs, then constants, do not come first"
    if constants != len(schedule.constants):
        yield f"{constants} buffers for {len(schedule.constants)} constants"


def _argument_problems(item: KernelItem) -> Iterator[str]:
    if len(item.buffers) != len(item.kernel.buffers):
        yield f"{len(item.buffers)} buffers for a kernel of {len(item.kernel.buffers)}"
        return
    for buffer, formal in zip(item.buffers, item.kernel.buffers):
        if (buffer is None) != (formal.role == "local"):
            yield f"buffer {buffer} stands for a kernel's buffer of role {formal.role}"
