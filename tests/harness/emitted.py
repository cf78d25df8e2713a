"""Captured frames made by hand, and what their compiled frames do."""

from __future__ import annotations

import collections
from typing import Any

import torch

from smelt.capture.emit.compiled_frame import CompiledFrame, emit
from smelt.capture.emit.effect_replay import Store
from smelt.capture.graph_breaks.frame_exits import Return
from smelt.capture.graph_breaks.resume_functions import ResumeFunctions
from smelt.capture.interpreter.interpreter import decoded
from smelt.capture.reconstruction.reconstruction_order import find_reachable
from smelt.guards.source import Source
from smelt.tracing.fake.fake_tensor import FakeTensor, wrap

CPU = torch.device("cpu")


def fake_of_two() -> FakeTensor:
    return wrap(torch.empty(2, device="meta"), CPU)


class HandMadeFrame:
    """A hand-made captured frame of `def f(x, obj)`: the graph doubles x as many times as there are outputs."""

    def __init__(self) -> None:
        self.x = torch.ones(2)
        self.obj: Any = collections.UserDict()
        self.fx = fake_of_two()
        self.sources: dict[int, Source] = {
            id(self.fx): Source("arg", "x", index=0),
            id(self.obj): Source("arg", "obj", index=1),
        }

    def emit(self, result: object, *stores: Store) -> CompiledFrame:
        def f(x: Any, obj: Any) -> None: ...

        found = find_reachable(
            [result, *(o for s in stores for o in s.operands)], lambda o: self.sources.get(id(o))
        )
        outputs = [t for t in found.fakes if t is not self.fx]

        def graph(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(inputs[0] * 2 ** (i + 1) for i in range(len(outputs)))

        inputs = [(self.fx, self.sources[id(self.fx)])]
        return emit(
            f.__code__,
            found,
            Return(result),
            stores,
            inputs,
            outputs,
            graph if outputs else None,
            ResumeFunctions(id, decoded),
        )

    def run(self, result: object, *stores: Store, extra: tuple[object, ...] = ()) -> Any:
        return self.emit(result, *stores).function(self.x, self.obj, (self.x, *extra))
