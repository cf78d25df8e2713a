"""Functional variants of operators that write arguments: `add_.Tensor` -> `add.Tensor`, `mm.out` -> `mm`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from smelt.graph.operator_effects import effects
from smelt.torch_private import OpOverload


@dataclass(frozen=True)
class Pure:
    """`op` computes the values that the writing operator writes. It takes the same arguments, by name, less `out` ones.

    `value_of[name]`: the index of the result that holds the new value of the written argument `name`; `n_results`: the
    number of leading results that correspond to the writing operator's own (fresh) results.
    """

    op: OpOverload
    value_of: dict[str, int]
    n_results: int


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
        return Pure(twin, {n: i for i, n in enumerate(info.writes)}, 0) if twin is not None else None
    fresh = sum(r.kind == "fresh" for r in info.results)
    for candidate in (name[:-1] if name.endswith("_") else name, f"{name.removesuffix('_')}_functional"):
        twin = _twin(namespace, candidate, op, frozenset())
        if twin is not None and len(twin._schema.returns) == fresh + len(info.writes):
            return Pure(twin, {n: fresh + i for i, n in enumerate(info.writes)}, fresh)
    return _made(op) if namespace not in _TORCH_NAMESPACES else None


_TORCH_NAMESPACES = ("aten", "prims", "prim", "quantized")
_LIBRARY = torch.library.Library("smelt", "FRAGMENT")  # twins live as long as the process


def _made(op: OpOverload) -> Pure | None:
    """A functional variant of a user's operator: it runs the operator on copies of the arguments that it writes."""
    schema, written = op._schema, list(effects(op).writes)
    fresh = [str(r.type) for r in schema.returns if r.alias_info is None]
    types = {a.name: str(a.type) for a in schema.arguments}
    if len(fresh) != len(schema.returns) or any(types[n] not in ("Tensor", "List[Tensor]") for n in written):
        return None
    name = f"{str(op).replace('.', '_')}_functional"
    returned = ["Tensor[]" if t == "List[Tensor]" else t for t in (*fresh, *(types[n] for n in written))]
    arguments = str(schema)[str(schema).index("(") : str(schema).rindex(" -> ")]
    _LIBRARY.define(f"{name}{_ALIASES.sub('', arguments)} -> ({', '.join(returned)})")
    _LIBRARY.impl(name, _on_copies(op, written, len(fresh)), "CompositeExplicitAutograd")
    twin = getattr(torch.ops.smelt, name).default
    return Pure(twin, {n: len(fresh) + i for i, n in enumerate(written)}, len(fresh))


_ALIASES = re.compile(r"\([a-z]!?( -> \*)?\)")  # `(a!)` in a schema


def _on_copies(op: OpOverload, written: list[str], fresh: int) -> Any:
    names = [a.name for a in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args)), **kwargs}
        for name in written:
            value = arguments[name]
            arguments[name] = (
                [v.clone() for v in value] if isinstance(value, (list, tuple)) else value.clone()
            )
        out = op(**arguments)
        results = () if fresh == 0 else out if fresh > 1 else (out,)
        values = (*results, *(arguments[n] for n in written))
        return values if len(values) > 1 else values[0]

    return run


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
