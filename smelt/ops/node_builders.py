"""The interfaces through which nodes of an aten graph are written, and the operators that stages insert in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from smelt.errors import Unsupported
from smelt.graph.ir import Node, TensorSpec
from smelt.torch_private import OpOverload


class Emitter(Protocol):
    """Appends aten nodes to a graph."""

    def emit(
        self, op: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, spec: Any = None
    ) -> Node:
        """The node of the call `op(*args, **kwargs)`. `spec` describes its result; None asks the shape function."""
        ...

    def refuse(self, detail: str) -> Unsupported:
        """The exception to raise for a call that no nodes can express."""
        ...


class Make(Protocol):
    """Builds the node of one call of an operator."""

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Node: ...


aten = torch.ops.aten
ADD: OpOverload = aten.add.Tensor
ALIAS: OpOverload = aten.alias.default
ASSERT_NUMBER: OpOverload = aten._assert_scalar.default
CAST: OpOverload = aten._to_copy.default  # dtype, device or memory format by keyword
CLONE: OpOverload = aten.clone.default
COPY: OpOverload = aten.copy.default  # the second argument with dtype, shape and strides of the first
EMPTY: OpOverload = aten.empty_strided.default  # sizes, strides
FULL: OpOverload = aten.full.default
STRIDED_SCATTER: OpOverload = aten.as_strided_scatter.default
MUL: OpOverload = aten.mul.Tensor
PERMUTE: OpOverload = aten.permute.default
SCALAR: OpOverload = aten.scalar_tensor.default
UNTRACKED_VIEW: OpOverload = aten._unsafe_view.default  # which autograd does not see as a view


def converted(make: Make, x: Node, dtype: torch.dtype) -> Node:
    """`x` with this dtype: `x` itself if it has it."""
    return x if x.spec.dtype is dtype else make(CAST, x, dtype=dtype)


def uninitialized(make: Make, spec: TensorSpec) -> Node:
    """Memory of its own with the layout of `spec`."""
    options = {"dtype": spec.dtype, "device": spec.device}
    return make(EMPTY, list(spec.shape), list(spec.stride), **options)
