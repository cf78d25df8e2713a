"""The components of a trace and how they are connected."""

from __future__ import annotations

import functools
from collections.abc import Callable

from smelt.graph.ir import Line
from smelt.tracing.backward.backward_state import BackwardState
from smelt.tracing.functionalize.recorded_writes import Writes
from smelt.tracing.functionalize.view_copies import Copies
from smelt.tracing.record.aten_call_recorder import AtenCallRecorder
from smelt.tracing.record.autograd_calls import AutogradCalls
from smelt.tracing.record.current_call import CurrentCall
from smelt.tracing.record.module_calls import ModuleCalls
from smelt.tracing.record.nested_tensors import NestedTensors
from smelt.tracing.record.number_inputs import NumberInputs
from smelt.tracing.record.tape import Tape
from smelt.tracing.record.torch_call_recorder import TorchCallRecorder
from smelt.tracing.record.trace_inputs import Inputs
from smelt.tracing.record.wrapper_gradients import WrapperGradients
from smelt.tracing.symbolic import unbacked_operators


class TraceParts:
    """The recorded state of a trace, and the recorders.

    Attributes:
        call: the torch-level call that is running.
        tape: the nodes of both levels, and the fakes that the aten nodes returned.
        inputs: the fakes of input tensors.
        numbers: the symbolic numbers that operators received.
        module_calls: the calls of modules.
        writes: the memory that was written, or must not be.
        copies: copies recorded in place of views.
        autograd: state of autograd that the program sets.
        backward: records autograd's engine.
        wrapper_gradients: the wrapper subclasses at both ends of autograd's graph.
        nested: the jagged nested tensors.
        torch_recorder: records torch-level calls.
        aten_recorder: records ATen operators.
        constants: constant folding: the values of tensors that depend on constants only.
    """

    def __init__(self, where: Callable[[], Line | None]) -> None:
        self.call = CurrentCall(where)
        self.tape = Tape(self.call)
        self.numbers = NumberInputs()
        self.module_calls = ModuleCalls(self.tape.torch.graph)
        self.inputs = Inputs(self.call, self.tape, self.numbers)
        self.copies = Copies()
        self.writes = Writes(self.call, self.copies, self.inputs)
        self.autograd = AutogradCalls()
        self.backward = BackwardState(self.call, self.tape, self.autograd)
        self.wrapper_gradients = WrapperGradients(self.call, self.inputs)
        self.nested = NestedTensors(self.call)
        self.torch_recorder = TorchCallRecorder(self.call, self.tape, self.inputs, self.writes, self.numbers)
        self.aten_recorder = AtenCallRecorder(
            self.call, self.tape, self.inputs, self.writes, self.copies, self.numbers
        )
        self.constants = self.aten_recorder.constants
        self.aten_recorder.symbol_for_size = functools.partial(unbacked_operators.size_of, self.aten_recorder)
