"""Gradient flags that a program sets on its inputs: `requires_grad_`, `retain_grad`.

While the program is recorded they are set on fakes; when its joint graph runs, they are set on the real inputs. An input
that requires a gradient at any time must do so before the node of autograd is made, which has an edge for each such input;
all other flags are set after that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from smelt.tracing.backward.not_differentiable import refuse
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.autograd_calls import AutogradCalls
from smelt.tracing.record.trace_inputs import Inputs


@dataclass(frozen=True)
class GradFlags:
    """What a program set of its inputs, by position. `on`: leaves that require a gradient at some time, but not to begin
    with; `end`: whether leaves require one in the end; `retained`: those whose gradients are to be kept."""

    on: tuple[int, ...] = ()
    end: tuple[tuple[int, bool], ...] = ()
    retained: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.end or self.retained)

    @property
    def repeatable(self) -> bool:
        """Whether the program may run a second time: it switches `requires_grad` of no input off."""
        return all(flag for _, flag in self.end)

    @classmethod
    def of(cls, autograd: AutogradCalls, inputs: Inputs) -> GradFlags:
        """Those that a trace has recorded; they count its inputs. Raises NotDifferentiable."""
        called = {name: {id(f) for f in fakes} for name, fakes in autograd.flag_calls.items()}
        places = list(enumerate(inputs))
        switched = [(i, f) for i, f in places if id(f) in called.get("requires_grad_", ())]
        if any(not f.is_leaf for _, f in switched):
            raise refuse("an input whose requires_grad is set is written with a gradient")
        return cls(
            on=tuple(i for i, f in switched if id(f) not in inputs.first_history),
            end=tuple((i, f.requires_grad) for i, f in switched),
            retained=tuple(i for i, f in places if id(f) in called.get("retain_grad", ()) and f.retains_grad),
        )

    def renumbered(self, place: Callable[[int], int]) -> GradFlags:
        """The same flags, of inputs that are counted in another way: input `i` as `place(i)`."""
        return GradFlags(
            on=tuple(map(place, self.on)),
            end=tuple((place(i), flag) for i, flag in self.end),
            retained=tuple(map(place, self.retained)),
        )

    def begin(self, inputs: Sequence[torch.Tensor]) -> None:
        """Before the graph's node is made: these inputs require gradients."""
        for i in self.on:
            inputs[i].requires_grad_()

    def finish(self, inputs: Sequence[torch.Tensor]) -> None:
        """After the graph's node was made: everything else that the program said."""
        for i, flag in self.end:
            inputs[i].requires_grad_(flag)
        for i in self.retained:
            inputs[i].retain_grad()


NO_FLAGS = GradFlags()


@contextmanager
def switched_on(sources: Sequence[FakeTensor]) -> Iterator[None]:
    """Leaves whose flag is off in the end have gradients of what was computed when it was on."""
    off = [f for f in sources if f.is_leaf and not f.requires_grad]
    for fake in off:
        fake.requires_grad_()
    try:
        yield
    finally:
        for fake in off:
            fake.requires_grad_(False)
