"""Gradient flags that a program sets on its inputs: `requires_grad_`, `retain_grad`.

Recording sets them on fakes; running the joint graph sets them on the real inputs. An input that requires grad at any
time must do so before the autograd node is created, which has an edge for each such input; all other flags are set
afterwards.
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
    """Flags that a program set on inputs, by position. `enabled`: leaves that require grad at some time, but not
    initially. `final`: whether leaves require grad in the end. `retained`: inputs that retain their gradients."""

    enabled: tuple[int, ...] = ()
    final: tuple[tuple[int, bool], ...] = ()
    retained: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.final or self.retained)

    @property
    def repeatable(self) -> bool:
        """Whether the program may run a second time: it disables `requires_grad` on no input."""
        return all(flag for _, flag in self.final)

    @classmethod
    def of(cls, autograd: AutogradCalls, inputs: Inputs) -> GradFlags:
        """The flags that a trace recorded, indexing its inputs. Raises NotDifferentiable."""
        called = {name: {id(f) for f in fakes} for name, fakes in autograd.flag_calls.items()}
        indexed = list(enumerate(inputs))
        switched = [(i, f) for i, f in indexed if id(f) in called.get("requires_grad_", ())]
        if any(not f.is_leaf for _, f in switched):
            raise refuse("an input whose requires_grad is set is written with a gradient")
        return cls(
            enabled=tuple(i for i, f in switched if id(f) not in inputs.first_history),
            final=tuple((i, f.requires_grad) for i, f in switched),
            retained=tuple(
                i for i, f in indexed if id(f) in called.get("retain_grad", ()) and f.retains_grad
            ),
        )

    def renumbered(self, position: Callable[[int], int]) -> GradFlags:
        """The flags with input `i` renumbered to `position(i)`."""
        return GradFlags(
            enabled=tuple(map(position, self.enabled)),
            final=tuple((position(i), flag) for i, flag in self.final),
            retained=tuple(map(position, self.retained)),
        )

    def enable(self, inputs: Sequence[torch.Tensor]) -> None:
        """Set `requires_grad` before the graph's autograd node is created."""
        for i in self.enabled:
            inputs[i].requires_grad_()

    def apply(self, inputs: Sequence[torch.Tensor]) -> None:
        """Set all other flags after the graph's autograd node was created."""
        for i, flag in self.final:
            inputs[i].requires_grad_(flag)
        for i in self.retained:
            inputs[i].retain_grad()


NO_FLAGS = GradFlags()


@contextmanager
def all_requiring_grad(sources: Sequence[FakeTensor]) -> Iterator[None]:
    """Context in which leaves whose flag is off in the end require grad, so that what was computed while it was on has
    gradients."""
    off = [f for f in sources if f.is_leaf and not f.requires_grad]
    for fake in off:
        fake.requires_grad_()
    try:
        yield
    finally:
        for fake in off:
            fake.requires_grad_(False)
