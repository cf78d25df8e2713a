"""`Trace`: one run of the user's code on fakes, recorded at the torch level and at the aten level at once.

A `Trace` pushes two torch modes. The function mode (`function_mode.py`) sees each call of the user before it runs; the
dispatch mode (`dispatch_mode.py`), beneath autograd and autocast, sees the ATen operators that the call dispatches to.
Each aten node names the torch-level node that caused it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

import torch

from smelt.errors import NeedsFixedSize, Unsupported
from smelt.graph.ir import Line
from smelt.reasons import UNSUPPORTED_EFFECT, Reason
from smelt.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    current_dispatch_modes,
    current_function_modes,
    pop_saved_tensors_hooks,
    pop_torch_dispatch_stack,
    pop_torch_function_stack,
    push_on_torch_dispatch_stack,
    push_on_torch_function_stack,
    push_saved_tensors_hooks,
    top_saved_tensors_hooks,
)
from smelt.tracing.backward.joint import RecordedBackward
from smelt.tracing.backward.not_differentiable import NotDifferentiable, refuse
from smelt.tracing.backward.record_backward import record_backward
from smelt.tracing.fake import meta_results
from smelt.tracing.fake.fake_tensor import FakeTensor, entered
from smelt.tracing.record.current_call import no_dispatch, no_handlers
from smelt.tracing.record.dispatch_mode import DispatchMode
from smelt.tracing.record.finish_trace import build
from smelt.tracing.record.function_mode import FunctionMode
from smelt.tracing.record.trace_parts import TraceParts
from smelt.tracing.record.traced import Traced, needs_grad
from smelt.tracing.symbolic.symbolic_layouts import SymbolicLayout

M = TypeVar("M")


class Trace(TraceParts):
    """Records what happens to fake tensors while it is entered; `finish` returns the graphs. For one use, on one
    thread.

    `where()` returns the user line that is running. The recorded state is in the components (`TraceParts`).
    """

    def __init__(self, where: Callable[[], Line | None] | None = None) -> None:
        super().__init__(where or (lambda: None))
        self._modes = (DispatchMode(self), FunctionMode(self))
        self.nested.function_mode = self._modes[1]
        self._recorded: tuple[list[FakeTensor], RecordedBackward | None] | None = None

    def __enter__(self) -> Trace:
        meta_results.trim()
        self.torch_recorder.begin()
        self._saved_tensor_hooks = list(_pop_saved_tensor_hooks())
        self._outer_modes = current_dispatch_modes(), current_function_modes()
        for mode in self._modes:
            mode.__enter__()
        entered.trace = True
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, tb: TracebackType | None) -> None:
        entered.trace = False
        left = self._restore_modes()
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, tb)
        for hooks in reversed(self._saved_tensor_hooks):
            push_saved_tensors_hooks(*hooks)
        if left and error is None:
            raise Unsupported(Reason(UNSUPPORTED_EFFECT, "a mode of torch that was on before is off"))

    def _restore_modes(self) -> bool:
        """Restore the modes that were active on entry, with the trace's two modes innermost; return whether one of the
        outer modes had been left. Native code that was to leave or re-enter modes may have been abandoned together
        with the capture."""
        dispatch, function = self._modes
        dispatch_modes, function_modes = self._outer_modes
        left_dispatch = _restore(
            current_dispatch_modes(),
            [*dispatch_modes, dispatch],
            lambda: pop_torch_dispatch_stack(None),
            push_on_torch_dispatch_stack,
        )
        left_function = _restore(
            current_function_modes(),
            [*function_modes, function],
            pop_torch_function_stack,
            push_on_torch_function_stack,
        )
        return left_dispatch or left_function

    def fake(self, real: torch.Tensor, name: str = "", layout: SymbolicLayout | None = None) -> FakeTensor:
        """The fake for `real`, whose `layout` may have symbolic sizes (`Inputs.fake`)."""
        return self.inputs.fake(real, name, layout)

    def real(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The real tensor of an input; None for a computed fake."""
        return self.inputs.real(fake)

    def is_input(self, fake: torch.Tensor) -> bool:
        """Whether `fake` is an input of the trace."""
        return self.inputs.holds(fake)

    def is_environment(self, fake: torch.Tensor) -> bool:
        """Whether `fake` is the fake of a tensor that exists outside of the trace, even if its `data` was set since."""
        return self.inputs.holds(fake) or id(fake) in self.inputs.rebound

    def paused(self) -> AbstractContextManager[None]:
        """Context for real torch computation by smelt itself, which is not recorded."""
        return self.call.paused()

    def release_inputs(self) -> None:
        """Drop the references to the real tensors and the callbacks."""
        self.constants.on_read = None
        self.call.call_handlers = no_handlers
        self.call.call_dispatch = no_dispatch
        self.nested.polyfills.clear()
        self.nested.function_mode = None
        self.call.load_attributes = vars
        self.call.wrappers.clear()
        self.inputs.release()

    def record_backward(self, outputs: Sequence[torch.Tensor]) -> None:
        """Record the backward of `outputs`, if it is wanted. Nothing may be recorded afterwards.

        Raises Unsupported, or NotDifferentiable where there is no joint graph.
        """
        if self.call.failure is not None:
            raise Unsupported(self.call.failure)
        self.torch_recorder.finish()
        with DisableTorchFunction(), DisableTorchDispatch():
            fakes = [self.fake(t) for t in outputs]
            for fake in fakes:
                self.inputs.torch_node(fake)
                self.inputs.aten_node(fake)
            differentiate = self.autograd.wants_joint and needs_grad(self, fakes)
        recorded = None
        if differentiate:
            with DisableTorchFunction():
                recorded = record_backward(self, fakes)
            if self.call.failure is not None:
                raise NotDifferentiable(self.call.failure)
        self._recorded = fakes, recorded

    def finish(self, outputs: Sequence[torch.Tensor], cse: bool = True) -> Traced:
        """The graphs that compute `outputs` (fakes of this trace). Call it after the user's code has ended. `cse`:
        eliminate common subexpressions of the aten graph.

        Raises what `record_backward` raises.
        """
        if self._recorded is None:
            self.record_backward(outputs)
        assert self._recorded is not None
        fakes, recorded = self._recorded
        if len(fakes) != len(outputs) or any(f is not self.fake(t) for f, t in zip(fakes, outputs)):
            raise refuse("the backward was recorded of other results")
        with DisableTorchFunction(), DisableTorchDispatch():
            try:
                return build(self, fakes, recorded, cse)
            except Unsupported as error:
                if recorded is None or isinstance(error, NeedsFixedSize):
                    raise
                raise NotDifferentiable(error.reason) from error


def _pop_saved_tensor_hooks() -> Iterator[tuple[Any, Any]]:
    """Pop the caller's saved-tensor hooks, innermost first: they are the user's code and must not see fakes."""
    while (hooks := top_saved_tensors_hooks(True)) is not None:
        pop_saved_tensors_hooks()
        yield hooks


def _restore(now: list[M], before: list[M], pop: Callable[[], object], push: Callable[[M], object]) -> bool:
    """Restore a stack of modes to `before`; return whether one below its innermost had been left."""
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(now, before)))
    for _ in now[same:]:
        pop()
    for mode in before[same:]:
        push(mode)
    return same < len(before) - 1
