"""Custom operators whose fake kernels create sizes that data decide (`torch.library.get_ctx().new_dynamic_size()`).

A fake kernel runs for each assignment of sample values, as shape functions do for symbolic sizes
(`symbolic_results.py`): the sizes that it creates have samples of their own, and the sizes of the results
are the expressions that fit all answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.operator_effects import declare_dynamic_shape
from smelt.graph.sample_sizes import COUNT, at
from smelt.graph.tensor_specs import empty_like_spec, with_sizes
from smelt.ops.registry import REGISTRY
from smelt.ops.symbolic_results import fitted
from smelt.ops.trace_rules import TraceRule
from smelt.shapes.expr import Expr, Sym
from smelt.torch_private import OpOverload, operator_registry, set_fake_context

_META = torch.device("meta")


class _Context:
    """What `get_ctx()` returns: a context that returns `sizes` at assignment `k`, in order; `new` creates further ones."""

    def __init__(self, sizes: list[Sym], new: Callable[[], Sym], k: int) -> None:
        self._sizes, self._new, self._k = sizes, new, k
        self.count = 0

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> int:
        if self.count == len(self._sizes):
            self._sizes.append(self._new())
        self.count += 1
        return int(at(self._sizes[self.count - 1], self._k))

    create_unbacked_symint = new_dynamic_size


def declare_created_sizes(op: OpOverload) -> bool:
    """Declare that a custom operator creates sizes; False if it has no fake kernel in Python."""
    entry = operator_registry.find(op.name())
    if entry.fake_impl.kernel is None:
        return False
    declare_dynamic_shape(op)

    def specs(new: Callable[[], Sym], **arguments: Any) -> Any:
        return _specs(op, entry.fake_impl.kernel, new, arguments)

    facts: Any = {"trace_rule": TraceRule.VALUES, "unbacked": (f"a size of {op}", specs)}
    REGISTRY.declare((op,), facts, __name__)
    return True


def _specs(
    op: OpOverload, kernel: Callable[..., Any], new: Callable[[], Sym], arguments: dict[str, Any]
) -> Any:
    """The specs of the results; NotImplemented if no expressions fit them, or a size is no dimension of a result."""
    sizes: list[Sym] = []
    named = {a.name for a in op._schema.arguments if a.kwarg_only}
    answers, counts = [], set()
    for k in range(COUNT):
        metas = {name: _meta(value, k) for name, value in arguments.items()}
        context = _Context(sizes, new, k)
        with set_fake_context(lambda context=context: context):  # type: ignore[misc]
            answers.append(
                kernel(
                    *(v for n, v in metas.items() if n not in named),
                    **{n: v for n, v in metas.items() if n in named},
                )
            )
        counts.add(context.count)
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    try:
        found = fitted(str(op), answers, [t.spec for t in tensors], sizes, device)  # type: ignore[attr-defined]
    except NeedsFixedSize:
        return NotImplemented
    results = found if isinstance(found, tuple) else (found,)
    if len(counts) > 1 or any(not hasattr(spec, "shape") for spec in results):
        return NotImplemented
    held = {size for spec in results for size in spec.shape}
    return found if held.issuperset(sizes) else NotImplemented


def _meta(value: Any, k: int) -> Any:
    if isinstance(value, torch.Tensor):
        return empty_like_spec(with_sizes(value.spec, lambda size: at(size, k)), _META)  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return [_meta(v, k) for v in value]
    return at(value, k) if isinstance(value, Expr) else value
