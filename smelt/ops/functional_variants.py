"""Functional variants of operators that write arguments: `add_.Tensor` -> `add.Tensor`, `mm.out` -> `mm`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.operator_effects import effects, is_programs
from smelt.graph.pytree import leaves, map_leaves
from smelt.torch_private import OpOverload, operator_registry


@dataclass(frozen=True)
class Pure:
    """`op` computes the values that the writing operator writes. It takes the same arguments, by name, less `out` ones.

    `value_of[name]`: the index of the result that holds the new value of the written argument `name`; `n_results`: the
    number of leading results that correspond to the writing operator's own (fresh) results. `copies`: `op` runs a
    user's operator on copies of the arguments that it writes, so none of these may share memory with another argument.
    """

    op: OpOverload
    value_of: dict[str, int]
    n_results: int
    copies: bool = False


_PURE: dict[OpOverload, Pure | None] = {}


def pure_of(op: OpOverload) -> Pure | None:
    """The functional variant, or None if torch has none."""
    if op not in _PURE:
        _PURE[op] = _find(op)
    return _PURE[op]


def _find(op: OpOverload) -> Pure | None:
    info = effects(op)
    namespace, name = op._schema.name.split("::")
    outs = frozenset(a.name for a in op._schema.arguments if a.is_out)
    if outs:
        twin = _twin(namespace, name.removesuffix("_out"), op, outs)
        if twin is None:
            return _made(op)
        return Pure(twin, {n: i for i, n in enumerate(info.writes)}, 0)
    fresh = sum(r.kind == "fresh" for r in info.results)
    for candidate in (name[:-1] if name.endswith("_") else name, f"{name.removesuffix('_')}_functional"):
        twin = _twin(namespace, candidate, op, frozenset())
        if twin is not None and len(twin._schema.returns) == fresh + len(info.writes):
            return Pure(twin, {n: fresh + i for i, n in enumerate(info.writes)}, fresh)
    return _made(op)


_TORCH_NAMESPACES = ("aten", "prims", "prim", "quantized")
_LIBRARY = torch.library.Library("smelt", "FRAGMENT")  # twins live as long as the process
_NAMES = Counter[str]()  # a program may define an operator again, with another schema


def _made(op: OpOverload) -> Pure | None:
    """A functional variant of a user's operator: it runs the operator on copies of the arguments that it writes."""
    if op.namespace in _TORCH_NAMESPACES:
        return None
    schema, info = op._schema, effects(op)
    kinds = [r.kind for r in info.results]
    fresh = [str(r.type) for r in schema.returns if r.alias_info is None]
    types = {a.name: str(a.type) for a in schema.arguments}
    if kinds != ["fresh"] * len(fresh) + ["same"] * (len(kinds) - len(fresh)):
        return None
    if any(types[n] not in _RETURNED for n in info.writes):
        return None
    stem = f"{str(op).replace('.', '_')}_functional"
    name = f"{stem}_{_NAMES[stem]}" if _NAMES[stem] else stem
    _NAMES[stem] += 1
    returned = [_RETURNED.get(t, t) for t in (*fresh, *(types[n] for n in info.writes))]
    arguments = str(schema)[str(schema).index("(") : str(schema).rindex(" -> ")]
    _LIBRARY.define(f"{name}{_ALIASES.sub('', arguments)} -> ({', '.join(returned)})")
    _LIBRARY.impl(name, _on_copies(op, len(fresh)), "CompositeExplicitAutograd")
    twin = getattr(torch.ops.smelt, name).default
    _MADE.add(twin)
    return Pure(twin, {n: len(fresh) + i for i, n in enumerate(info.writes)}, len(fresh), copies=True)


# What a functional variant returns for a written argument, by its type; for an optional one that is None, an empty tensor.
_RETURNED = {"Tensor": "Tensor", "List[Tensor]": "Tensor[]", "Optional[Tensor]": "Tensor"}
_MADE: set[object] = set()  # such variants
_ALIASES = re.compile(r"\([a-z]!?( -> \*)?\)")  # `(a!)` in a schema


def may_act(op: object) -> bool:
    """Whether running an operator twice may differ from running it once, whatever it writes: an operator of the program that
    writes an argument, returns nothing, or has a registered effect."""
    if not isinstance(op, OpOverload) or not is_programs(op):
        return op in _MADE
    registered = getattr(operator_registry.find(op._schema.name), "effect", None)
    return (
        bool(effects(op).writes) or not op._schema.returns or getattr(registered, "effect", None) is not None
    )


def _on_copies(op: OpOverload, fresh: int) -> Any:
    """The implementation of a functional variant, whose first `fresh` results are the operator's own."""
    names, written = effects(op).names, effects(op).writes

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args)), **kwargs}
        copies = map_leaves([arguments.get(n) for n in written], torch.Tensor, torch.Tensor.clone)
        arguments |= dict(zip(written, copies))
        # On meta tensors, an operator without fresh results needs no shape function.
        out = op(**arguments) if fresh or not all(t.is_meta for t in leaves(copies, torch.Tensor)) else None
        results = out[:fresh] if isinstance(out, tuple) else (out,)[:fresh]
        values = (*results, *(_nothing(arguments) if c is None else c for c in copies))
        return values if len(values) > 1 else values[0]

    return run


def _nothing(arguments: dict[str, Any]) -> torch.Tensor:
    """An empty tensor on the device of the arguments."""
    tensors = leaves(arguments, torch.Tensor)
    return torch.empty(0, device=tensors[0].device if tensors else None)


def _twin(namespace: str, name: str, op: OpOverload, dropped: frozenset[str]) -> OpOverload | None:
    """The overload of `name` that writes nothing and takes the arguments of `op` less `dropped`."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return None
    want = [_signature(a) for a in op._schema.arguments if a.name not in dropped]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        if [_signature(a) for a in found._schema.arguments] == want and not effects(found).writes:
            return found
    return None


def _signature(argument: Any) -> tuple[str, str]:
    return argument.name, str(argument.type)
