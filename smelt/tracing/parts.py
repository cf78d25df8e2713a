"""The parts of a trace, each with one task, and how they are put together."""

from __future__ import annotations

import functools
from collections.abc import Callable

from smelt.graph.ir import Line
from smelt.tracing import data_dependent
from smelt.tracing.autograd_calls import AutogradCalls
from smelt.tracing.backward import Backward
from smelt.tracing.call_recorder import CallRecorder
from smelt.tracing.copies import Copies
from smelt.tracing.current_call import CurrentCall
from smelt.tracing.inputs import Inputs
from smelt.tracing.number_inputs import NumberInputs
from smelt.tracing.operator_recorder import OperatorRecorder
from smelt.tracing.tape import Tape
from smelt.tracing.writes import Writes


class TraceParts:
    """What a trace has recorded, and what records it.

    Attributes:
        call: the torch-level call that is running.
        tape: the nodes of both levels, and the fakes that the aten nodes gave.
        inputs: the fakes of tensors from outside.
        numbers: the symbolic numbers that operators were given.
        writes: the memory that was written, or must not be.
        copies: the copies made in place of views.
        autograd: the calls by which the program configures autograd.
        backward: what is recorded of autograd's engine.
        call_recorder: records torch-level calls.
        operator_recorder: records ATen operators.
        known: finds the values of tensors that depend on constants only.
    """

    def __init__(self, where: Callable[[], Line | None]) -> None:
        self.call = CurrentCall(where)
        self.tape = Tape(self.call)
        self.numbers = NumberInputs()
        self.inputs = Inputs(self.call, self.tape, self.numbers)
        self.copies = Copies()
        self.writes = Writes(self.call, self.copies, self.inputs)
        self.autograd = AutogradCalls()
        self.backward = Backward(self.call, self.tape, self.autograd)
        self.call_recorder = CallRecorder(self.call, self.tape, self.inputs, self.writes, self.numbers)
        self.operator_recorder = OperatorRecorder(
            self.call, self.tape, self.inputs, self.writes, self.copies, self.numbers
        )
        self.known = self.operator_recorder.known
        self.operator_recorder.new_size = functools.partial(data_dependent.size_of, self.operator_recorder)
