"""Memory effects of an operator's schema: which arguments it writes, which results alias which arguments, and whether
the operator may retain its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from smelt.torch_private import OpOverload

# Operators of these namespaces keep nothing that they are given after they return.
OWN_NAMESPACES = frozenset({"aten", "prims", "mkldnn", "quantized", "smelt"})


def is_foreign(op: OpOverload) -> bool:
    """Whether the operator is the user's: it may retain arguments, and rely on the caller's autocast and modes."""
    return op.namespace not in OWN_NAMESPACES


@cache
def returns_alias(op: OpOverload) -> bool:
    """Whether a result aliases an argument (views and in-place operators)."""
    return any(r.alias_info is not None for r in op._schema.returns)


def written_values(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that the operator writes."""
    return [v for v, a in _arguments(op, args, kwargs) if a.alias_info is not None and a.alias_info.is_write]


def aliased_values(op: OpOverload, result: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that alias result number `result` (for a list result: any element of it)."""
    returns = op._schema.returns
    if not returns_alias(op):
        return []
    returned = returns[result if len(returns) > 1 else 0].alias_info
    if returned is None:
        return []
    names = returned.before_set
    infos = ((v, a.alias_info) for v, a in _arguments(op, args, kwargs) if a.alias_info is not None)
    return [v for v, info in infos if names & info.before_set or "*" in info.after_set]


def _arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    arguments = op._schema.arguments
    return [*zip(args, arguments), *((kwargs[a.name], a) for a in arguments if a.name in kwargs)]
