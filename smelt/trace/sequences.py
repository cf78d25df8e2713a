"""Packed sequences: torch functions whose results' sizes are in a tensor of lengths, which must be known.

Each has a body that takes the place of its C++ code while a call is recorded. Packing and padding become one gather and one
scatter at constant places. A recurrent network over packed data reads `batch_sizes` from memory, so its C++ code is given
the known tensor instead of a fake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from smelt.trace import known

if TYPE_CHECKING:
    from smelt.trace.record import Trace

aten = torch.ops.aten
_functions: Any = torch._C._VariableFunctions


def _places(trace: Trace, batch_sizes: torch.Tensor, batch_first: bool) -> list[Any]:
    """Where each row of packed data is in padded data: constants for indexing."""
    sizes = batch_sizes.tolist()
    times = [t for t, size in enumerate(sizes) for _ in range(size)]
    sequences = [i for size in sizes for i in range(size)]
    with trace.paused():
        both = torch.tensor(times, dtype=torch.int64), torch.tensor(sequences, dtype=torch.int64)
    return [trace.constant(index) for index in (reversed(both) if batch_first else both)]


def _known(trace: Trace, sizes: torch.Tensor, what: str) -> torch.Tensor:
    value = known.evaluate(trace, sizes)
    if value is None:
        raise trace.refuse_value(f"{what} whose lengths are not known")
    return value


def _pack(trace: Trace, func: Any, args: tuple[Any, ...]) -> Any:
    data, lengths, batch_first = args
    value = _known(trace, lengths, "packing sequences")
    with trace.paused():
        batch_sizes = func(torch.zeros(data.shape[:2]), value, batch_first)[1]
    packed = aten.index.Tensor(data, _places(trace, batch_sizes, batch_first))
    return packed, trace.constant(batch_sizes)


def _pad(trace: Trace, func: Any, args: tuple[Any, ...]) -> Any:
    data, batch_sizes, batch_first, value, total = args
    sizes = _known(trace, batch_sizes, "padding sequences")
    with trace.paused():
        like, lengths = func(torch.zeros(len(data)), sizes, batch_first, 0.0, total)
    filled = data.new_full([*like.shape, *data.shape[1:]], value)
    padded = aten.index_put.default(filled, _places(trace, sizes, batch_first), data)
    return padded, trace.constant(lengths)


def _network(trace: Trace, func: Any, args: tuple[Any, ...]) -> Any:
    data, sizes, *rest = args
    if not isinstance(sizes, torch.Tensor) or sizes.is_floating_point():  # not packed
        return func(*args)
    return func(data, _known(trace, sizes, "a recurrent network over sequences"), *rest)


BODIES: dict[Any, Callable[[Trace, Any, tuple[Any, ...]], Any]] = {
    _functions._pack_padded_sequence: _pack,
    _functions._pad_packed_sequence: _pad,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _network),
}
