"""State of autograd that the traced program sets, beyond what autograd keeps on the fakes."""

from __future__ import annotations

from smelt.tracing.backward.custom_function_backward import CustomFunctions
from smelt.tracing.fake.fake_tensor import FakeTensor


class AutogradCalls:
    """What a trace records of autograd, besides the state on the fakes.

    Attributes:
        wants_joint: a backend wants the joint graph of forward and backward.
        flag_calls: the inputs that a method of `torch_functions.STATEFUL` was called on, by method name.
        hooked: tensors with a registered hook.
        reentrant: inside a reentrant checkpoint that will have a joint graph; eager first runs it without
            gradients.
        differentiated: the program had autograd compute gradients.
        custom: the custom functions applied where gradients are wanted; None while there are none.
    """

    def __init__(self) -> None:
        self.wants_joint = False
        self.flag_calls: dict[str, list[FakeTensor]] = {}
        self.hooked: list[FakeTensor] = []
        self.reentrant = False
        self.differentiated = False
        self.custom: CustomFunctions | None = None
