"""Programs with some tensors replaced: direct and indirect readers of a replaced tensor are rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from smelt.graph.pytree import map_leaves
from smelt.loops.kernel_ir import Value
from smelt.loops.lazy_tensor import CopyBack, Index, Insert, Load, Program, Reduce, Scan, Step, Stored, Tensor

Body = TypeVar("Body", bound=Callable[..., Value])


class Rewriting:
    """A program under rewriting. Take the old steps in order, `put` new ones, end with `program`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.new: dict[Tensor, Tensor] = {}

    def put(self, step: Step, instead_of: Step | None = None) -> None:
        """Append a step. From then on readers of the tensor it stands `instead_of` read the new one."""
        self.steps.append(step)
        if isinstance(step, Tensor) and isinstance(instead_of, Tensor) and step is not instead_of:
            self.new[instead_of] = step

    def step(self, old: Step) -> Step:
        """The old step over the new tensors: itself if it reads none of them."""
        if isinstance(old, Tensor):
            return self._tensor(old)
        if isinstance(old, CopyBack):
            return replace(old, source=self._now(old.source))
        if isinstance(old, Insert):
            runtime_indices = tuple(replace(p, value=self._body(p.value)) for p in old.runtime_indices)
            return replace(old, source=self._now(old.source), runtime_indices=runtime_indices)
        args, kwargs = (map_leaves(tree, Tensor, self._now) for tree in (old.args, old.kwargs))
        return replace(old, args=args, kwargs=kwargs)

    def program(self, old: Program) -> Program:
        """The new program, with the inputs and constants of the old one."""
        outputs = tuple(None if t is None else self._now(t) for t in old.outputs)
        return replace(old, steps=tuple(self.steps), outputs=outputs)

    def _now(self, tensor: Tensor) -> Tensor:
        return self.new.get(tensor, tensor)

    def _tensor(self, old: Tensor) -> Tensor:
        definition = old.definition
        if isinstance(definition, Stored) or self.new.keys().isdisjoint(definition.inputs):
            return old
        inputs = tuple(map(self._now, definition.inputs))
        if isinstance(definition, Scan):
            return replace(old, definition=replace(definition, inputs=inputs))
        if isinstance(definition, Reduce):
            return replace(
                old, definition=replace(definition, inputs=inputs, body=self._body(definition.body))
            )
        known = definition.sum and (definition.sum[0], self._now(definition.sum[1]))
        body = self._body(definition.body)
        return replace(old, definition=replace(definition, inputs=inputs, body=body, sum=known))

    def _body(self, body: Body) -> Body:
        def renewed(load: Load, *indices: Index) -> Value:
            return body(_Renewed(load, self.new), *indices)

        return renewed  # type: ignore[return-value]


class _Renewed:
    """A `Load` for bodies that were written for the old tensors."""

    __slots__ = ("load", "new")

    def __init__(self, load: Load, new: dict[Tensor, Tensor]) -> None:
        self.load, self.new = load, new

    def __call__(self, tensor: Tensor, index: Index) -> Value:
        return self.load(self.new.get(tensor, tensor), index)

    def where(self, mask: Value) -> Load:
        return _Renewed(self.load.where(mask), self.new)
