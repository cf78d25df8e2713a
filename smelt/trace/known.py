"""Values that are known although tensors are fake: what depends on constants of the program only.

`evaluate` walks back from a fake through the recorded aten nodes. If it meets nothing but constants and deterministic
operators on memory that no recorded operator wrote, the (small) computation is run for real. Nothing is kept, so writing a
tensor later cannot make an answer stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smelt.graph.effects import effects
from smelt.graph.ir import Node
from smelt.trace.fake import FakeTensor, fakes_in

if TYPE_CHECKING:
    from smelt.trace.record import Trace

_MAX_ELEMENTS = 1 << 16
_MAX_NODES = 200


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


def evaluate(trace: Trace, fake: torch.Tensor) -> torch.Tensor | None:
    """The value of `fake`, or None if it depends on inputs, on random numbers, or on memory that was written."""
    if type(fake) is not FakeTensor:
        return fake if isinstance(fake, torch.Tensor) else None
    if fake.aten_node is None:
        return None
    values = _Values(_unknown_values(trace))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        value = _value(trace, fake.aten_node, values)
    return None if value is UNKNOWN else value


class _Values(dict[Node, Any]):
    """Of the nodes looked at so far, and of those that are not to be looked at."""

    def __init__(self, unknown: dict[Node, Any]) -> None:
        super().__init__(unknown)
        self.limit = len(unknown) + _MAX_NODES


def _unknown_values(trace: Trace) -> dict[Node, Any]:
    """Nodes whose memory some recorded operator wrote, before or after: their fakes may hold something else by now."""
    if not trace.wrote:
        return {}
    fakes = (fake for record in trace.records for fake in fakes_in(record.out))
    written = (f for f in fakes if f.storage_key in trace.written)
    return {f.aten_node: UNKNOWN for f in written if f.aten_node is not None}


def _value(trace: Trace, node: Node, values: _Values) -> Any:
    if node in values:
        return values[node]
    value = values[node] = (
        UNKNOWN if len(values) > values.limit or _is_big(node.spec) else _compute(trace, node, values)
    )
    return value


def _is_big(spec: Any) -> bool:
    if isinstance(spec, tuple):
        return any(_is_big(s) for s in spec)
    size = 1
    for n in getattr(spec, "shape", ()):
        size *= n
    return size > _MAX_ELEMENTS


def _compute(trace: Trace, node: Node, values: _Values) -> Any:
    if node.op == "get_attr":
        return trace.aten.graph.constants[node.target]
    if node.op != "call_function":
        return UNKNOWN
    if isinstance(node.target, torch._ops.OpOverload) and not effects(node.target).pure:
        return UNKNOWN
    args = _values(trace, node.args, values)
    kwargs = _values(trace, node.kwargs, values)
    return UNKNOWN if args is UNKNOWN or kwargs is UNKNOWN else node.target(*args, **kwargs)


def _values(trace: Trace, value: Any, values: _Values) -> Any:
    """`value` with nodes replaced; UNKNOWN if one is."""
    if isinstance(value, Node):
        return _value(trace, value, values)
    if isinstance(value, dict):
        items = [_values(trace, v, values) for v in value.values()]
        return UNKNOWN if any(v is UNKNOWN for v in items) else dict(zip(value, items))
    if isinstance(value, (list, tuple)):
        items = [_values(trace, v, values) for v in value]
        return UNKNOWN if any(v is UNKNOWN for v in items) else type(value)(items)
    return value


def run_on_values(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func` on the values of its arguments; None if one is unknown."""
    real_args = [_argument(trace, a) for a in args]
    real_kwargs = {k: _argument(trace, v) for k, v in kwargs.items()}
    if any(a is UNKNOWN for a in (*real_args, *real_kwargs.values())):
        return None
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        return func(*real_args, **real_kwargs)


def _argument(trace: Trace, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        found = evaluate(trace, value)
        return UNKNOWN if found is None else found
    if isinstance(value, (list, tuple)):
        items = [_argument(trace, v) for v in value]
        return UNKNOWN if any(v is UNKNOWN for v in items) else type(value)(items)
    return value


def fold_call(trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that reads memory (`numpy()`), on known values; UNKNOWN if they are not, or if it does more than read."""
    if func not in _READERS:
        return UNKNOWN
    out = run_on_values(trace, func, args, kwargs)
    return UNKNOWN if out is None else out


_READERS: set[Any] = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}
