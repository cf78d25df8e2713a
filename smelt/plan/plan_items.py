"""What a plan is built from: the schedule's views and externs, and launches in place of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smelt.plan.machine_code import CompiledKernel
from smelt.schedule.schedule import ExternItem, ViewItem

Role = Literal["in", "out", "inout"]


@dataclass(frozen=True)
class LaunchItem:
    """Machine code in place of a kernel, or of an extern and what it absorbed. `buffers` are the schedule's, as the code
    takes them; `roles[i]` says what it does with `buffers[i]`. `joins`: it may become a part of a `Together`. `by_value`:
    positions of buffers that are passed as the numbers that they hold, and the bytes of these (`plan.steps.Launch`).
    `in_place`: pairs of positions (of a result, of an operand) of which the first may lie where the second does."""

    code: CompiledKernel
    buffers: tuple[int, ...]
    roles: tuple[Role, ...]
    note: str = ""
    joins: bool = True
    by_value: tuple[tuple[int, int], ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TogetherItem:
    """Launches of one function on a GPU that do not depend on one another, and become one."""

    parts: tuple[LaunchItem, ...]


Item = LaunchItem | TogetherItem | ExternItem | ViewItem
