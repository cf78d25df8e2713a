"""The data of an autograd node (`_native.Differentiable`): what it needs of a joint graph besides plans.

Compiled functions, stored entries and exported programs share this form. Sizes and strides may have symbols, which `spec`
evaluates. This module imports no compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.shapes.expr import Size, Values, evaluate, extent, static


@dataclass(frozen=True)
class Layout:
    """Sizes, strides and dtype of a tensor between forward and backward."""

    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype

    def at(self, values: Values) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
        """The layout for these sizes."""
        return _numbers(self.shape, values), _numbers(self.stride, values), self.dtype


@dataclass(frozen=True)
class SavedValue:
    """A value that a backward reads. `readers`: the tangents whose gradients read it; `layout`: of a primal that is a tensor
    (the program may assign to its `data`), else None; `is_recomputed_from`: of an alias; `data`: of an output
    (`Partition`)."""

    kind: str
    index: int
    readers: tuple[int, ...]
    layout: Layout | None
    is_recomputed_from: bool
    data: str

    def spec(self, values: Values) -> tuple[Any, ...]:
        """The value as `_native.Differentiable` takes it."""
        more: tuple[Any, ...] = ()
        if self.layout is not None:
            more = self.layout.at(values)
        elif self.kind == "alias":
            more = (self.is_recomputed_from,)
        elif self.kind == "output":
            more = (self.data,)
        return self.kind, self.index, self.readers, *more


@dataclass(frozen=True)
class NodeData:
    """The forward returns `n_outputs` outputs, then temporaries for backwards. `tangents`: an output and the layout of its
    gradient; `inputs`: those with a gradient, the first `leaves` of which are leaves; `through`: outputs that others are
    computed from; `groups`: see `JointNode._groups`; `contributors`, `direct`: see `compile_joint._Flow`."""

    n_outputs: int
    tangents: tuple[tuple[int, Layout], ...]
    inputs: tuple[int, ...]
    leaves: int
    through: tuple[int, ...]
    groups: tuple[tuple[tuple[int, ...], bool, bool], ...]
    contributors: tuple[tuple[int, ...], ...]
    direct: tuple[tuple[int, ...], ...]
    conflicts: tuple[tuple[int, ...], ...]
    saved: tuple[SavedValue, ...]

    def spec(self, values: Values) -> dict[str, Any]:
        """The data as `_native.Differentiable` takes them, for these sizes."""
        return {
            "n_outputs": self.n_outputs,
            "differentiable": [(i, *layout.at(values)) for i, layout in self.tangents],
            "gradients": self.inputs,
            "leaves": self.leaves,
            "through": self.through,
            "groups": self.groups,
            "contributors": self.contributors,
            "direct": self.direct,
            "conflicts": self.conflicts,
            "saved": [s.spec(values) for s in self.saved],
        }


_MOST_COPIED = 1 << 16  # bytes, at each call


@dataclass(frozen=True)
class HistoryData:
    """What gradients with a history need: the layouts of primals that are tensors, the devices from whose generators the
    graph draws, the inputs that it writes, and those of them that each call copies, with their bytes."""

    layouts: tuple[Layout | None, ...]
    draws: tuple[torch.device, ...]
    rewritten: tuple[int, ...]
    copied: tuple[int, ...]
    copied_bytes: tuple[Size, ...]

    def spec(self, values: Values) -> dict[str, Any]:
        """The data as `_native.Differentiable` takes them, for these sizes."""
        return {
            "draws": self.draws,
            "rewritten": self.rewritten,
            "copied": self.copied,
            "layouts": [() if layout is None else layout.at(values) for layout in self.layouts],
        }


@dataclass(frozen=True)
class Substitute:
    """What stands for a saved value that the program has freed or changed, where no requested gradient needs it: zeros.
    `needed`: the gradients that need it, as a bit mask; `layout`: None for a number."""

    needed: int
    layout: Layout | None
    offset: Size
    device: torch.device | None

    def at(self, values: Values, requested: Sequence[bool]) -> torch.Tensor | None:
        """The zeros for these sizes; None if a requested gradient needs the value."""
        is_needed = any(flag and self.needed >> k & 1 for k, flag in enumerate(requested))
        if is_needed or self.layout is None:
            return None
        shape, stride, dtype = self.layout.at(values)
        (offset,) = _numbers((self.offset,), values)
        zeros = torch.zeros(offset + static(extent(shape, stride)), dtype=dtype, device=self.device)
        return zeros.as_strided(shape, stride, offset)


def may_copy(nbytes: Sequence[Size], values: Values) -> bool:
    """Whether a call may copy inputs of `nbytes` bytes each. If not, gradients for these sizes have no history."""
    return sum(_numbers(nbytes, values)) <= _MOST_COPIED


def _numbers(sizes: Sequence[Size], values: Values) -> tuple[int, ...]:
    return tuple([n if type(n) is int else evaluate(n, values) for n in sizes])
