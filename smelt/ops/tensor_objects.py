"""Operators on a tensor as an object: its value, device, memory."""

from __future__ import annotations

import torch

from smelt.graph.subgraphs import RUNS
from smelt.graph.unbacked_sizes import AS_SIZES
from smelt.graph.user_kernel_calls import RUN_KERNEL, RUN_KERNEL_FUNCTIONAL, results_on_metas
from smelt.ops.registry import declare
from smelt.ops.trace_rules import TraceRule

declare(torch.ops.prim.device.default, trace_rule=TraceRule.DEVICE)
declare(torch.ops.aten.size.default, trace_rule=TraceRule.SIZES)
declare(torch.ops.aten.stride.default, trace_rule=TraceRule.STRIDES)
declare("_local_scalar_dense item", trace_rule=TraceRule.NUMBER)
declare(AS_SIZES, trace_rule=TraceRule.VALUES)
declare("is_nonzero", trace_rule=TraceRule.TRUTH)  # not taken apart in inference mode
declare("equal allclose is_set_to", trace_rule=TraceRule.VALUES)
declare("set_ resize_ resize_as_ _resize_output_ record_stream", trace_rule=TraceRule.REFUSED)
declare(*RUNS, raises=True)  # as what is in the graphs may
declare(RUN_KERNEL, RUN_KERNEL_FUNCTIONAL, raises=True)  # and may print, and fail to be compiled
declare(RUN_KERNEL_FUNCTIONAL, layout=results_on_metas)
declare("_assert_async _functional_assert_async _assert_scalar _functional_assert_scalar", raises=True)
