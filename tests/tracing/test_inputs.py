"""Which tensors inside native code nobody else can see."""

import torch

from smelt.tracing.record import trace_inputs


def test_a_scalar_that_somebody_holds_is_not_internal():
    """The references of the functions between are counted as this Python makes them: from 3.14 on most are borrowed."""

    def stand_in(real):
        return trace_inputs._is_internal_scalar(real)

    def argument(value):
        return stand_in(value)

    held = torch.tensor(1.0)
    (alone,) = [argument(a) for a in (torch.tensor(1.0),)]
    (shared,) = [argument(a) for a in (held,)]
    assert alone and not shared
