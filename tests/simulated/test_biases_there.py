"""Biases of convolutions, which cuDNN leaves to a kernel behind it."""

import re

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt import events
from smelt.ops import convolution_bias
from smelt.report import inspect
from smelt.torch_private import ConvBackend
from tests.simulated import cuda

pytestmark = pytest.mark.simulated_cuda


def f(x, weight, bias):
    return F.hardswish(F.conv2d(x, weight, bias, padding=1))


@pytest.mark.parametrize("by_cudnn", (True, False))
def test_a_bias_is_added_where_the_result_is_read(by_cudnn, monkeypatch):
    asked = []

    def select(*arguments):
        asked.append(arguments)
        return ConvBackend.Cudnn if by_cudnn else ConvBackend.CudaDepthwise2d

    monkeypatch.setattr(convolution_bias, "select_conv_backend", select)
    convolution_bias.adds_behind.cache_clear()
    x, weight, bias = (torch.randn(s, device="cuda") for s in ((2, 3, 5, 5), (4, 3, 3, 3), (4,)))
    plans = []
    with events.subscribed(lambda e: plans.append(e.data) if e.kind == "plan" else None), torch.no_grad():
        compiled = smelt.compile(f)
        compiled(x, weight, bias)
        cuda.forget_launches()
        torch.testing.assert_close(compiled(x, weight, bias), f(x, weight, bias), rtol=1e-5, atol=1e-5)
    [arguments] = asked
    assert [t.device.type for t in arguments[:3]] == ["cuda"] * 3
    assert [t.stride() for t in arguments[:3]] == [t.stride() for t in (x, weight, bias)]
    assert plans[0]["externs"] == ("aten.convolution.default",)
    assert len(cuda.launches()) == 1
    [kernel] = re.findall(r"\w*hardswish\(in .*\)", inspect.kernels(compiled))
    assert kernel.startswith("convolution_hardswish" if by_cudnn else "hardswish")
    assert len(re.findall(r"\bin p", kernel)) == 1 + by_cudnn
    convolution_bias.adds_behind.cache_clear()
