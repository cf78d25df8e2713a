"""State of autograd that the traced program sets, beyond what autograd keeps on the fakes."""

from __future__ import annotations

from smelt.tracing.backward.custom_function_backward import CustomFunctions
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.trace_inputs import Inputs


class AutogradCalls:
    """What a trace records of autograd, besides the state on the fakes.

    Attributes:
        wants_joint: a backend wants the joint graph of forward and backward.
        hides_intermediates: the backend may make the graph one autograd node, so that autograd computes no gradients of
            tensors inside.
        flag_calls: the inputs that a method of `torch_functions.STATEFUL` was called on, by method name.
        hooked: tensors with a registered hook.
        reentrant: inside a reentrant checkpoint that will have a joint graph; eager first runs it without
            gradients.
        differentiated: the program had autograd compute gradients.
        custom: the custom functions applied where gradients are wanted; None while there are none.
    """

    def __init__(self) -> None:
        self.wants_joint = False
        self.hides_intermediates = False
        self.flag_calls: dict[str, list[FakeTensor]] = {}
        self.hooked: list[FakeTensor] = []
        self.reentrant = False
        self.differentiated = False
        self.custom: CustomFunctions | None = None

    def hides_gradient(self, tensor: FakeTensor, inputs: Inputs) -> bool:
        """Whether autograd may compute no gradient of `tensor`, because it is inside the graph."""
        return self.hides_intermediates and tensor.grad_fn is not None and not inputs.holds(tensor)
