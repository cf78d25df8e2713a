"""The first attention of a process is one that is captured: torch then orders its kernels of attention, which is no effect
of the program. The only test here: its process has asked for no attention before."""

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.report import inspect

pytestmark = pytest.mark.simulated_cuda


def test_the_first_attention_is_captured():
    before = torch._C._get_sdp_priority_order()
    q = torch.randn(1, 2, 8, 16, device="cuda")
    compiled = smelt.compile(F.scaled_dot_product_attention, fullgraph=True)
    torch.testing.assert_close(compiled(q, q, q), F.scaled_dot_product_attention(q, q, q))
    assert torch._C._get_sdp_priority_order() != before
    compiled(q, q, q)
    assert inspect.graph_count(compiled) == 1
