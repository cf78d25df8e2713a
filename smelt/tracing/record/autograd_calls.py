"""The calls by which the traced program configures autograd, and whether a joint graph is wanted."""

from __future__ import annotations

from smelt.tracing.backward.custom_function_backward import CustomFunctions
from smelt.tracing.fake.fake_tensor import FakeTensor


class AutogradCalls:
    """What a trace notes of autograd, besides the state that autograd keeps on the fakes.

    Attributes:
        wants_joint: a backend wants the joint graph of forward and backward.
        restated: the inputs that a method of `torch_functions.STATEFUL` was called on, by the method's name.
        hooked: tensors that a hook was registered on.
        reentrant: inside a reentrant checkpoint of which there will be a joint graph: eager runs it without gradients first.
        differentiated: the program had autograd compute gradients.
        custom: the custom functions that were applied where gradients are wanted; None while there are none.
    """

    def __init__(self) -> None:
        self.wants_joint = False
        self.restated: dict[str, list[FakeTensor]] = {}
        self.hooked: list[FakeTensor] = []
        self.reentrant = False
        self.differentiated = False
        self.custom: CustomFunctions | None = None
