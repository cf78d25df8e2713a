"""The state of a trace while it records a backward, and the inputs of the backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from smelt.graph.ir import Node
from smelt.torch_private import DisableAutocast, EnableTorchFunction
from smelt.tracing.backward.custom_function_backward import UserBackward, check_entries
from smelt.tracing.fake.fake_tensor import FakeTensor
from smelt.tracing.record.autograd_calls import AutogradCalls
from smelt.tracing.record.current_call import CurrentCall, backward_node
from smelt.tracing.record.tape import Tape


class BackwardState:
    """Records what autograd's engine runs: at the aten level only, with the user's lines of the forward.

    `tangents` are the fakes that the backward starts from. Invariant: while the engine runs, `CurrentCall.node` is a
    node of no graph, one for torch's own backwards and one for each call of a user's backward.
    """

    def __init__(self, call: CurrentCall, tape: Tape, autograd: AutogradCalls) -> None:
        self.tangents: list[FakeTensor] = []
        self._call = call
        self._tape = tape
        self._autograd = autograd
        self._in_user_backward = False

    def add_tangent(self, fake: FakeTensor, name: str) -> None:
        """Add `fake` as an input of the backward."""
        fake.aten_node = Node("placeholder", name, (), {}, self._tape.aten.name(name), fake.spec)
        self.tangents.append(fake)

    @contextmanager
    def recording(self, backwards: Mapping[Any, Node]) -> Iterator[None]:
        """Context in which operators of autograd's engine are recorded at the aten level. `backwards`: the stand-in
        node of each autograd node (`backward_node`)."""
        call = self._call
        call.node, call.backwards = backward_node(None), backwards
        try:
            # as in eager's backward
            autocast_off: AbstractContextManager[object] = (
                DisableAutocast() if self._autograd.custom is None else _autocast_off()
            )
            with autocast_off:
                yield
        finally:
            call.node, call.backwards = None, None

    def run(self, run: Callable[[], Any]) -> Any:
        """`run()`, which has autograd's engine compute gradients; the user's code that the engine calls is
        interpreted."""
        custom = self._autograd.custom
        with on_this_thread():
            return run() if custom is None else custom.run_interpreted(run)

    @property
    def is_recorded(self) -> bool:
        """Whether autograd's engine runs to record the joint graph."""
        call = self._call
        return call.node is not None and (call.backwards is not None or self._in_user_backward)

    @contextmanager
    def user_backward(self, name: str) -> Iterator[UserBackward]:
        """Context for a call of a user's backward by autograd's engine, which is recorded as such. Raises
        NotDifferentiable for a backward that a joint graph cannot express."""
        assert self._autograd.custom is not None
        call = self._call
        node = Node("call_function", "backward", (), {}, self._tape.torch.name(name))
        user = UserBackward(name, node)
        start = len(self._tape.entries)
        before = call.node, call.backwards, call.is_opaque, self._in_user_backward
        call.node, call.backwards, call.is_opaque, self._in_user_backward = node, None, True, True
        try:
            with EnableTorchFunction():
                yield user
        finally:
            call.node, call.backwards, call.is_opaque, self._in_user_backward = before
        check_entries(user, self._tape.entries[start:])
        self._autograd.custom.called.append(user)


def on_this_thread() -> AbstractContextManager[object]:
    """Context in which autograd's engine runs nodes of every device on the calling thread, which records."""
    return torch.autograd.set_multithreading_enabled(False)  # type: ignore[attr-defined, no-any-return]


@contextmanager
def _autocast_off() -> Iterator[None]:
    """Context with autocast off as a setting, which the user's code may read and change."""
    on = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    for device in on:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in on:
            torch.set_autocast_enabled(device, True)
