"""The catalogue's programs again, with a graph break forced where none is needed.

Every program is captured as usual until some frame has begun a given number of instructions; there capture fails, as if that
instruction could not be captured, at whatever depth it is. The results must still be eager's. `SMELT_BREAKS=N` tries N
places for each program; without it one place is tried for every sixth program.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
import tests.catalogue
from smelt.capture.base import vm_frames
from smelt.capture.interpreter.interpreter import Interpreter
from smelt.errors import Unsupported
from smelt.reasons import GRAPH_BREAK_REQUESTED, Reason
from tests.harness.catalogue import observe_world, report
from tests.harness.settings import close_autocasts
from tests.harness.snapshot import difference

PLACES = int(os.environ.get("SMELT_BREAKS", "0"))
BREAKS = 3  # forced in a program; what comes after is captured as usual
# By how much results may differ where that is known. Behind a break, a weight that autocast has cast is cast again: its
# gradient is a sum of two in float32, of which eager rounds the sum to bfloat16 (docs/capture.md, Limits).
TOLERANCE = {"autocast_as_a_decorator_with_breaks": 2.0**-7}


# What lives longer behind a break within the frames that an exception or a function's attributes hold.
LIVES_LONGER = {
    "causes_and_contexts_hold_frames",
    "a_function_with_attributes_that_came_over_a_break_is_gone",
}


def _programs() -> Iterator[Any]:
    return (p for i, p in enumerate(_all_programs()) if PLACES or i % 6 == 0)


def _all_programs() -> Iterator[Any]:
    for module in pkgutil.iter_modules(tests.catalogue.__path__):
        if not module.name.startswith("test_") or module.name in ("test_break_anywhere", "test_harness"):
            continue
        for name, value in vars(importlib.import_module(f"tests.catalogue.{module.name}")).items():
            factory = getattr(value, "__wrapped__", None)
            if getattr(value, "__test__", False) and factory is not None and not factory.__code__.co_argcount:
                marks = list(getattr(value, "pytestmark", []))
                if name in LIVES_LONGER:
                    marks.append(pytest.mark.xfail(reason="lives longer behind a break", strict=False))
                yield pytest.param(factory, id=f"{module.name[5:]}-{name}", marks=marks)


class Forced:
    """Raises Unsupported when a frame begins the `at`-th instruction of the program, the first `BREAKS` times."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.left = BREAKS

    def frame(self, original: Callable[..., None], frame: Any, *args: Any) -> None:
        original(frame, *args)
        frame.stop = self.at + frame.prologue  # which is no instruction of the program

    def check_stop(self, original: Callable[..., None], machine: Any, frame: Any) -> None:
        if machine.stop_point.path:
            depth = len(machine.stop_point.frames)
            if (
                depth < len(machine.stop_point.path)
                and frame.position(frame.ticks) == machine.stop_point.path[depth]
                and self._follows(machine, frame)
            ):
                original(machine, frame)
        elif self.left:
            self.left -= 1
            raise Unsupported(Reason(GRAPH_BREAK_REQUESTED, f"instruction {self.at}"))

    @staticmethod
    def _follows(machine: Any, frame: Any) -> bool:
        if not machine.stop_point.frames:
            return frame is machine.frames.root
        return frame.result_handlers is not None and frame.parent is machine.stop_point.frames[-1]


@pytest.mark.parametrize("factory", _programs())
def test_program(factory: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    want = list(observe_world(factory, lambda fn: fn))
    tolerance = TOLERANCE.get(factory.__name__, 1e-5)
    places = random.Random(factory.__qualname__).sample(range(3, 40), PLACES or 1)
    for at in places:
        forced = Forced(at)
        with monkeypatch.context() as patch:
            patch.setattr(
                vm_frames.Frame,
                "__init__",
                functools.partialmethod(_call, forced.frame, vm_frames.Frame.__init__),
            )
            patch.setattr(
                Interpreter,
                "check_stop",
                functools.partialmethod(_call, forced.check_stop, Interpreter.check_stop),
            )
            compiled: list[Any] = []
            for number, got in enumerate(observe_world(factory, lambda fn: _compile(fn, compiled))):
                problem = difference(got.facts, want[number].facts, tolerance, tolerance)
                assert problem is None, f"broken at {at}, call {number}: {problem}\n{report(compiled[0])}"
    torch.set_grad_enabled(True)
    assert close_autocasts() == 0


def _call(self: Any, method: Callable[..., Any], original: Callable[..., Any], *args: Any) -> Any:
    return method(original, self, *args)


def _compile(fn: Any, compiled: list[Any]) -> Any:
    compiled.append(smelt.compile(fn, backend="eager"))
    return compiled[0]
