"""Packed sequences whose lengths are not known: packing, padding and a recurrent network over them run as one call each.

Their sizes depend on the lengths, and their C++ code reads these from memory. The break is at the program's call, not where
torch's Python code calls C++: a frame of a recurrent network that resumes after a break has some 90 guards (a call of a
small GRU took twice as long as eager's).
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import cast

from torch import nn
from torch.nn.utils import rnn

from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.reasons import DATA_DEPENDENT
from smelt.tracing.fake.fake_tensor import FakeTensor


def _is_unknown(vm: VM, lengths: object) -> bool:
    return type(lengths) is FakeTensor and vm.trace.constants.value(lengths) is None


def _batch_sizes(sequence: object) -> object:
    return sequence[1] if type(sequence) is rnn.PackedSequence else None


# The function, the position and name of the argument that has lengths, and how they are read from it.
_FUNCTIONS: tuple[tuple[object, int, str, Callable[[object], object]], ...] = (
    (rnn.pack_padded_sequence, 1, "lengths", lambda lengths: lengths),
    (rnn.pad_packed_sequence, 0, "sequence", _batch_sizes),
    *((network.forward, 1, "input", _batch_sizes) for network in (nn.RNN, nn.LSTM, nn.GRU)),
)


def _handler(
    fn: FunctionType, position: int, name: str, lengths_of: Callable[[object], object]
) -> Callable[[VM, Args, Kwargs], object]:
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        argument = args[position] if len(args) > position else kwargs.get(name)
        if _is_unknown(vm, lengths_of(argument)):
            detail = f"{fn.__qualname__} of sequences whose lengths are not known"
            raise vm.trace.call.unsupported(DATA_DEPENDENT, detail)
        return interpret(vm, fn, args, kwargs)

    return call


for _fn, _position, _name, _lengths_of in _FUNCTIONS:
    function(_fn)(_handler(cast(FunctionType, _fn), _position, _name, _lengths_of))
