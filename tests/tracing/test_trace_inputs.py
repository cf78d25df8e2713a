"""Scalars inside native code that nothing else refers to."""

import torch

from smelt.tracing.record import trace_inputs


def test_a_referenced_scalar_is_not_internal():
    """Functions on the call path add references; from Python 3.14 on most are borrowed."""

    def stand_in(real):
        return trace_inputs._is_internal_scalar(real)

    def argument(value):
        return stand_in(value)

    held = torch.tensor(1.0)
    (alone,) = [argument(a) for a in (torch.tensor(1.0),)]
    (shared,) = [argument(a) for a in (held,)]
    assert alone and not shared
