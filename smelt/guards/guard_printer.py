"""Guards as expressions that a person can read; `TEXTS` has one row for each kind of guard."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from smelt._native import isinstance
from smelt.guards import global_state
from smelt.guards.guard import Guard, TensorFacts, shape_text, stride_text
from smelt.guards.source import Source, key_text
from smelt.guards.weak_identity import GONE
from smelt.shapes.expr import Expression, text


def _name(value: object) -> str:
    if isinstance(value, type):
        return (
            value.__name__ if value.__module__ == "builtins" else f"{value.__module__}.{value.__qualname__}"
        )
    if isinstance(value, types.ModuleType):
        return value.__name__
    if value is GONE:
        return repr(GONE)
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return str(name) if isinstance(name, str) else f"<{type(value).__name__} at {id(value):#x}>"


def _tensor_text(x: str, f: TensorFacts) -> str:
    extra = f", requires_grad={f.requires_grad}" if f.requires_grad else ""
    extra += f", layout={f.layout}" if f.layout is not torch.strided else ""
    extra += ", conj_or_neg=True" if f.conj_neg else ""
    extra += ", inference=True" if f.inference else ""
    kind = "" if f.type is torch.Tensor else f", type={_name(f.type)}"
    shape = f"{shape_text(f.shape)}, stride={stride_text(f.stride)}"
    return f"is_tensor({x}, {f.dtype}, shape={shape}, device={str(f.device)!r}{extra}{kind})"


def _sources(sources: Iterable[Source]) -> str:
    return ", ".join(o.source for o in sources)


def _expression_text(x: str, value: tuple[Expression, Any]) -> str:
    written = text(value[0], lambda source: str(source.source))
    if isinstance(value[1], type):
        return f"type({written}) is {value[1].__name__}"
    bare = written[1:-1] if written.startswith("(") else written
    return bare if value[1] else f"not {written}"


_WRITTEN = ("may_be_written", "is_leaf", "is_view_of_leaf", "is_restricted_view")
TEXTS: dict[str, Callable[[str, Any], str]] = {
    "type": lambda x, v: f"type({x}) is {_name(v)}",
    "id": lambda x, v: f"{x} is {_name(v)}" if v is not None else f"{x} is None",
    "eq": lambda x, v: f"{x} == {v!r}",
    "number": lambda x, v: f"type({x}) is {v.__name__}",
    "expression": _expression_text,
    "tensor": _tensor_text,
    "len": lambda x, v: f"len({x}) == {v}",
    "keys": lambda x, v: f"tuple({x}) == {v!r}",
    "table": lambda x, v: f"same_history({x})",
    "contains": lambda x, v: f"{key_text(v[0])} {'in' if v[1] else 'not in'} {x}",
    "not_in_dict": lambda x, v: f"{v!r} not in {x}.__dict__",
    "no_attr": lambda x, v: f"no_attribute({x}, {v!r})",
    "slot": lambda x, v: f"{'' if v[1] else 'not '}hasattr({x}, {v[0]!r})",
    "no_hooks": lambda x, v: f"no_hooks({x})",
    "plain_leaf": lambda x, v: f"no_gradient_hooks({x})",
    "how_written": lambda x, v: f"{_WRITTEN[v]}({x})",
    "type_version": lambda x, v: f"unchanged_class({x})",
    "function": lambda x, v: f"unchanged_function({x})",
    "alias": lambda x, v: f"{x} is {v.source}",
    "distinct": lambda x, v: f"all_different({_sources(v)})",
    "no_overlap": lambda x, v: f"no_shared_storage({_sources(v)})",
    "global_state": lambda x, v: f"global_state({global_state.describe(v)})",
}


def format_guard(guard: Guard) -> str:
    """One guard as an expression a person can read."""
    return TEXTS[guard.kind]("" if guard.source is None else guard.source.source, guard.value)


def format_guards(guards: Iterable[Guard]) -> str:
    """One guard per line, with the user's line that made it necessary as a comment."""
    rows = [(format_guard(g), g.line) for g in guards]
    width = min(max((len(text) for text, _ in rows), default=0), 76)
    return "\n".join(text if line is None else f"{text:<{width}}  # {line}" for text, line in rows)
