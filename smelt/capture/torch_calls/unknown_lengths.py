"""Sequences whose lengths are not known, or change: packing, padding and a recurrent network over them run as one call each.

Their sizes depend on the lengths, and their C++ code reads these from memory. The break is at the program's call, not where
torch's Python code calls C++: a frame of a recurrent network that resumes after a break has some 90 guards (a call of a
small GRU took twice as long as eager's).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import cast

from torch import nn
from torch.nn.utils import rnn

from smelt._native import isinstance
from smelt.capture.base.call_handlers import Args, Kwargs, function
from smelt.capture.base.vm_frames import Generator
from smelt.capture.environment import container_contents
from smelt.capture.environment.wrap_values import has_dynamic_numbers
from smelt.capture.semantics.calls.python_functions import interpret
from smelt.capture.vm.vm import VM
from smelt.graph.sample_sizes import syms_of
from smelt.reasons import DATA_DEPENDENT
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.symbolic.numbers_in_containers import has_symbols


def _is_unknown(vm: VM, lengths: object) -> bool:
    """Whether a tensor of lengths is not constant, or a list holds numbers that change."""
    if type(lengths) is FakeTensor:
        return vm.trace.constants.value(lengths) is None
    source = vm.env.sources.get(id(lengths))
    return has_symbols(lengths) or (source is not None and has_dynamic_numbers(vm.env, source))


def _batch_sizes(vm: VM, sequence: object) -> bool:
    return type(sequence) is rnn.PackedSequence and _is_unknown(vm, sequence[1])


def _steps(vm: VM, sequence: object) -> bool:
    """Whether the graph is to break before a recurrent network, which needs the number of its steps."""
    if type(sequence) is not FakeTensor:
        return _batch_sizes(vm, sequence)
    sizes = vm.env.sizes
    return any(map(sizes.symbol_sources.policy.is_unguarded, sizes.paths_of(syms_of(sequence.spec))))


def _rows(vm: VM, sequences: object) -> bool:
    """Whether the lengths of tensors in a list or tuple change."""
    rows = container_contents.native_view(vm.env, sequences) if isinstance(sequences, (list, tuple)) else ()
    return any(type(row) is FakeTensor and has_symbols(row.shape) for row in rows)


# The function, the position and name of the argument that has lengths, and whether these are unknown.
_FUNCTIONS: tuple[tuple[object, int, str, Callable[[VM, object], bool]], ...] = (
    (rnn.pack_sequence, 0, "sequences", _rows),
    (rnn.pad_sequence, 0, "sequences", _rows),
    (rnn.pack_padded_sequence, 1, "lengths", _is_unknown),
    (rnn.pad_packed_sequence, 0, "sequence", _batch_sizes),
    *((network.forward, 1, "input", _steps) for network in (nn.RNN, nn.LSTM, nn.GRU)),
)


def _handler(
    fn: FunctionType, position: int, name: str, is_unknown: Callable[[VM, object], bool]
) -> Callable[[VM, Args, Kwargs], object]:
    def call(vm: VM, args: Args, kwargs: Kwargs) -> object:
        argument = args[position] if len(args) > position else kwargs.get(name)
        if type(argument) is Generator:  # whose rows `pad_sequence` collects first
            argument = tuple(vm.elements(argument))
            kwargs = {**dict(zip(inspect.signature(fn).parameters, args)), **kwargs, name: argument}
            args = ()
        if vm.assumptions.may_break and is_unknown(vm, argument):
            detail = f"{fn.__qualname__} of sequences whose lengths are not known"
            raise vm.trace.call.unsupported(DATA_DEPENDENT, detail)
        return interpret(vm, fn, args, kwargs)

    return call


for _fn, _position, _name, _test in _FUNCTIONS:
    function(_fn)(_handler(cast(FunctionType, _fn), _position, _name, _test))
