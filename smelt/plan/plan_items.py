"""The items that a plan is built from: views and extern calls of the schedule, and launches that replace its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from smelt.plan.machine_code import CompiledKernel
from smelt.schedule.schedule import ExternItem, ViewItem

Role = Literal["in", "out", "inout"]


@dataclass(frozen=True)
class LaunchItem:
    """Machine code that replaces a kernel, or an extern call with its fused epilogue. `buffers`: buffers of the
    schedule in the order of the code's parameters; `roles[i]`: how the code uses `buffers[i]`. `joins`: the launch may
    become part of a `ParallelLaunch`. `by_value`: see `plan.steps.Launch`. `in_place`: pairs of positions (result,
    operand) of which the result may use the operand's memory."""

    code: CompiledKernel
    buffers: tuple[int, ...]
    roles: tuple[Role, ...]
    note: str = ""
    joins: bool = True
    by_value: tuple[tuple[int, int], ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class ParallelLaunchItem:
    """Independent launches of one function on a GPU, which become one launch."""

    parts: tuple[LaunchItem, ...]


Item = LaunchItem | ParallelLaunchItem | ExternItem | ViewItem
