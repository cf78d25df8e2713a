"""Operators on a tensor as an object: its value, its device, its memory."""

from __future__ import annotations

import torch

from smelt.ops.registry import declare
from smelt.ops.tracing import Traced

declare(torch.ops.prim.device.default, traced=Traced.DEVICE)
declare("_local_scalar_dense item", traced=Traced.NUMBER)
declare("is_nonzero", traced=Traced.TRUTH)  # not taken apart in inference mode
declare("equal allclose is_set_to", traced=Traced.VALUES)
declare("set_ resize_ resize_as_ _resize_output_ record_stream", traced=Traced.REFUSED)
