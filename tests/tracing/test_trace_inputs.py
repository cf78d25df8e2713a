"""Scalars inside native code that nothing else refers to."""

import contextlib

import pytest
import torch
from torch._C._dynamo.eval_frame import set_eval_frame

from smelt.tracing.record import trace_inputs


@contextlib.contextmanager
def _another_frame_hook():
    """The hook of torch.compile, as while another thread compiles: CPython then inlines no Python call."""
    previous = set_eval_frame(False)
    try:
        yield
    finally:
        set_eval_frame(previous)


@pytest.mark.parametrize("hook", [contextlib.nullcontext, _another_frame_hook])
def test_a_referenced_scalar_is_not_internal(hook):
    """Functions on the call path add references; from Python 3.14 on most are borrowed."""

    def stand_in(real):
        return trace_inputs._is_internal_scalar(real)

    def argument(value):
        return stand_in(value)

    held = torch.tensor(1.0)
    with hook():
        (alone,) = [argument(a) for a in (torch.tensor(1.0),)]
        (shared,) = [argument(a) for a in (held,)]
    assert alone and not shared
