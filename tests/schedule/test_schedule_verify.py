"""Schedules: each statement about them broken once, and how they print."""

from dataclasses import replace

import pytest
import torch

from smelt.errors import VerificationError
from smelt.schedule.schedule import BufferSpec, BufRef
from smelt.schedule.schedule_printer import print_schedule
from smelt.schedule.verify_schedule import problems, verify
from tests.harness.scheduled import scheduled


def f(x, w):
    y = torch.relu(x)
    return (y + y @ w).view(2, 2, 8)


GOOD, _ = scheduled(f, torch.randn(4, 8), torch.randn(8, 8))
KERNEL, CALL, VIEW = 0, 1, 3


def item(number, **changes):
    items = [replace(i, **changes) if n == number else i for n, i in enumerate(GOOD.items)]
    return replace(GOOD, items=items)


FAULTS = [
    ("reads buffer 3, which no item before it writes", replace(GOOD, items=GOOD.items[::-1])),
    ("reads buffer 3, which no item", item(KERNEL, buffers=(3, 2))),
    ("reads buffer 9, which no item", item(CALL, args=(BufRef(9), BufRef(1)))),
    ("defines buffer 0, which is held", item(CALL, outs=(0,))),
    ("defines buffer 2, which an item before it writes", item(CALL, outs=(2,))),
    ("1 buffers for a kernel of 2", item(KERNEL, buffers=(0,))),
    ("buffer None stands for a kernel's buffer of role in", item(KERNEL, buffers=(None, 2))),
    ("the output 9 is never written", replace(GOOD, outputs=(9,))),
    ("not numbered by position", replace(GOOD, buffers=GOOD.buffers[::-1])),
    ("do not come first", replace(GOOD, buffers=[BufferSpec(0, GOOD.buffers[0].spec, "temp"), *GOOD.buffers[1:]])),
    ("0 buffers for 1 constants", replace(GOOD, constants=(torch.zeros(1),))),
]  # fmt: skip


@pytest.mark.parametrize("message, schedule", FAULTS)
def test_a_planted_fault_is_found(message, schedule):
    found = list(problems(schedule))
    assert any(message in problem for problem in found), found
    with pytest.raises(VerificationError, match=r"^schedule: "):
        verify(schedule)


def test_a_kernel_that_breaks_its_own_statements_is_found():
    kernel = GOOD.items[KERNEL].kernel
    with pytest.raises(VerificationError, match=r"\(work\)$"):
        verify(item(KERNEL, kernel=replace(kernel, stages=(replace(kernel.stages[0], stores=()),))))


def test_a_schedule_prints_what_runs_and_what_was_not_fused():
    verify(GOOD)
    assert (
        print_schedule(GOOD)
        == """\
b0: input float32[4, 8]
b1: input float32[8, 8]
b2: temp float32[4, 8]
b3: temp float32[4, 8]
b4: output float32[4, 8]
b5: output float32[2, 2, 8]
kernel relu(in p0: float32, out p1: float32)
  of b0, b2
  for o0 in 32:
    p1[o0] = maximum(0.0, p0[o0])
b3 = aten.mm.default(b2, b1)
kernel add(in p0: float32, in p1: float32, out p2: float32)
  of b2, b3, b4
  for o0 in 32:
    p2[o0] = p0[o0] + p1[o0]
b5 = user view b4 [2, 2, 8] stride [16, 8, 1] + 0
return b5
not fused: add with relu: what it needs is computed after the other"""
    )
