"""Interned `TensorSpec`s (equal ones made here are one object), and the specs of operator results."""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.ir import Node, NumberSpec, TensorSpec
from smelt.graph.sizes import Size
from smelt.ops.layouts import on_metas

_SPECS: dict[tuple[Any, ...], TensorSpec] = {}
_RESULTS: dict[Any, Any] = {}
_MAX = 100_000
_META = torch.device("meta")


def make_spec(
    shape: tuple[Size, ...],
    stride: tuple[Size, ...],
    dtype: torch.dtype,
    device: torch.device,
    offset: Size = 0,
    requires_grad: bool = False,
) -> TensorSpec:
    """The one `TensorSpec` with these fields; `offset` and `stride` count elements."""
    key = (shape, stride, dtype, device, offset, requires_grad)
    spec = _SPECS.get(key)
    if spec is None:
        spec = _SPECS[key] = TensorSpec(*key)
    return spec


def spec_of(tensor: torch.Tensor, device: torch.device) -> TensorSpec:
    """Spec of a plain strided tensor (real or meta), said to live on `device`."""
    return make_spec(
        tuple(tensor.size()), tensor.stride(), tensor.dtype, device, int(tensor.storage_offset())
    )


def trim() -> bool:
    """Forgets interned specs when there are very many; says whether it did. Only while nothing is being traced."""
    if len(_SPECS) <= _MAX:
        return False
    _SPECS.clear()
    _RESULTS.clear()
    return True


def result_spec(op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Spec (or tuple of specs) of what the aten operator `op` returns for arguments that may hold Nodes.

    Raises what the operator's shape function raises. No trace may be recording.
    """
    key = (op, _key(args), _key(kwargs), torch.get_default_dtype())
    found = _RESULTS.get(key)
    if found is None:
        device = _device_of(args) or _device_of(kwargs) or torch.device("cpu")
        with torch.no_grad():
            found = _RESULTS[key] = _specs(
                on_metas(op, _meta(args), _meta(kwargs), device.type == "cpu"), device
            )
    return found


def _key(value: Any) -> Any:
    if isinstance(value, Node):
        return value.spec
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    return (type(value), value)


def _device_of(value: Any) -> torch.device | None:
    if isinstance(value, Node):
        return getattr(value.spec, "device", None)
    if isinstance(value, torch.device):
        return value
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((d for d in map(_device_of, values) if d is not None), None)


def _meta(value: Any) -> Any:
    if isinstance(value, Node):
        return (
            value.spec.type(1) if isinstance(value.spec, NumberSpec) else empty_like_spec(value.spec, _META)
        )
    if isinstance(value, (list, tuple)):
        return [_meta(v) for v in value]
    if isinstance(value, dict):
        return {k: _META if k == "device" and v is not None else _meta(v) for k, v in value.items()}
    return value


def empty_like_spec(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """An uninitialized tensor on `device`, laid out as `spec` says; sizes must be numbers."""
    shape, stride = static(spec.shape), static(spec.stride)
    if not spec.offset:
        return torch.empty_strided(shape, stride, dtype=spec.dtype, device=device)
    (offset,) = static((spec.offset,))
    extent = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride))
    return torch.empty(max(extent, 0), dtype=spec.dtype, device=device).as_strided(shape, stride, offset)


def static(sizes: tuple[Size, ...]) -> tuple[int, ...]:
    """`sizes` as numbers. Raises TypeError for symbolic ones."""
    if any(type(n) is not int for n in sizes):
        raise TypeError(f"symbolic sizes: {sizes}")
    return sizes  # type: ignore[return-value]


def _specs(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return spec_of(value, device)
    if isinstance(value, (list, tuple)):
        return tuple(_specs(v, device) for v in value)
    return None
