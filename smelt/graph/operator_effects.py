"""Memory effects of each ATen operator, read off its schema once per operator.

`effects(op)` says of an `OpOverload` whether it is pure, a view, writes arguments or draws random numbers, and for
each result whether it is fresh memory, a view of an argument, or an argument itself.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from smelt.torch_private import OpOverload, has_kernel

ResultKind = Literal["fresh", "view", "same"]

# Sizes of results that values decide, which torch 2.11 does not say of all of these.
_SIZED_BY_VALUES = {
    f"aten::{name}"
    for name in (
        *("_unique", "_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive", "nonzero"),
        *("masked_select", "bincount", "linalg_lstsq"),
    )
}
# Results whose memory holds no values, in whole or in part: the operator's name and the index of the result.
_UNFILLED = {
    **dict.fromkeys(("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"), 0),
    **{"mkldnn_rnn_layer": 3, "_cudnn_rnn": 4, "cudnn_batch_norm": 3, "_batch_norm_with_update": 3},
}
# Attention on a CPU has no dropout, so it draws nothing although its tag says so.
_NOT_RANDOM = {"aten::_scaled_dot_product_flash_attention_for_cpu"}


@dataclass(frozen=True)
class DeclaredResult:
    """One declared result. `arg`: the argument that a view aliases or that a `same` result is."""

    kind: ResultKind
    arg: str = ""
    is_list: bool = False


@dataclass(frozen=True)
class Effects:
    """`names[i]`: the name of positional argument i; `writes`: the names of written arguments."""

    names: tuple[str, ...]
    writes: tuple[str, ...]
    results: tuple[DeclaredResult, ...]
    random: bool
    changes_metadata: bool  # transpose_, squeeze_, resize_, set_ ...
    data_dependent: bool  # returns a number or a bool read from memory
    dynamic_shape: bool  # the result's size depends on values
    unfilled: int | None  # the result whose memory holds no values
    identity: bool  # the result is an alias of all of the argument
    shares_memory: bool  # some result may be in the memory of an argument that is not written

    @property
    def view(self) -> bool:
        """Whether some result aliases an argument that is not written."""
        return any(r.kind == "view" for r in self.results)

    @property
    def only_writes(self) -> bool:
        """Whether it returns nothing but arguments that it writes, so that no shape function is needed."""
        return bool(self.writes) and all(r.kind == "same" for r in self.results)

    @property
    def pure(self) -> bool:
        """Whether it depends on its arguments only, writes nothing, and returns fresh memory or a view."""
        return not self.writes and not self.random

    def argument(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value passed for `name`, or None."""
        if name in kwargs:
            return kwargs[name]
        index = self.names.index(name)
        return args[index] if index < len(args) else None


_EFFECTS: dict[OpOverload, Effects] = {}


def effects(op: OpOverload) -> Effects:
    """The effects that the operator's schema and tags declare."""
    found = _EFFECTS.get(op)
    if found is None:
        found = _EFFECTS[op] = _classify(op)
    return found


def declare_dynamic_shape(op: OpOverload) -> None:
    """Declare that values decide the size of the operator's result, although its tags do not."""
    _EFFECTS[op] = replace(effects(op), dynamic_shape=True)


@functools.cache
def is_composite(op: OpOverload) -> bool:
    """Whether the operator is composed of calls of others, which autograd sees instead."""
    return bool(has_kernel(op.name(), "CompositeImplicitAutograd"))


def is_effectful(op: object) -> bool:
    """Whether an operator writes memory or draws random numbers, so that it must run even if its result is unused."""
    return isinstance(op, OpOverload) and not effects(op).pure


_OF_TORCH = frozenset({"aten", "prim", "prims", "smelt"})


def is_programs(op: object) -> bool:
    """Whether an operator is not torch's: it may run code of the program."""
    return isinstance(op, OpOverload) and op.namespace not in _OF_TORCH


def _classify(op: OpOverload) -> Effects:
    schema = op._schema
    tags = op.tags
    results = tuple(_result(r, schema.arguments) for r in schema.returns)
    aten_name = schema.name.removeprefix("aten::")
    return Effects(
        names=tuple(a.name for a in schema.arguments),
        writes=tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write),
        results=results,
        random=torch.Tag.nondeterministic_seeded in tags and schema.name not in _NOT_RANDOM,
        changes_metadata=torch.Tag.inplace_view in tags or schema.name in ("aten::resize_", "aten::set_"),
        data_dependent=torch.Tag.data_dependent_output in tags,
        dynamic_shape=torch.Tag.dynamic_output_shape in tags or schema.name in _SIZED_BY_VALUES,
        unfilled=_UNFILLED.get(aten_name),
        identity=aten_name in ("detach", "alias"),
        shares_memory=aten_name == "_unsafe_view" or any(r.kind == "view" for r in results),
    )


def _result(returned: Any, arguments: Any) -> DeclaredResult:
    is_list = "List" in str(returned.type)
    info = returned.alias_info
    for a in arguments:
        if a.alias_info is None:
            continue
        if (
            is_list and "*" in a.alias_info.after_set
        ):  # split, unbind: `Tensor(a -> *) self`, results unmarked
            return DeclaredResult("view", a.name, is_list)
        if info is not None and a.alias_info.before_set & (info.before_set | info.after_set):
            return DeclaredResult("same" if info.is_write else "view", a.name, is_list)
    return DeclaredResult("fresh", is_list=is_list)
