"""Specs of an operator's results for arguments that are graph nodes."""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.ir import Node, NumberSpec, TensorSpec
from smelt.graph.pytree import leaves, map_leaves
from smelt.graph.tensor_specs import empty_like_spec, spec_of
from smelt.ops.layouts import on_metas
from smelt.ops.symbolic_results import results, symbols_in
from smelt.shapes.expr import Expr, static

_RESULTS: dict[Any, Any] = {}
_META = torch.device("meta")


def forget() -> None:
    """Drop cached specs; called when the interned specs are dropped."""
    _RESULTS.clear()


def result_spec(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Spec (or tuple of specs) of the results of the aten operator `op` for arguments that may hold Nodes.

    Raises what the operator's shape function raises. No trace may be recording.
    """
    key = (op, _key(args), _key(kwargs), torch.get_default_dtype())
    found = _RESULTS.get(key)
    if found is None:
        device = _device_of([args, kwargs]) or torch.device("cpu")
        with torch.no_grad():
            if symbols_in((args, kwargs), _spec_of_node):
                found = _RESULTS[key] = _symbolic(op, args, kwargs, device)
                return found
            found = _RESULTS[key] = _specs(on_metas(op, _meta(args), _meta(kwargs), device), device)
    return found


def _spec_of_node(value: Any) -> TensorSpec | None:
    return value.spec if isinstance(value, Node) and isinstance(value.spec, TensorSpec) else None


def _symbolic(op: Any, args: Any, kwargs: dict[str, Any], device: torch.device) -> Any:
    args, kwargs = _numbers(args), _numbers(kwargs)
    found = map_leaves(results(op, args, kwargs, device, _spec_of_node), Node, lambda n: n.spec)
    return tuple(found) if isinstance(found, list) else found


def _numbers(value: Any) -> Any:
    """Arguments as in `_meta`, except for tensor nodes."""
    if isinstance(value, Node):
        return _meta(value) if isinstance(value.spec, NumberSpec) else value
    if isinstance(value, (list, tuple)):
        return [_numbers(v) for v in value]
    if isinstance(value, dict):
        return {k: _META if k == "device" and v is not None else _numbers(v) for k, v in value.items()}
    return value


def _key(value: Any) -> Any:
    if isinstance(value, Node):
        return value.spec
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    return (type(value), value)


def _device_of(arguments: Any) -> torch.device | None:
    """The device of the first argument that has one, or is one."""
    found = (
        n.spec.device if isinstance(n, Node) else n
        for n in leaves(arguments, (Node, torch.device))
        if isinstance(n, torch.device) or isinstance(n.spec, TensorSpec)
    )
    return next(found, None)


def _meta(value: Any) -> Any:
    if isinstance(value, Node):
        return (
            value.spec.type(1) if isinstance(value.spec, NumberSpec) else empty_like_spec(value.spec, _META)
        )
    if isinstance(value, (list, tuple)):
        return [_meta(v) for v in value]
    if isinstance(value, dict):
        return {k: _META if k == "device" and v is not None else _meta(v) for k, v in value.items()}
    return static(value) if isinstance(value, Expr) else value


def _specs(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value, device)
    if isinstance(value, (list, tuple)):
        return tuple(_specs(v, device) for v in value)
    return None
