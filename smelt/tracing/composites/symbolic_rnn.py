"""`torch.lstm` and `torch.gru` over batches of symbolic sizes on CPUs, as aten/src/ATen/native/RNN.cpp computes them.

Its C++ code specializes sizes. Where eager calls oneDNN (an LSTM of float32), the sequence length may be symbolic as
well; otherwise the graph has every time step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from smelt.errors import NeedsFixedSize
from smelt.graph.sample_sizes import syms_of
from smelt.shapes.expr import free_syms
from smelt.tracing.composites.symbolic_matmul import linear
from smelt.tracing.fake.fake_tensor import FakeTensor

aten = torch.ops.aten
_LSTM = 2  # oneDNN's enum value

State = tuple[torch.Tensor, ...]  # (hidden, cell) of an LSTM, (hidden,) of a GRU
Step = Callable[[torch.Tensor, State, Any, Any], State]
Layer = Callable[[torch.Tensor, State, Sequence[Any], bool], tuple[torch.Tensor, State]]


def lstm_step(input_gates: torch.Tensor, state: State, weight: Any, bias: Any) -> State:
    """`LSTMCell`; `input_gates`: the input's contribution to the gates, [batch, 4 * hidden]."""
    hidden, cell = state
    gates = F.linear(hidden, weight, bias) + input_gates
    inputs, forgets, cells, outputs = gates.split(weight.shape[0] // 4, 1)
    cell = forgets.sigmoid() * cell + inputs.sigmoid() * cells.tanh()
    return outputs.sigmoid() * cell.tanh(), cell


def gru_step(input_gates: torch.Tensor, state: State, weight: Any, bias: Any) -> State:
    """`GRUCell`; `input_gates`: [batch, 3 * hidden]."""
    (hidden,) = state
    size = weight.shape[0] // 3
    inputs, hiddens = input_gates.split(size, 1), F.linear(hidden, weight, bias).split(size, 1)
    reset, update = ((h + i).sigmoid() for h, i in zip(hiddens[:2], inputs[:2]))
    new = (inputs[2] + hiddens[2] * reset).tanh()
    return ((hidden - new) * update + new,)


_STEPS: dict[Any, Step] = {torch.lstm: lstm_step, torch.gru: gru_step}


@dataclass(frozen=True)
class _Network:
    """A call of `torch.lstm`, whose state is two tensors, or of `torch.gru`."""

    func: Any
    x: Any
    state: Any
    weights: Any
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    @property
    def states(self) -> Sequence[Any]:
        return self.state if self.func is torch.lstm else (self.state,)

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def n_weights(self) -> int:
        """The number of weights of one layer in one direction."""
        return 4 if self.has_biases else 2

    def run(self, layer: Layer) -> tuple[torch.Tensor, ...]:
        """(outputs, last states...)."""
        states = [s.contiguous() for s in self.states]
        x = self.x.transpose(0, 1) if self.batch_first else self.x
        last: list[State] = []
        for k in range(self.layers):
            layer_outputs = []
            for direction in range(self.directions):
                index = k * self.directions + direction
                weights = self.weights[index * self.n_weights : (index + 1) * self.n_weights]
                outputs, state = layer(x, tuple(s.select(0, index) for s in states), weights, direction > 0)
                layer_outputs.append(outputs)
                last.append(state)
            x = layer_outputs[0] if self.directions == 1 else torch.cat(layer_outputs, -1)
            if self.dropout and self.train and k < self.layers - 1:
                x = torch.dropout(x, self.dropout, True)
        return x.transpose(0, 1) if self.batch_first else x, *(torch.stack(list(s), 0) for s in zip(*last))

    def one_dnn_layer(self, x: torch.Tensor, state: State, weights: Sequence[Any], reverse: bool) -> Any:
        """A layer of an LSTM in one direction, by oneDNN."""
        padded = list(weights)
        if not self.has_biases:
            padded += [torch.zeros(w.size(), dtype=w.dtype, device=w.device) for w in padded]
        results = aten.mkldnn_rnn_layer.default(
            x.contiguous(), *padded, *state, reverse, [], _LSTM, padded[1].shape[1], self.layers, self.has_biases,
            self.bidirectional, self.batch_first, self.train,
        )  # fmt: skip
        return results[0], results[1:3]

    def unrolled_layer(self, x: torch.Tensor, state: State, weights: Sequence[Any], reverse: bool) -> Any:
        """A layer in one direction, step by step; the products with all inputs are one product."""
        input_weight, hidden_weight, *biases = weights
        bias, hidden_bias = biases or (None, None)
        step, outputs = _STEPS[self.func], []
        inputs = linear(x, input_weight, bias).unbind(0)
        for x_t in reversed(inputs) if reverse else inputs:
            state = step(x_t, state, hidden_weight, hidden_bias)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs, 0), state

    @property
    def uses_one_dnn(self) -> bool:
        tensors = (self.x, *self.states, *self.weights)
        is_float32 = all(t.dtype is torch.float32 for t in tensors)
        return self.func is torch.lstm and is_float32 and bool(torch.backends.mkldnn.enabled)

    def is_supported(self) -> bool:
        """Whether this is a network over a batch of sequences with symbolic sizes. Raises NeedsFixedSize where a size
        that the weights fix is symbolic."""
        x, states, weights = self.x, self.states, self.weights
        count = self.layers * self.directions
        if len(states) != (2 if self.func is torch.lstm else 1) or len(weights) != self.n_weights * count:
            return False  # for example with projected outputs
        if any(type(t) is not FakeTensor or t.dim() != 3 for t in (x, *states)):
            return False
        if any(t.device.type != "cpu" or t.dtype is not x.dtype for t in (x, *states, *weights)):
            return False
        if not syms_of(x.spec) or 0 in x.spec.shape:
            return False
        sizes = [
            (x.spec.shape[2], weights[0].shape[1]),
            *((t.spec.shape[2 * k], n) for t in states for k, n in enumerate((count, weights[1].shape[1]))),
        ]
        symbolic = frozenset().union(*(free_syms(size) for size, _ in sizes))
        if symbolic:
            raise NeedsFixedSize("the weights are for one number of features", symbolic)
        batch = x.shape[0 if self.batch_first else 1]
        return all(a == b for a, b in sizes) and all(bool(t.shape[1] == batch) for t in states)


def network(func: Any, *args: Any) -> Any:
    """(outputs, last hidden states), and the last cell states of an LSTM; NotImplemented for other networks, and where
    torch's own code runs."""
    if func not in _STEPS:
        return NotImplemented
    call = _Network(func, *args)
    if not call.is_supported():
        return NotImplemented
    return call.run(call.one_dnn_layer if call.uses_one_dnn else call.unrolled_layer)
