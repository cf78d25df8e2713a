"""Packed sequences: torch functions whose result sizes depend on a tensor of lengths, which must be a constant.

Packing and padding become one gather and one scatter at constant indices. The C++ code of a recurrent network over
packed data reads `batch_sizes` from memory, so it receives the constant tensor instead of a fake.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.torch_private import pack_padded_sequence, pad_packed_sequence
from smelt.tracing.composites import symbolic_rnn
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder, Composite
from smelt.tracing.record.call_arguments import Args

aten = torch.ops.aten


def _row_indices(recorder: AtenCallRecorder, batch_sizes: torch.Tensor, batch_first: bool) -> list[Any]:
    """The position of each row of packed data in padded data, as constant indices."""
    sizes = batch_sizes.tolist()
    times = [t for t, size in enumerate(sizes) for _ in range(size)]
    sequences = [i for size in sizes for i in range(size)]
    with recorder.call.paused():
        both = torch.tensor(times, dtype=torch.int64), torch.tensor(sequences, dtype=torch.int64)
    return [recorder.tape.add_constant(index) for index in (reversed(both) if batch_first else both)]


def _constant(recorder: AtenCallRecorder, sizes: torch.Tensor, what: str) -> torch.Tensor:
    value = recorder.constants.value(sizes)
    if value is None:
        raise recorder.data_dependent_error(f"{what} whose lengths are not known")
    return value


def _pack(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    data, lengths, batch_first = args
    value = _constant(recorder, lengths, "packing sequences")
    with recorder.call.paused():
        batch_sizes = func(torch.zeros(data.shape[:2]), value, batch_first)[1]
    packed = aten.index.Tensor(data, _row_indices(recorder, batch_sizes, batch_first))
    return packed, recorder.tape.add_constant(batch_sizes)


def _pad(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    data, batch_sizes, batch_first, value, total = args
    sizes = _constant(recorder, batch_sizes, "padding sequences")
    with recorder.call.paused():
        like, lengths = func(torch.zeros(len(data)), sizes, batch_first, 0.0, total)
    filled = data.new_full([*like.shape, *data.shape[1:]], value)
    padded = aten.index_put.default(filled, _row_indices(recorder, sizes, batch_first), data)
    return padded, recorder.tape.add_constant(lengths)


def _network(recorder: AtenCallRecorder, func: Any, args: Args) -> Any:
    data, sizes, *trailing = args
    if not isinstance(sizes, torch.Tensor) or sizes.is_floating_point():  # not packed
        result = symbolic_rnn.network(func, *args)
        return func(*args) if result is NotImplemented else result
    return func(data, _constant(recorder, sizes, "a recurrent network over sequences"), *trailing)


COMPOSITES: dict[Any, Composite] = {
    pack_padded_sequence: _pack,
    pad_packed_sequence: _pad,
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _network),
}
