"""`torch.lstm` over symbolic sizes on CPUs: the calls of oneDNN that eager makes, a layer and direction at a time.

C++ makes them for fixed sizes only; for symbolic ones it goes through the steps of the sequence, whose length must then be a
number.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.errors import NeedsFixedSize
from smelt.graph.assignments import syms_of
from smelt.graph.sizes import free_syms
from smelt.tracing.fake import FakeTensor

aten = torch.ops.aten
_LSTM = 2  # oneDNN's number of this kind of network


def lstm(
    x: Any,
    state: Any,
    weights: Any,
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """(outputs, last hidden states, last cell states); NotImplemented where eager does not use oneDNN, or torch's own code
    takes the sizes."""
    directions = 2 if bidirectional else 1
    if not _takes(x, state, weights, layers * directions, has_biases, batch_first):
        return NotImplemented
    hx, cx = (s.contiguous() for s in state)
    each = 4 if has_biases else 2
    x = (x.transpose(0, 1) if batch_first else x).contiguous()
    last: list[Any] = []
    for layer in range(layers):
        made = []
        for direction in range(directions):
            index = layer * directions + direction
            given = list(weights[index * each : (index + 1) * each])
            if not has_biases:
                given += [torch.zeros(w.size(), dtype=w.dtype, device=w.device) for w in given]
            found = aten.mkldnn_rnn_layer.default(
                x, *given, hx.select(0, index), cx.select(0, index), direction > 0, [], _LSTM,
                given[1].shape[1], layers, has_biases, bidirectional, batch_first, train,
            )  # fmt: skip
            made.append(found[0])
            last.append(found[1:3])
        x = made[0] if directions == 1 else torch.cat(made, -1)
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, True)
    hidden, cells = (torch.stack(list(states), 0) for states in zip(*last))
    return x.transpose(0, 1) if batch_first else x, hidden, cells


def _takes(x: Any, state: Any, weights: Any, count: int, has_biases: bool, batch_first: bool) -> bool:
    """Whether this is a network over a batch of sequences whose sizes are symbolic, which eager gives to oneDNN. Raises
    NeedsFixedSize where one is symbolic of which the weights have as many."""
    if len(state) != 2 or len(weights) != (4 if has_biases else 2) * count:  # or the outputs are projected
        return False
    if any(t.dtype is not torch.float32 or t.device.type != "cpu" for t in (x, *state, *weights)):
        return False
    if any(type(t) is not FakeTensor or t.dim() != 3 for t in (x, *state)):
        return False
    if not syms_of(x.spec) or 0 in x.spec.shape or not torch.backends.mkldnn.enabled:
        return False
    sizes = [
        (x.spec.shape[2], weights[0].shape[1]),
        *((t.spec.shape[2 * at], n) for t in state for at, n in enumerate((count, weights[1].shape[1]))),
    ]
    symbolic = frozenset().union(*(free_syms(size) for size, _ in sizes))
    if symbolic:
        raise NeedsFixedSize("an LSTM's weights are for one number of features", symbolic)
    batch = x.shape[0 if batch_first else 1]
    return all(a == b for a, b in sizes) and all(bool(t.shape[1] == batch) for t in state)
